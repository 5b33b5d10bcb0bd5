package socket

import "sync"

// lists are what a frame is put together and taken apart with. A frame of 512 slices needs
// 12 KiB of each, so a connection has them from a pool, and none while it is at rest.
type lists struct {
	head []byte
	vec  [][]byte
	at   []uint64
	held []*region

	watched []watched
	told    int // of watched: whose function was called
}

// A watched slice is one of a frame whose memory somebody watches.
type watched struct {
	index     int // in vec
	wrote     func(offset, n int64)
	offset, n int64
}

var listsPool = sync.Pool{New: func() any { return new(lists) }}

func takeLists() *lists { return listsPool.Get().(*lists) }

// giveBack lets others have the lists. Their elements must keep no memory alive by then.
func (l *lists) giveBack() { listsPool.Put(l) }

// keptAtRest is how long a list may be that a connection at rest keeps.
const keptAtRest = 64

// rested is an empty list as a connection at rest keeps it.
func rested[T any](list []T) []T {
	if cap(list) > keptAtRest {
		return nil
	}
	return list
}
