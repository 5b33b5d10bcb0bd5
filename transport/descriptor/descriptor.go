// Package descriptor is memory that a file descriptor stands for, and where it is in this process.
//
//	memfd     mapped: memory like any other, whose descriptor another process can be given
//	dma-buf   a device's memory: there are addresses for it, by which it is named, and nothing is there
//
// A descriptor is duplicated: the caller may close his at once. Duplicates are closed when a program is executed.
package descriptor

import (
	"net"
	"slices"
	"sync"
	"unsafe"
)

// A Memory is what a descriptor stands for.
type Memory struct {
	ID     uint32 // among those of this process; not 0
	FD     int    // open until the memory is released
	Mapped bool   // else nothing is at its addresses

	pages  []byte
	offset int64 // of pages, in what the descriptor stands for

	mu      sync.Mutex
	gone    bool
	holders map[any]func() // who was given the descriptor, and how they are told to let go of it
}

// all are those that are not released.
var all struct {
	mu   sync.RWMutex
	last uint32
	of   []*Memory
}

// Add takes in pages that are behind a descriptor from an offset on. Both are this package's from now on: release closes the
// one and gives the others back, and does nothing when it is called again.
func Add(fd int, pages []byte, offset int64, mapped bool) (release func() error) {
	m := &Memory{FD: fd, Mapped: mapped, pages: pages, offset: offset, holders: make(map[any]func())}
	all.mu.Lock()
	defer all.mu.Unlock()
	all.last++
	m.ID = all.last
	all.of = append(all.of, m)
	return sync.OnceValue(m.release)
}

// Of is the memory around mem, and where that begins in what its descriptor stands for. It is nil for other memory.
func Of(mem []byte) (m *Memory, offset int64) {
	at := address(mem)
	all.mu.RLock()
	defer all.mu.RUnlock()
	for _, m := range all.of {
		if base := address(m.pages); at >= base && at-base < uintptr(len(m.pages)) && uintptr(len(mem)) <= uintptr(len(m.pages))-(at-base) {
			return m, m.offset + int64(at-base)
		}
	}
	return nil, 0
}

func address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// Lend is a new descriptor for another process. forget is called when the memory is released, unless the holder has
// returned it. Of memory that is released it is net.ErrClosed.
func (m *Memory) Lend(holder any, forget func()) (fd int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return -1, net.ErrClosed
	}
	if fd, err = duplicate(m.FD); err == nil {
		m.holders[holder] = forget
	}
	return fd, err
}

// Return forgets a holder.
func (m *Memory) Return(holder any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.holders, holder)
}

// Gone says that the memory is released, or is just being.
func (m *Memory) Gone() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.gone
}

func (m *Memory) release() error {
	all.mu.Lock()
	all.of = slices.DeleteFunc(all.of, func(o *Memory) bool { return o == m })
	all.mu.Unlock()
	m.mu.Lock()
	m.gone = true
	holders := m.holders
	m.holders = nil
	m.mu.Unlock()
	for _, forget := range holders {
		forget()
	}
	return giveBack(m.FD, m.pages)
}
