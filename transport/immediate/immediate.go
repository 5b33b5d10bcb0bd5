// Package immediate numbers the immediates that an engine sends and tells, at their target, the first
// coming of one from its repetitions. It cuts messages into immediates, and puts them together. Its methods
// may be called from any goroutine.
package immediate

import (
	"container/list"
	"crypto/rand"
	"encoding/binary"
	"math"
	"sync"
)

// An Imm is an immediate on its way. A slice whose connection was lost is sent
// again although it may have been applied, so an immediate carries what its
// target needs to tell a repetition: Seq counts the immediates of Source, and
// every one below Floor has ended at its initiator and will not come again.
type Imm struct {
	Source uint64 // random, one for each engine
	Seq    uint64
	Floor  uint64
	Value  uint64
	Text   string // of a message, see Cut; else empty
}

// Question asks whether the immediate has been delivered: it has a floor that none has.
func (m Imm) Question() Imm {
	m.Floor, m.Text = math.MaxUint64, ""
	return m
}

// Asks says that it is a question.
func (m *Imm) Asks() bool { return m.Source != 0 && m.Floor == math.MaxUint64 }

const (
	// immSpan is how many immediates of one engine may be outstanding: its
	// peers remember as many, in 8 KiB at most.
	immSpan = 1 << 16
	// maxSources is how many engines' immediates a target remembers. The one
	// not heard of for longest is forgotten first: 4096 x 8 KiB = 32 MiB.
	maxSources = 4096
)

// A span is the set of sequence numbers in [floor, floor+immSpan) that have
// been seen; every number below floor has. An engine has few outstanding, and a
// target may have met thousands of engines, so the bits grow with the number
// that is farthest from the floor.
type span struct {
	floor uint64
	bits  []uint64 // a ring: number n is bit n % width, a power of two
}

func (s *span) width() uint64 { return 64 * uint64(len(s.bits)) }

func (s *span) at(seq uint64) (*uint64, uint64) {
	i := seq & (s.width() - 1)
	return &s.bits[i/64], 1 << (i % 64)
}

// add reports whether seq is new. A number beyond the span moves it.
func (s *span) add(seq uint64) bool {
	if s.has(seq) {
		return false
	}
	if seq-s.floor >= immSpan {
		s.raise(seq - immSpan + 1)
	}
	if seq-s.floor >= s.width() {
		s.grow(seq)
	}
	word, bit := s.at(seq)
	*word |= bit
	return true
}

// grow makes room for seq.
func (s *span) grow(seq uint64) {
	old := *s
	n := max(1, 2*len(s.bits))
	for seq-s.floor >= 64*uint64(n) {
		n *= 2
	}
	s.bits = make([]uint64, n)
	for i := range old.width() {
		if old.has(old.floor + i) {
			word, bit := s.at(old.floor + i)
			*word |= bit
		}
	}
}

// has reports whether a number has been seen, or is below the floor.
func (s *span) has(seq uint64) bool {
	if seq < s.floor || seq-s.floor >= s.width() {
		return seq < s.floor
	}
	word, bit := s.at(seq)
	return *word&bit != 0
}

// raise forgets the numbers below floor.
func (s *span) raise(floor uint64) {
	if floor <= s.floor {
		return
	}
	if floor-s.floor >= s.width() {
		clear(s.bits)
		s.floor = floor
		return
	}
	for ; s.floor < floor; s.floor++ {
		word, bit := s.at(s.floor)
		*word &^= bit
	}
}

// shrink raises floor over the numbers that have been seen.
func (s *span) shrink() {
	for s.has(s.floor) {
		s.raise(s.floor + 1)
	}
}

// Random returns an unguessable number that is not zero.
func Random() uint64 {
	var b [8]byte
	for {
		rand.Read(b[:]) // never fails
		if n := binary.LittleEndian.Uint64(b[:]); n != 0 {
			return n
		}
	}
}

// An Outbox numbers the immediates an engine sends.
type Outbox struct {
	source uint64

	mu    sync.Mutex
	next  uint64
	ended span
}

// NewOutbox is that of an engine with an unguessable number that is not zero.
func NewOutbox(source uint64) *Outbox { return &Outbox{source: source} }

// Start numbers an immediate; it is outstanding until End. It is false if too many are.
func (o *Outbox) Start(value uint64) (Imm, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.next-o.ended.floor >= immSpan {
		return Imm{}, false
	}
	imm := Imm{Source: o.source, Seq: o.next, Floor: o.ended.floor, Value: value}
	o.next++
	return imm, true
}

// End takes one that no target need tell apart any more.
func (o *Outbox) End(imm Imm) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended.add(imm.Seq)
	o.ended.shrink()
}

// An Inbox tells the first coming of an immediate from its repetitions. The zero value has seen none.
type Inbox struct {
	// HasRoom, if not nil, says whether a message of so many bytes can be taken.
	HasRoom func(bytes int) bool

	mu      sync.Mutex
	sources map[uint64]*source
	tick    uint64
	held    int       // bytes of unfinished messages
	idle    list.List // of them, *unfinished: the one that has not grown for longest first
}

type source struct {
	seen       span
	used       uint64                 // tick of the last immediate
	unfinished map[uint64]*unfinished // messages, by Seq
	floor      uint64                 // of none below it
}

// Accept reports whether imm is to be delivered.
func (b *Inbox) Accept(imm Imm) bool {
	if imm.Floor > imm.Seq {
		return false // ended before it was sent: no engine says so
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sourceLocked(imm).seen.add(imm.Seq)
}

// sourceLocked is what is known of an immediate's source, which has ended all below its Floor.
func (b *Inbox) sourceLocked(imm Imm) *source {
	s := b.sources[imm.Source]
	if s == nil {
		if b.sources == nil {
			b.sources = make(map[uint64]*source)
		}
		if len(b.sources) >= maxSources {
			b.evictLocked()
		}
		s = new(source)
		b.sources[imm.Source] = s
	}
	b.tick++
	s.used = b.tick
	if imm.Floor > s.seen.floor {
		s.seen.raise(imm.Floor)
		b.endLocked(s, imm.Floor)
	}
	return s
}

func (b *Inbox) evictLocked() {
	var oldest uint64
	used := ^uint64(0)
	for id, s := range b.sources {
		if s.used < used {
			oldest, used = id, s.used
		}
	}
	for seq := range b.sources[oldest].unfinished {
		b.forgetLocked(b.sources[oldest], seq)
	}
	delete(b.sources, oldest)
}

// Has says whether an immediate was accepted. The connection that it was sent on has been
// fenced: if it has not come, it will not.
func (b *Inbox) Has(imm Imm) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sources[imm.Source]
	return s != nil && s.seen.has(imm.Seq)
}
