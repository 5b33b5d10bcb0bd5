package socket

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"kvferry/transport"
	"kvferry/transport/connection"
)

const (
	// ackBytes is how much is applied at most before an ack is sent although
	// more input waits. The initiator's queue is 64 times as long.
	ackBytes = 1 << 20
	// maxAnswers bounds the READ frames of a connection that wait for their
	// data to be sent; then no more frames are taken.
	maxAnswers = 64
	// helloWithin bounds the wait for a new connection's hello.
	helloWithin = 5 * time.Second
)

// A served connection is the target's side: one goroutine takes frames, applies
// WRITEs and sends acks, another sends the data of READs once there are any.
type served struct {
	rail  *Rail
	c     Conn
	in    stream
	out   *gather
	peer  Memory         // nil if frames carry bytes; proof is then nil too
	proof *probe         // that the memory lent is still held
	name  transport.Name // of its hello
	over  chan struct{}  // nothing is touched any more

	// How it stands, for connection.Admission.
	holds atomic.Int64 // regions held for frames, answers and loans
	known atomic.Bool  // it has shown a good key
	idle  atomic.Int64 // since when nothing is held, Unix nanoseconds

	// Of take only.
	seq     uint64
	unacked int64  // bytes applied since the last ack
	clean   uint64 // slices since one was refused
	refused code   // why that was
	guesses connection.Guesses
	guessed error // of guesses
	*lists        // while a frame is under way
	loans   []loan

	answers chan *answer   // to send; nil before the first READ
	sender  sync.WaitGroup // of send

	// wmu guards the socket's sending side. It is held for long only by the
	// goroutine that sends data, which sends the ack that came due meanwhile.
	wmu   sync.Mutex
	acked uint64        // sequence number of the last ack sent; guarded by wmu
	due   atomic.Uint64 // and of the one to send
}

// newServed is a connection that was accepted just now.
func (r *Rail) newServed(c Conn) *served {
	s := &served{rail: r, c: c, proof: r.newProbe(), over: make(chan struct{})}
	s.idle.Store(time.Now().UnixNano())
	return s
}

// serve runs a connection from hello to end.
func (r *Rail) serve(s *served) {
	defer r.wg.Done()
	err := s.run()
	s.cut()
	r.dismiss(s)
	close(s.over)
	log := r.cfg.Logger.With("rail", r.cfg.Name, "peer", s.c.RemoteAddr().String())
	switch {
	case errors.Is(err, transport.ErrProtocol):
		if held, ok := r.strange.Line(time.Now()); ok {
			log.Warn("transport/socket: connection dropped", "err", err, "since_last_line", held)
		}
	case errors.Is(err, errAttach) && r.told.First(err.Error()):
		log.Warn("transport/socket: connection dropped", "err", err)
	case !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed):
		log.Debug("transport/socket: connection lost", "err", err)
	}
}

// hold and letGo are called with each region that is acquired and released.
func (s *served) hold() {
	s.holds.Add(1)
	if !s.known.Load() {
		s.known.Store(true)
	}
}

func (s *served) letGo() {
	s.idle.Store(time.Now().UnixNano()) // before somebody sees that nothing is held
	s.holds.Add(-1)
}

// Standing implements connection.Guest. A peer that has sent part of a frame, or one
// with bad keys, touches nothing of ours: it is idle.
func (s *served) Standing() connection.Standing {
	return connection.Standing{Busy: s.holds.Load() > 0, Known: s.known.Load(), Idle: time.Unix(0, s.idle.Load())}
}

// Evict implements connection.Guest.
func (s *served) Evict(why error) {
	s.rail.cfg.Logger.Debug("transport/socket: connection ended", "rail", s.rail.cfg.Name, "peer", s.c.RemoteAddr().String(), "err", why)
	s.cut()
}

// Cut implements connection.Conn.
func (s *served) Cut(error) { s.cut() }

// Over implements connection.Conn.
func (s *served) Over() <-chan struct{} { return s.over }

// cut ends the connection, from any goroutine.
func (s *served) cut() {
	s.proof.withdraw()
	_ = s.c.Close()
}

// run returns why the connection ended.
func (s *served) run() error {
	if err := s.greet(); err != nil {
		return err
	}
	err := s.take()
	if errors.Is(err, transport.ErrProtocol) {
		s.farewell()
	}
	s.cut() // ends a send under way
	if s.answers != nil {
		close(s.answers)
	}
	s.sender.Wait()
	s.settle()
	return err
}

