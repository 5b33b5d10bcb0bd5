package shm

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A control is the page that both ends of a connection share: how the target stops an initiator that
// copies by itself, and knows that it has stopped.
//
//	word 0    the target's       0: the connection is open; 1: it is cut
//	word 8    the initiator's    what it is copying: (slot+1)*2, +1 for a READ; 0: nothing
//	word 9    the initiator's    how many copies it has begun
//	word 16+  the target's       of each slot its generation while its key is open, else 0
//
// The initiator announces a copy in word 8, and then looks at word 0 and the slot. The target closes
// the slot, and then looks at word 8. The accesses are sequentially consistent: one of the two
// sees the other (Dekker's algorithm). The target believes nothing that it has written itself:
// the initiator can write all of the page, and harms only its own connection by that.
type control struct {
	f     *file    // of the target
	mem   []byte   // of the initiator, else nil
	words []uint64 // of either
}

const (
	wordState   = 0
	wordBusy    = 8
	wordCount   = 9
	wordSlots   = 16
	controlSize = 8 * (wordSlots + maxSlots)
)

// newControl makes one, of an open connection.
func newControl() (*control, error) {
	f, err := newFile("kvferry-control", controlSize, 0)
	if err != nil {
		return nil, err
	}
	return &control{f: f, words: wordsOf(f.mem)}, nil
}

// openControl maps a peer's, of a descriptor that it uses up.
func openControl(fd int) (*control, error) {
	mem, err := mapPeer(fd)
	if err != nil {
		return nil, err
	}
	if len(mem) < controlSize {
		_ = unix.Munmap(mem)
		return nil, errControl
	}
	return &control{mem: mem, words: wordsOf(mem)}, nil
}

func wordsOf(mem []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), wordSlots+maxSlots)
}

func (c *control) close() {
	c.words = nil
	if c.f != nil {
		_ = c.f.release()
		return
	}
	_ = unix.Munmap(c.mem)
}

// announcement is word 8 for a copy under a slot.
func announcement(slot uint32, read bool) uint64 {
	a := (uint64(slot) + 1) * 2
	if read {
		a++
	}
	return a
}

// begin announces a copy, and reports whether it may go on: the connection is not cut, and the slot
// has that generation. If it may not, nothing is announced any more.
func (c *control) begin(slot uint32, generation uint64, read bool) (open, cut bool) {
	atomic.StoreUint64(&c.words[wordBusy], announcement(slot, read))
	if open, cut = c.standing(slot, generation); open {
		atomic.StoreUint64(&c.words[wordCount], c.words[wordCount]+1) // nobody else writes it
		return true, false
	}
	c.end()
	return false, cut
}

// standing says whether a slot is open still, and if not whether the whole connection is cut.
func (c *control) standing(slot uint32, generation uint64) (open, cut bool) {
	cut = atomic.LoadUint64(&c.words[wordState]) != 0
	return !cut && atomic.LoadUint64(&c.words[wordSlots+slot]) == generation, cut
}

// end says that the copy has ended.
func (c *control) end() { atomic.StoreUint64(&c.words[wordBusy], 0) }

// cut stops all copies.
func (c *control) cut() { atomic.StoreUint64(&c.words[wordState], 1) }

// set opens a slot, or closes it with generation 0.
func (c *control) set(slot uint32, generation uint64) {
	atomic.StoreUint64(&c.words[wordSlots+slot], generation)
}

// busy is what the initiator announces, and how many copies it has begun.
func (c *control) busy() (announced, count uint64) {
	return atomic.LoadUint64(&c.words[wordBusy]), atomic.LoadUint64(&c.words[wordCount])
}
