package immediate

import (
	"container/list"
	"errors"
	"fmt"
)

// A message is bytes that go with a batch in place of a number, and the name of who sent them. On the wire it is the
// length of the name, the name and the bytes, cut into immediates: those have Text, and in Value the length of the
// whole and where in it the Text begins. All have the Seq of the batch's own immediate, which is the last of them:
// it is sent when all others have been acknowledged, and the message is delivered with it.
//
//	parts, in any order, more than once    ──► kept by Seq and place
//	the last, first time, all others here  ──► delivered
//	the last, and others are missing       ──► ErrFull: they had to make room
//	the last, and there is no room for all ──► ErrFull: it may come again, as if it had not
//	whatever comes after that              ──► dropped
const (
	// MaxText is how many bytes an immediate may carry: notifications mostly take one.
	MaxText = 512
	// MaxName is how long the name of a sender may be, in bytes.
	MaxName = 255
	// MaxMessage is how long a message may be, in bytes.
	MaxMessage = 64 << 10

	maxWhole = 1 + MaxName + MaxMessage
	// maxUnfinished bounds the bytes of messages that have not come as a whole, of all sources: a thousand of the
	// longest. The one that has not grown for longest makes room.
	maxUnfinished = 64 << 20
)

var (
	// ErrFull: parts of the message had to make room for others', or whoever is to have the whole has no room.
	ErrFull = errors.New("the target holds too many messages")
	// ErrMalformed: no engine cuts a message so.
	ErrMalformed = errors.New("no part of a message")
)

// Cut makes a message's immediates, without their numbers. There is at least one; the last is the batch's own.
func Cut(name string, message []byte) []Imm {
	whole := make([]byte, 0, 1+len(name)+len(message))
	whole = append(append(append(whole, byte(len(name))), name...), message...)
	var parts []Imm
	for at := 0; at < len(whole); at += MaxText {
		parts = append(parts, Imm{Value: uint64(len(whole))<<32 | uint64(at), Text: string(whole[at:min(at+MaxText, len(whole))])})
	}
	return parts
}

// place says how long the message is, and where in it the text begins.
func (m *Imm) place() (length, at int) { return int(m.Value >> 32), int(m.Value & (1<<32 - 1)) }

// Part says that others of the message come after it.
func (m *Imm) Part() bool {
	length, at := m.place()
	return m.Text != "" && at+len(m.Text) < length
}

// check holds what a peer has sent to what Cut makes.
func (m *Imm) check() error {
	length, at := m.place()
	if length > maxWhole || at >= length || at%MaxText != 0 || len(m.Text) != min(MaxText, length-at) || m.Floor > m.Seq {
		return fmt.Errorf("%w: %d bytes at %d of %d", ErrMalformed, len(m.Text), at, length)
	}
	return nil
}

// unfinished is a message of which parts are missing.
type unfinished struct {
	whole []byte
	have  []bool // the parts, but the last
	need  int    // how many of them are missing

	of   *source
	seq  uint64
	idle *list.Element // in the Inbox's
}

// overhead is what an unfinished message takes besides its bytes, more or less.
const overhead = 512

func (u *unfinished) size() int { return len(u.whole) + overhead }

// Message takes an immediate that has Text. The message is nil unless this is its last and it was not delivered
// before: then it is the caller's.
func (b *Inbox) Message(imm Imm) (name string, message []byte, err error) {
	if err := imm.check(); err != nil {
		return "", nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sourceLocked(imm)
	if s.seen.has(imm.Seq) {
		return "", nil, nil
	}
	length, at := imm.place()
	u := s.unfinished[imm.Seq]
	switch {
	case imm.Part():
		b.keepLocked(s, u, imm)
		return "", nil, nil
	case at > 0 && (u == nil || u.need > 0 || len(u.whole) != length), b.HasRoom != nil && !b.HasRoom(length):
		return "", nil, ErrFull
	case at == 0: // the only one
		u = &unfinished{whole: make([]byte, length)}
	}
	copy(u.whole[at:], imm.Text)
	s.seen.add(imm.Seq)
	b.forgetLocked(s, imm.Seq)
	n := 1 + int(u.whole[0])
	if n > length {
		return "", nil, fmt.Errorf("%w: a name of %d bytes in %d", ErrMalformed, n-1, length)
	}
	return string(u.whole[1:n]), u.whole[n:], nil
}

// keepLocked files a part. u is what is there of its message, or nil.
func (b *Inbox) keepLocked(s *source, u *unfinished, imm Imm) {
	length, at := imm.place()
	if u == nil || len(u.whole) != length {
		b.forgetLocked(s, imm.Seq)
		n := (length - 1) / MaxText
		u = &unfinished{whole: make([]byte, length), have: make([]bool, n), need: n, of: s, seq: imm.Seq}
		u.idle = b.idle.PushBack(u)
		if s.unfinished == nil {
			s.unfinished = make(map[uint64]*unfinished)
		}
		s.unfinished[imm.Seq] = u
		b.held += u.size()
	}
	b.idle.MoveToBack(u.idle)
	if i := at / MaxText; !u.have[i] {
		u.have[i] = true
		u.need--
		copy(u.whole[at:], imm.Text)
	}
	for b.held > maxUnfinished {
		oldest := b.idle.Front().Value.(*unfinished)
		b.forgetLocked(oldest.of, oldest.seq)
	}
}

// forgetLocked lets go of a message.
func (b *Inbox) forgetLocked(s *source, seq uint64) {
	if u := s.unfinished[seq]; u != nil {
		b.held -= u.size()
		b.idle.Remove(u.idle)
		delete(s.unfinished, seq)
	}
}

// endLocked lets go of the messages that a source has ended: all below floor. Each number is looked at once, or each
// message if they are fewer.
func (b *Inbox) endLocked(s *source, floor uint64) {
	if floor-s.floor > uint64(len(s.unfinished)) {
		for seq := range s.unfinished {
			if seq < floor {
				b.forgetLocked(s, seq)
			}
		}
		s.floor = floor
	}
	for ; s.floor < floor; s.floor++ {
		b.forgetLocked(s, s.floor)
	}
}
