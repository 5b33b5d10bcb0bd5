package shm

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"kvferry/transport"
)

// A control is the page that both ends of a connection share: how the target stops an initiator that
// copies by itself, and knows that it has stopped.
//
//	word 0    the target's       0: the connection is open; 1: it is cut
//	word 1    the target's       how many immediates it has answered, a futex
//	word 8    the initiator's    what it is copying: (slot+1)*2, +1 for a READ; 0: nothing
//	word 9    the initiator's    how many copies it has begun
//	word 10   the initiator's    how many immediates it has put into the ring
//	word 11   both's             how the initiator waits for answers: at the futex, or to be told over the socket
//	word 16+  a ring of 8 words  an immediate: the initiator's key, source, sequence number, floor, value;
//	          for each           the target's code; the initiator's length of a text
//	behind    the target's       of each slot its generation while its key is open, else 0
//	behind    the initiator's    the texts, of 512 bytes for each of the ring: memory only where there was one
//
// The initiator announces a copy in word 8, and then looks at word 0 and the slot. The target closes
// the slot, and then looks at word 8. The accesses are sequentially consistent: one of the two
// sees the other (Dekker's algorithm). The target believes nothing that it has written itself:
// the initiator can write all of the page, and harms only its own connection by that.
type control struct {
	page
	words []uint64
}

// A page is memory that a target shares with initiators, beside what they copy to.
type page struct {
	f   *file  // of the target, else nil
	mem []byte // of either
}

// newPage makes one.
func newPage(name string, size int) (page, error) {
	f, err := newFile(name, size, 0)
	if err != nil {
		return page{}, err
	}
	return page{f, f.mem}, nil
}

// openPage maps a peer's, of a descriptor that it uses up.
func openPage(fd, size int) (page, error) {
	mem, err := mapPeer(fd)
	if err != nil {
		return page{}, err
	}
	if len(mem) < size {
		_ = unix.Munmap(mem)
		return page{}, errControl
	}
	return page{nil, mem}, nil
}

func (p *page) close() {
	if p.f != nil {
		_ = p.f.release()
		return
	}
	_ = unix.Munmap(p.mem)
}

const (
	wordState    = 0
	wordAnswered = 1
	wordBusy     = 8
	wordCount    = 9
	wordPut      = 10
	wordWaits    = 11
	wordRing     = 16
	wordSlots    = wordRing + ringLen*ringWords
	textsAt      = 8 * (wordSlots + maxSlots) // bytes
	controlSize  = textsAt + ringLen*transport.MaxText

	// ringLen is how many immediates may wait for their answers: those that come after them wait in
	// the initiator's queue. So an idle connection takes one page of memory, whatever it has done.
	ringLen   = 32
	ringWords = 8
	ringCode  = 5 // in an immediate's words
	ringText  = 6 // likewise
)

// how an initiator waits for answers
const (
	waitsNot uint64 = iota // or it has been told
	waitsAtFutex
	waitsAtSocket
)

// newControl makes one, of an open connection.
func newControl() (*control, error) {
	p, err := newPage("kvferry-control", controlSize)
	if err != nil {
		return nil, err
	}
	return &control{p, wordsOf(p.mem)}, nil
}

// openControl maps a peer's, of a descriptor that it uses up.
func openControl(fd int) (*control, error) {
	p, err := openPage(fd, controlSize)
	if err != nil {
		return nil, err
	}
	return &control{p, wordsOf(p.mem)}, nil
}

func wordsOf(mem []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), controlSize/8)
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

// entry is where the n-th immediate stands. Counts of immediates begin again at zero after 1<<32.
func (c *control) entry(n uint32) []uint64 {
	at := wordRing + n%ringLen*ringWords
	return c.words[at : at+ringWords]
}

// put puts the n-th immediate into the ring. The initiator has seen the answer to the one that stood there.
func (c *control) put(n uint32, key transport.Key, m transport.Imm) {
	e := c.entry(n)
	for i, v := range [...]uint64{uint64(key), m.Source, m.Seq, m.Floor, m.Value} {
		atomic.StoreUint64(&e[i], v)
	}
	atomic.StoreUint64(&e[ringText], uint64(copy(c.text(n), m.Text)))
	willSend()
	atomic.StoreUint32(c.half(wordPut), n+1)
}

// waiting is how many immediates there are behind the answered ones. It is false if there are more than can be.
func (c *control) waiting(answered uint32) (n uint32, ok bool) {
	n = atomic.LoadUint32(c.half(wordPut)) - answered
	haveReceived()
	return n, n <= ringLen
}

// text is where that of the n-th immediate stands.
func (c *control) text(n uint32) []byte {
	at := textsAt + n%ringLen*transport.MaxText
	return c.mem[at : at+transport.MaxText]
}

// take is the n-th immediate, read once. Its text is as long as the initiator says, if there is room for that.
func (c *control) take(n uint32) (key transport.Key, m transport.Imm) {
	e := c.entry(n)
	var v [ringCode]uint64
	for i := range v {
		v[i] = atomic.LoadUint64(&e[i])
	}
	m = transport.Imm{Source: v[1], Seq: v[2], Floor: v[3], Value: v[4]}
	if long := atomic.LoadUint64(&e[ringText]); long > 0 {
		m.Text = string(c.text(n)[:min(long, transport.MaxText)])
	}
	return transport.Key(v[0]), m
}

// answer says how the n-th immediate ended, and wakes who waits for that. It reports whether the
// initiator wants to be told over the socket.
func (c *control) answer(n uint32, how code) (tell bool) {
	atomic.StoreUint64(&c.entry(n)[ringCode], uint64(how))
	willSend()
	atomic.StoreUint32(c.half(wordAnswered), n+1)
	if atomic.LoadUint64(&c.words[wordWaits]) == waitsAtFutex {
		futexWake(c.half(wordAnswered))
	}
	return atomic.CompareAndSwapUint64(&c.words[wordWaits], waitsAtSocket, waitsNot)
}

// waits says how the initiator waits from now on, and then whether that many are answered still, and no more.
func (c *control) waits(how uint64, answered uint32) bool {
	atomic.StoreUint64(&c.words[wordWaits], how)
	return c.answered() == answered
}

// answered is how many immediates the target has answered, and code how the n-th of them ended.
func (c *control) answered() uint32 {
	n := atomic.LoadUint32(c.half(wordAnswered))
	haveReceived()
	return n
}

func (c *control) code(n uint32) uint64 { return atomic.LoadUint64(&c.entry(n)[ringCode]) }

// half is a word that is a count of 32 bits, as a futex is.
func (c *control) half(word int) *uint32 { return (*uint32)(unsafe.Pointer(&c.words[word])) }