// greet reads the hello, ends the connections it says are lost, and answers. By
// then this one can be named as lost too.
func (s *served) greet() error {
	if err := s.c.SetReadDeadline(time.Now().Add(s.rail.cfg.helloWithin)); err != nil {
		return err
	}
	var b [helloLen]byte
	// The magic first: who speaks another protocol may wait for an answer.
	if _, err := io.ReadFull(s.c, b[:16]); err != nil {
		return noHello(err)
	}
	if _, err := parseHello(b[:]); err != nil {
		return err
	}
	if _, err := io.ReadFull(s.c, b[16:]); err != nil {
		return noHello(err)
	}
	h, err := parseHello(b[:])
	if err != nil {
		return err
	}
	refused, why := codeOK, error(nil)
	if s.proof != nil {
		var b [probeLen]byte
		if _, err := io.ReadFull(s.c, b[:]); err != nil {
			return noHello(err)
		}
		if s.peer, why = s.rail.attach(s.c, parseLease(b[:])); why != nil {
			refused = codeUnread
		}
	}
	if err := s.c.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	for _, lost := range h.lost {
		s.rail.Fence(lost)
	}
	if s.rail.cfg.Greeted != nil {
		s.rail.cfg.Greeted(s.c.RemoteAddr())
	}
	if err := s.rail.byName.Add(h.name, s); err != nil {
		return err
	}
	s.name = h.name
	sock, err := newSocket(s.c)
	if err != nil {
		return err
	}
	s.in = newStream(sock, s.peer != nil)
	if s.out, err = newGather(s.c); err != nil {
		return err
	}
	w := appendWelcome(nil, refused)
	if why == nil {
		w = s.proof.append(w)
	}
	if err := write(s.c, w); err != nil {
		return err
	}
	return why
}

// noHello says that time was up: who connects and keeps silent has not spoken the protocol,
// where one whose connection is lost has done nothing wrong.
func noHello(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: no hello within %v", transport.ErrProtocol, helloWithin)
	}
	return err
}

// take applies frames until the connection ends.
func (s *served) take() error {
	defer s.in.src.light(false)
	for {
		if s.in.empty() || s.unacked >= ackBytes {
			if err := s.flushAck(); err != nil {
				return err
			}
		}
		b, err := s.in.next(requestLen)
		if err != nil {
			return err
		}
		r, err := parseRequest(b)
		if err != nil {
			return err
		}
		if r.op == opRelease {
			if err := s.release(r.seq); err != nil {
				return err
			}
			continue
		}
		if r.op == opPoke {
			if err := s.in.discard(r.bytes); err != nil {
				return err
			}
			continue
		}
		if s.seq++; r.seq != s.seq {
			return fmt.Errorf("%w: frame %d comes where %d should", transport.ErrProtocol, r.seq, s.seq)
		}
		if b, err = s.in.next(r.rest(s.peer != nil)); err != nil {
			return err
		}
		if err := checkLengths(&r, b); err != nil {
			return err
		}
		s.in.src.light(r.bytes <= lightBytes)
		s.lists = takeLists()
		if r.op == transport.Write {
			err = s.write(&r, b)
		} else {
			err = s.read(&r, b)
		}
		clear(s.vec)
		clear(s.watched)
		s.giveBack()
		s.lists = nil
		if err = cmp.Or(err, s.guessed); err != nil {
			return err
		}
	}
}

// resolve finds the memory of a frame's slices, holds it, and appends naks for
// those that have none. Refused slices leave nil in s.vec. The last is refused too if one of
// as many slices before it was as its immediate depends on.
func (s *served) resolve(r *request, descs []byte, behind uint64) (naks []byte) {
	s.vec, s.held, s.watched, s.told = s.vec[:0], s.held[:0], s.watched[:0], 0
	var key transport.Key
	var g *region
	near := 0
	for i := range r.count {
		d := parseDesc(descs[i*descLen:])
		if g == nil || d.key != key {
			key, g, near = d.key, s.rail.regions.get(d.key), 0
			if g != nil && !g.acquire(s) {
				g = nil
			}
			if g != nil {
				s.held = append(s.held, g)
			} else if err := s.guesses.Refused(key, time.Now()); err != nil {
				s.guessed = err
			}
		}
		var mem []byte
		why := codeBadKey
		if g != nil {
			mem, why = g.slice(r.op, d, &near)
		}
		if why == codeOK && r.hasImm && i == r.count-1 && s.clean < behind {
			why = s.refused
		}
		s.clean++
		if why != codeOK {
			s.clean, s.refused = 0, why
			n := response{typ: nak, code: why, index: i, seq: r.seq}
			naks = n.append(naks)
			mem = nil
		} else if wrote := g.access.Wrote(); wrote != nil && r.op == transport.Write && len(mem) > 0 {
			s.watched = append(s.watched, watched{i, wrote, int64(d.offset), int64(d.length)})
		}
		s.vec = append(s.vec, mem)
	}
	return naks
}

