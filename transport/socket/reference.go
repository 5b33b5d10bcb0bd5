package socket

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"kvferry/transport"
)

// What rails of references have besides: addresses instead of bytes, and the proof
// that both ends can read each other.

const (
	nonceLen = 16
	probeLen = 8 + nonceLen // address, what stands there
	addrLen  = 8
)

// errUnread is a welcome's refusal.
var errUnread = errors.New("the target cannot read this process's memory: its log says why")

// errAttach says why a connection of references is none.
var errAttach = errors.New("the peer's memory cannot be read")

// A probe is a random number in this process's memory. A peer that finds it at its
// address is attached to the right process and may read it. A target has one for
// each connection, and withdraws it before it lets others have what it has lent: as
// long as the initiator finds it, what it has copied before was still held.
type probe struct{ nonce [nonceLen / 8]atomic.Uint64 }

// newProbe is nil without references.
func (r *Rail) newProbe() *probe {
	if r.cfg.Attach == nil {
		return nil
	}
	var b [nonceLen]byte
	_, _ = rand.Read(b[:]) // never fails
	p := new(probe)
	for i := range p.nonce {
		p.nonce[i].Store(binary.NativeEndian.Uint64(b[i*8:]))
	}
	return p
}

// withdraw tells whoever looks that what was lent is not held any more. It is not undone.
func (p *probe) withdraw() {
	if p == nil {
		return
	}
	for i := range p.nonce {
		p.nonce[i].Store(0)
	}
}

// append is what peers are told; nothing if there is no probe.
func (p *probe) append(b []byte) []byte {
	if p == nil {
		return b
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(uintptr(unsafe.Pointer(&p.nonce))))
	for i := range p.nonce {
		b = binary.NativeEndian.AppendUint64(b, p.nonce[i].Load())
	}
	return b
}

// A lease is a peer's probe: what it holds, and where.
type lease struct {
	at    [1]uint64
	nonce [nonceLen]byte
	found [nonceLen]byte
	dst   [1][]byte
}

func parseLease(b []byte) lease {
	l := lease{at: [1]uint64{binary.LittleEndian.Uint64(b)}}
	copy(l.nonce[:], b[8:])
	return l
}

// check looks whether the probe is still there.
func (l *lease) check(peer Memory) error {
	l.dst[0] = l.found[:]
	err := peer.Copy(l.dst[:], l.at[:])
	if err == nil && l.found != l.nonce {
		err = errWithdrawn
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errAttach, err)
	}
	return nil
}

// errWithdrawn: the target has waited for long enough, or this is not its process.
var errWithdrawn = errors.New("it is not there, or no more")

// attach opens the memory of a connection's peer and finds its probe there.
func (r *Rail) attach(c Conn, l lease) (Memory, error) {
	m, err := r.cfg.Attach(c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errAttach, err)
	}
	return m, l.check(m)
}

