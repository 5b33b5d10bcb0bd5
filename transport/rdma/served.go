package rdma

import (
	"fmt"
	"net"
	"time"

	"kvferry/transport"
	"kvferry/transport/connection"
)

// A served link is the target's side of a connection. Its memory is read and
// written by the device alone; what there is to do here are keys and immediates.
type served struct {
	*link
	name transport.Name

	// Guarded by regs.mu:
	knows    map[transport.Key]struct{}      // keys the peer was told how to use
	revoking map[transport.Key]chan struct{} // those it has not given back
	known    bool                            // it was told of one, once
	idle     time.Time                       // since when it knows none

	recvs []recvQueue // by pair; the poller's alone

	guesses connection.Guesses // of frame
}

// recvQueue counts a pair's immediates.
type recvQueue struct {
	handled uint64 // immediates that the handler has seen
	told    uint64 // of them the peer knows, or is being told
	acks    int    // acknowledgements under way
	seq     uint64 // number of the next one's request
	refused []verdictOf
}

// verdictOf says why the immediate of a number was refused, until the peer is told.
type verdictOf struct {
	number uint64
	why    error
}

// maxAcks bounds the acknowledgements under way in a pair. They are cumulative,
// and the peer has a receive for each of as many as its queue is deep.
const maxAcks = 4

// acksMost is maxAcks, or less in a short send queue: a verdict goes before each at most.
func (s *served) acksMost() int { return max(1, min(maxAcks, s.depth/2)) }

func newServed(l *link, name transport.Name) *served {
	return &served{
		link: l, name: name, knows: make(map[transport.Key]struct{}), revoking: make(map[transport.Key]chan struct{}),
		recvs: make([]recvQueue, l.n), idle: time.Now(),
	}
}

// Cut implements connection.Conn.
func (s *served) Cut(why error) { s.fail(why) }

// Over implements connection.Conn.
func (s *served) Over() <-chan struct{} { return s.over }

// A guest is a control connection, from when it is accepted.
type guest struct {
	r      *Rail
	c      net.Conn
	since  time.Time
	served *served // nil until it has been welcomed; guarded by r.mu
}

// Standing implements connection.Guest. What a peer's device does to memory is not
// seen here: it counts as busy as long as it knows a key.
func (g *guest) Standing() connection.Standing {
	g.r.mu.Lock()
	s := g.served
	g.r.mu.Unlock()
	if s == nil {
		return connection.Standing{Idle: g.since}
	}
	g.r.regs.mu.RLock()
	defer g.r.regs.mu.RUnlock()
	return connection.Standing{Busy: len(s.knows)+len(s.revoking) > 0, Known: s.known, Idle: s.idle}
}

// Evict implements connection.Guest.
func (g *guest) Evict(why error) {
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	g.end(fmt.Errorf("%w: %w", transport.ErrUnreachable, why))
}

// end fails the connection, or closes what is none yet. The caller holds r.mu.
func (g *guest) end(err error) {
	if g.served == nil {
		_ = g.c.Close()
	} else {
		g.served.fail(err)
	}
}

// completed implements handler: a receive is an immediate, anything else an acknowledgement
// that the peer's device has. The rail's handler runs here, so one that is slow holds up
// this connection, and through the count that goes back its initiator.
func (s *served) completed(c *completion) error {
	if c.id&receiveID == 0 {
		s.recvs[int(c.id>>pairShift)%s.n].acks-- // those of verdicts come with it
		return nil
	}
	pair := int(c.id &^ receiveID)
	if pair >= s.n {
		return fmt.Errorf("%w: receive of queue pair %d of %d", transport.ErrProtocol, pair, s.n)
	}
	q := &s.recvs[pair]
	long := c.imm&1 != 0
	if c.imm != announcement(q.handled, long) {
		return fmt.Errorf("%w: immediate %d, not %d", transport.ErrProtocol, c.imm>>1, q.handled)
	}
	key, m := letter(s.letterFrom(pair, q.handled))
	if long {
		_, mem := s.long(pair, q.handled)
		key, m = longLetter(mem)
	}
	if !s.rail.regs.uses(key, s) {
		return fmt.Errorf("%w: an immediate with key %#x, which the peer was not told of", transport.ErrProtocol, key)
	}
	if s.rail.handler != nil {
		if err := s.rail.handler(key, m); err != nil {
			q.refused = append(q.refused, verdictOf{q.handled, err})
		}
	}
	q.handled++
	// The receive is there again before the peer may use it.
	if err := s.pairs.receive(pair, 1); err != nil {
		return fmt.Errorf("%w: posting a receive: %w", transport.ErrUnreachable, err)
	}
	return nil
}

// polled implements handler: it acknowledges what has been handled, in a write of
// no bytes whose immediate is the count. One that was refused is the last of its count.
func (s *served) polled() error {
	var wrs []workRequest
	for i := range s.recvs {
		q := &s.recvs[i]
		for q.told != q.handled && q.acks < s.acksMost() {
			q.told = q.handled
			if len(q.refused) > 0 { // up to there, and the rest with the next one
				v := q.refused[0]
				q.refused = q.refused[1:]
				q.told = v.number + 1
				mem, from, to := s.letterTo(i, v.number)
				putVerdict(mem, v.number, v.why)
				own, _ := s.scratch.keys()
				wrs = append(wrs, workRequest{
					op: opWrite, pair: uint16(i), id: requestID(i, q.seq), local: from, lkey: own, length: letterLen,
					remote: to, rkey: s.theirs.rkey,
				})
				q.seq++
			}
			q.acks++
			wrs = append(wrs, workRequest{
				op: opWriteImm, pair: uint16(i), id: requestID(i, q.seq), flags: flagSignaled,
				remote: s.theirs.addr, rkey: s.theirs.rkey, imm: uint32(q.told),
			})
			q.seq++
		}
	}
	if wrs == nil {
		return nil
	}
	if err := s.pairs.post(wrs); err != nil {
		return fmt.Errorf("%w: acknowledging: %w", transport.ErrUnreachable, err)
	}
	return nil
}

// frame implements handler.
func (s *served) frame(f *frame) error {
	switch f.typ {
	case frameResolve:
		if !s.rail.regs.resolve(f.key, s) {
			return s.guesses.Refused(f.key, time.Now())
		}
	case frameRevoked:
		if !s.rail.regs.revoked(f.key, s) {
			return fmt.Errorf("%w: key %#x given back, which was not asked for", transport.ErrProtocol, f.key)
		}
	default:
		return fmt.Errorf("%w: frame of type %d from an initiator", transport.ErrProtocol, f.typ)
	}
	return nil
}

// stop implements handler: what a target posts are acknowledgements, which nobody waits for.
func (s *served) stop(error) {}

// underWay implements handler.
func (s *served) underWay() bool { return false }

// flushed implements handler.
func (s *served) flushed(*completion) {}

// released implements handler: only the end of the queue pairs keeps the peer's
// requests out.
func (s *served) released() bool { return false }

// opName implements handler.
func (s *served) opName(uint64) string { return "acknowledgement" }

// ended implements handler: Deregister and Fence need not wait for this peer any more.
func (s *served) ended(error, uint64) {
	s.rail.regs.forget(s)
	s.rail.byName.Remove(s.name, s)
}