// releaseHeld gives regions back, and forgets them: the list is used again.
func (s *served) releaseHeld(held []*region) {
	for i, g := range held {
		g.release(s)
		held[i] = nil
	}
}

// write applies a WRITE frame. descs is valid until the stream is read.
func (s *served) write(r *request, descs []byte) error {
	var imm transport.Imm
	var behind uint64
	var key transport.Key
	if r.hasImm {
		imm, behind = parseImm(descs[r.count*descLen:])
		key = parseDesc(descs[(r.count-1)*descLen:]).key
	}
	naks := s.resolve(r, descs, behind)
	defer func() { s.releaseHeld(s.held) }()
	immOK := r.hasImm && (len(naks) == 0 || s.vec[r.count-1] != nil)
	err := s.apply(r, descs, naks)
	s.landed(r.count) // a frame that was broken off has changed some
	if err != nil {
		if errors.Is(err, syscall.EFAULT) {
			s.rail.inspect(s.held)
		}
		return cutShort(err)
	}
	if immOK && s.rail.handler != nil {
		if err := s.rail.handler(key, imm); err != nil {
			n := response{typ: nak, code: codeOf(err), index: r.count - 1, seq: r.seq}
			if err := s.tell(n.append(nil)); err != nil {
				return err
			}
		}
	}
	s.due.Store(r.seq)
	s.unacked += r.bytes
	return nil
}

// apply puts a WRITE frame's bytes into their segments and tells of the slices that were
// refused.
func (s *served) apply(r *request, descs, naks []byte) error {
	switch {
	case s.peer != nil:
		if !r.hasImm { // whose bytes came in the frame before
			var err error
			if s.at, err = fetch(s.peer, s.vec, descs[r.count*descLen:], s.at); err != nil {
				return err
			}
		}
	case len(naks) == 0:
		for rest := s.vec; len(rest) > 0; {
			var err error
			if rest, err = s.in.fill(rest); err != nil {
				return err
			}
			s.landed(len(s.vec) - len(rest))
		}
		return nil
	default:
		if err := s.applyAround(r, descs); err != nil {
			return err
		}
	}
	if len(naks) == 0 {
		return nil
	}
	return s.tell(naks)
}

// landed calls the watchers of the slices before an index of s.vec, each once.
func (s *served) landed(before int) {
	for ; s.told < len(s.watched) && s.watched[s.told].index < before; s.told++ {
		w := s.watched[s.told]
		w.wrote(w.offset, w.n)
	}
}

// tell sends naks.
func (s *served) tell(naks []byte) error {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	return write(s.c, naks)
}

// applyAround applies the slices of a frame that were not refused and drops
// the bytes of the others.
func (s *served) applyAround(r *request, descs []byte) error {
	lengths := make([]int64, r.count) // descs does not outlive the first read
	for i := range lengths {
		lengths[i] = int64(parseDesc(descs[i*descLen:]).length)
	}
	for i, mem := range s.vec {
		var err error
		if mem == nil {
			err = s.in.discard(lengths[i])
		} else {
			err = s.in.scatter([][]byte{mem})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// flushAck acknowledges what is applied.
func (s *served) flushAck() error {
	s.unacked = 0
	return s.sendAck()
}

// sendAck sends the ack that is due, unless somebody is sending: who holds the
// lock calls sendAck after letting it go, and so finds what was due before
// TryLock failed here.
func (s *served) sendAck() error {
	for {
		seq := s.due.Load()
		if !s.wmu.TryLock() {
			return nil
		}
		if s.acked >= seq {
			s.wmu.Unlock()
			if s.due.Load() == seq {
				return nil
			}
			continue
		}
		var b [responseLen]byte
		a := response{typ: ack, seq: seq}
		err := write(s.c, a.append(b[:0]))
		s.acked = seq
		s.wmu.Unlock()
		if err != nil {
			return err
		}
	}
}

// farewell tells the initiator that it sent no frame. What it still sends is
// read for a moment: closing a socket with unread input would discard the
// farewell at the initiator too.
func (s *served) farewell() {
	r := response{typ: reset, code: codeProtocol}
	_ = s.c.SetDeadline(time.Now().Add(stallGrace))
	if s.wmu.TryLock() {
		err := write(s.c, r.append(nil))
		s.wmu.Unlock()
		if err == nil && s.c.CloseWrite() == nil {
			_, _ = io.CopyN(io.Discard, s.c, connection.QueueBytes)
		}
	}
}

// cutShort makes the end of input within a frame what it is.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
