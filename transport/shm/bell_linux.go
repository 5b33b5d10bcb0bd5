package shm

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"kvferry/transport"
)

// A bell is the page by which the initiators of all of a rail's connections wake its target: one thread
// sleeps there, however many they are.
//
//	word 0     a futex      how often it was rung
//	word 16    the target's 1: it sleeps, or is about to
//	word 32+   bits         the connections that have rung, by their numbers
//
// An initiator sets its bit, counts word 0 up, and then looks at word 16: if that is set it wakes
// the target. The target sets word 16, and sleeps if word 0 has stayed what it was before it
// last looked at the bits. Every peer of the rail can write all of the page. One that spoils it makes others' immediates
// later, not lost: who is not answered in time knocks over its socket. And one that turns word 0 back has the target sleep
// over what came, for listenAgain at most.
type bell struct {
	page
	words []uint32
	bits  []uint64 // the same memory, from word 32 on

	mu      sync.Mutex
	guests  []*served // of the target, by number
	vacant  []int     // numbers below len(guests)
	closing atomic.Bool
}

const (
	wordRung   = 0
	wordAsleep = 16
	wordBits   = 32
	bellSize   = 4096
	maxRings   = (bellSize - 4*wordBits) * 8
	// listenAgain is how long the target sleeps at most.
	listenAgain = time.Second
)

func newBell() (*bell, error) {
	p, err := newPage("kvferry-bell", bellSize)
	return bellOf(p), err
}

// openBell maps a peer's, of a descriptor that it uses up.
func openBell(fd int) (*bell, error) {
	p, err := openPage(fd, bellSize)
	return bellOf(p), err
}

// bellOf is that of a page, or nil if there is none.
func bellOf(p page) *bell {
	if p.mem == nil {
		return nil
	}
	first := unsafe.Pointer(unsafe.SliceData(p.mem))
	return &bell{
		page:  p,
		words: unsafe.Slice((*uint32)(first), wordBits),
		bits:  unsafe.Slice((*uint64)(unsafe.Add(first, 4*wordBits)), maxRings/64),
	}
}

// ring tells the target that connection number n has put something.
func (b *bell) ring(n int) {
	willSend()
	atomic.OrUint64(&b.bits[n/64], 1<<(n%64))
	b.shake()
}

func (b *bell) shake() {
	atomic.AddUint32(&b.words[wordRung], 1)
	if atomic.LoadUint32(&b.words[wordAsleep]) != 0 {
		futexWake(&b.words[wordRung])
	}
}

// join gives a connection its number; -1 is none.
func (b *bell) join(s *served) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch k := len(b.vacant); {
	case k > 0:
		n, b.vacant = b.vacant[k-1], b.vacant[:k-1]
		b.guests[n] = s
	case len(b.guests) < maxRings:
		n = len(b.guests)
		b.guests = append(b.guests, s)
	default:
		return -1, fmt.Errorf("%w: %d connections are served", transport.ErrUnreachable, maxRings)
	}
	return n, nil
}

// leave gives a number back.
func (b *bell) leave(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.guests[n] = nil
	b.vacant = append(b.vacant, n)
}

// listen has the connections that ring handle what they have, until the bell is stopped. A connection whose
// handling takes long holds up the others': they knock.
func (b *bell) listen() {
	for {
		rung := atomic.LoadUint32(&b.words[wordRung]) // what comes after this is not slept over
		if b.closing.Load() {
			return
		}
		for i := range (b.numbers() + 63) / 64 {
			for set := atomic.SwapUint64(&b.bits[i], 0); set != 0; set &= set - 1 {
				if s := b.guest(i*64 + bits.TrailingZeros64(set)); s != nil {
					s.drain()
				}
			}
		}
		atomic.StoreUint32(&b.words[wordAsleep], 1)
		futexWait(&b.words[wordRung], rung, listenAgain)
		atomic.StoreUint32(&b.words[wordAsleep], 0)
	}
}

// numbers is how many were given, at most.
func (b *bell) numbers() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.guests)
}

// guest is the connection of a number that a peer has written, or nil.
func (b *bell) guest(n int) *served {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n >= len(b.guests) {
		return nil
	}
	return b.guests[n]
}

// stop has listen return.
func (b *bell) stop() {
	b.closing.Store(true)
	atomic.AddUint32(&b.words[wordRung], 1)
	futexWake(&b.words[wordRung])
}
