package kvcache

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
)

// An Index finds the place of a Hash: the number of the block, say, where its owner keeps the
// Hash itself. A prompt has hundreds of them to look up, and what that costs is memory that is
// not in the CPU's cache. So this is a table of 8 bytes a slot, searched from a Hash's home on to
// the next free slot, where a map would have a copy of each Hash. Where the homes are each table
// draws for itself, so that nobody can choose prompts that crowd one place of it.
type Index struct {
	hashOf func(place uint32) Hash
	slots  []indexSlot // a power of two, at most half of them taken
	len    int
	seed   uint64 // odd
	shift  int    // of a tag: what is left is its home
	near   uint32 // what Near saw: of no use but to be seen
}

// An indexSlot is free if place is 0; else that is one too high. The tag is 32 bits of the Hash,
// mixed: the first of them are its home, all of them spare most looks at the Hash itself.
type indexSlot struct{ tag, place uint32 }

// NewIndex returns an empty one. hashOf is its owner's: the Hash that was added with a place.
func NewIndex(hashOf func(place uint32) Hash) *Index {
	x := &Index{hashOf: hashOf, seed: rand.Uint64() | 1}
	x.resize(16)
	return x
}

func (x *Index) resize(n int) {
	old := x.slots
	x.slots, x.shift = make([]indexSlot, n), 32-bits.Len(uint(n-1))
	for _, s := range old {
		if s.place != 0 {
			i := x.home(s.tag)
			for x.slots[i].place != 0 {
				i = x.next(i)
			}
			x.slots[i] = s
		}
	}
}

func (x *Index) tag(h *Hash) uint32 {
	low, high := binary.LittleEndian.Uint64(h[:8]), binary.LittleEndian.Uint64(h[8:])
	return uint32((low ^ bits.RotateLeft64(high, 32)) * x.seed >> 32)
}

func (x *Index) home(tag uint32) int { return int(tag >> x.shift) }

func (x *Index) next(i int) int { return (i + 1) & (len(x.slots) - 1) }

// Len is how many there are.
func (x *Index) Len() int { return x.len }

// Find is the place of a Hash; false if it has none.
func (x *Index) Find(h Hash) (place uint32, ok bool) {
	i, ok := x.slot(&h, x.tag(&h))
	return x.slots[i].place - 1, ok
}

// slot is where a Hash is, or where it would be put.
func (x *Index) slot(h *Hash, tag uint32) (i int, ok bool) {
	i = x.home(tag)
	for ; x.slots[i].place != 0; i = x.next(i) {
		if s := x.slots[i]; s.tag == tag && x.hashOf(s.place-1) == *h {
			return i, true
		}
	}
	return i, false
}

// Near is for a Hash that Find, Add or Remove is about to be asked for, among many: it only looks at its
// home. Memory that is asked for many times in a row comes all at once; a search ends before the next one begins.
func (x *Index) Near(h *Hash) { x.near |= x.slots[x.home(x.tag(h))].tag }

// Add gives a Hash a place, unless it has one: then nothing changes, and it is false.
func (x *Index) Add(h Hash, place uint32) bool {
	tag := x.tag(&h)
	i, ok := x.slot(&h, tag)
	if ok {
		return false
	}
	x.slots[i] = indexSlot{tag, place + 1}
	x.len++
	if 2*x.len > len(x.slots) {
		x.resize(2 * len(x.slots))
	}
	return true
}

// Remove takes out the Hash that was added with a place, while its owner still has it there.
func (x *Index) Remove(place uint32) {
	h := x.hashOf(place)
	i := x.home(x.tag(&h))
	for x.slots[i].place != place+1 {
		if x.slots[i].place == 0 {
			return
		}
		i = x.next(i)
	}
	x.len--
	// A search ends at a free slot: what stands behind this one, up to the next free one, moves
	// up, but none before its home.
	last := len(x.slots) - 1
	for j := x.next(i); x.slots[j].place != 0; j = x.next(j) {
		if (j-x.home(x.slots[j].tag))&last >= (j-i)&last {
			x.slots[i] = x.slots[j]
			i = j
		}
	}
	x.slots[i] = indexSlot{}
}

// Clear takes all out.
func (x *Index) Clear() {
	clear(x.slots)
	x.len = 0
}