// address is where b begins in this process. Memory that is registered or posted is
// on the heap or mapped, and does not move.
func address(b []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

func appendAddress(b, mem []byte) []byte {
	return binary.LittleEndian.AppendUint64(b, address(mem))
}

// fetch fills the elements of dst that are not empty from the peer's memory at the
// addresses in from, one for each element. It uses dst up.
func fetch(peer Memory, dst [][]byte, from []byte, at []uint64) ([]uint64, error) {
	at = at[:0]
	k, n := 0, 0
	for i, b := range dst {
		if len(b) > 0 {
			dst[k] = b
			k++
			n += len(b)
			at = append(at, binary.LittleEndian.Uint64(from[i*addrLen:]))
		}
	}
	if k == 0 {
		return at, nil
	}
	if err := peer.Copy(dst[:k], at); err != nil {
		return at, fmt.Errorf("%w: %w", errAttach, err)
	}
	haveRead(dst[:k], n)
	look(n)
	return at, nil
}

// sendImm sends the slice at the front of ep.work, which has an immediate. Its bytes
// go in a frame of their own, and the immediate only when all bytes that were sent
// before it are known to have been copied out of this process: an endpoint that is
// closed gives its slices' memory back at once, and what the target copies of it after
// that must not be announced as whole.
func (ep *endpoint) sendImm() error {
	s := ep.work[:1]
	size := int64(len(s[0].Local))
	if size > 0 {
		f := framePool.Get().(*frame)
		ep.describe(f, request{op: transport.Write, count: 1, bytes: size}, s)
		ep.vec = append(ep.vec[:0], ep.head, s[0].Local)
		ep.underWay(f, transport.Write, 0)
		if err := writeFrame(ep.c, ep.out, ep.peer, ep.vec); err != nil {
			return err
		}
	}
	if err := ep.waitWritten(); err != nil {
		return err
	}
	f := framePool.Get().(*frame)
	f.slices = append(f.slices, s...)
	f.bytes = size
	ep.describe(f, request{op: transport.Write, hasImm: true, count: 1, bytes: size}, s)
	ep.vec = append(ep.vec[:0], ep.head)
	ep.underWay(f, transport.Write, 1)
	return writeFrame(ep.c, ep.out, ep.peer, ep.vec)
}

// waitWritten waits until no WRITE frame is under way, or the endpoint is broken.
func (ep *endpoint) waitWritten() error {
	for {
		ep.mu.Lock()
		n, err := len(ep.writes), ep.err
		ep.mu.Unlock()
		if n == 0 || err != nil {
			return err
		}
		if sent, err := ep.sendRelease(); err != nil {
			return err
		} else if !sent {
			ep.wait()
		}
	}
}

// borrow copies a READ frame's bytes out of the target's memory, into l.vec, and
// completes it if the target has held the memory until now.
func (ep *endpoint) borrow(f *frame, l *lists) error {
	b, err := ep.in.next(len(l.vec) * addrLen)
	if err == nil {
		l.at, err = fetch(ep.peer, l.vec, b, l.at)
	}
	clear(l.vec)
	if err == nil {
		err = ep.lease.check(ep.peer)
	}
	if err != nil {
		return err
	}
	ep.mu.Lock()
	ep.pop(&ep.reads)
	ep.copied = f.seq
	ep.mu.Unlock()
	ep.wake()
	f.complete()
	return nil
}

// appendRelease appends the release that is due, if one is.
func (ep *endpoint) appendRelease(b []byte) []byte {
	if ep.peer == nil {
		return b
	}
	ep.mu.Lock()
	due := ep.copied
	ep.mu.Unlock()
	if due <= ep.told {
		return b
	}
	ep.told = due
	r := request{op: opRelease, seq: due}
	return r.append(b)
}

// sendRelease sends the release that is due, and reports whether one was.
func (ep *endpoint) sendRelease() (bool, error) {
	ep.head = ep.appendRelease(ep.head[:0])
	if len(ep.head) == 0 {
		return false, nil
	}
	return true, write(ep.c, ep.head)
}

// A loan is the memory of a READ frame that the initiator copies from.
type loan struct {
	seq  uint64
	held []*region
}

// lend makes an answer one of addresses. Their memory is held until the initiator says
// that it has copied it, or the connection ends.
func (s *served) lend(r *request, a *answer) {
	for _, mem := range a.parts[1:] {
		a.head = appendAddress(a.head, mem)
	}
	s.loans = append(s.loans, loan{r.seq, a.held})
	a.held = nil
}

// release ends the loans of frames up to seq.
func (s *served) release(seq uint64) error {
	if s.peer == nil || len(s.loans) == 0 || seq < s.loans[0].seq || seq > s.seq {
		return fmt.Errorf("%w: frame %d is released, and has nothing", transport.ErrProtocol, seq)
	}
	for len(s.loans) > 0 && s.loans[0].seq <= seq {
		s.releaseHeld(s.loans[0].held)
		s.loans[0] = loan{}
		s.loans = s.loans[1:]
	}
	return nil
}

// settle ends all loans: the connection is over, perhaps because the initiator could not copy.
func (s *served) settle() {
	for _, l := range s.loans {
		s.rail.inspect(l.held)
		s.releaseHeld(l.held)
	}
	s.loans = nil
}
