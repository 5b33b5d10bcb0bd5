package transport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/transport/selection"
)

// A PathState is how a path between two rails stands.
type PathState string

const (
	PathUp      PathState = "up"      // connected
	PathDown    PathState = "down"    // its connection was lost, or cannot be made
	PathStalled PathState = "stalled" // it had slices and made no progress: its connection was given up
	PathResting PathState = "resting" // it carried wrong bytes, see Trail; up again when it is tried again
)

// A PathEvent is a change of a path's state.
type PathEvent struct {
	At    time.Duration // by the engine's clock
	Rail  string        // here
	Peer  string        // address of the peer's rail
	State PathState
	Err   error // why, if not up
}

// A path is a local rail and the address of a peer's rail: at most one
// connection, and the slices that wait for it.
//
//	         enqueue, or Open         Dial succeeds
//	idle ──────────────────► dialing ──────────────► connected
//	  ▲                      │  ▲   ▲                     │
//	  └── nothing is queued ─┘  └───┘ Dial fails:         │ a slice fails, a batch is
//	                            back off, doubling        │ revoked, or nothing
//	                         ▲                            │ completes for too long
//	                         └── old endpoint closed ◄────┘
//
// The old endpoint is closed before the next Dial, so that a rail can tell its
// peer which connections are dead before slices are sent again. A path to a peer
// with others is dialed again even if nothing is queued, and more often: it has to
// come back by itself, as it gets no slices while it is down.
type path struct {
	e     *Engine
	peer  *peer
	index int // in peer.paths
	rail  int // in Config.Rails
	acct  *account

	addrs []string     // the peer's rails that it may go with, best first
	at    atomic.Int32 // in addrs

	inflight atomic.Int64 // bytes queued and posted
	up       atomic.Bool  // connected

	meterMu sync.Mutex
	meter   selection.Meter

	mu       sync.Mutex
	conn     *connection // nil unless connected
	queue    []*Slice
	posted   int           // slices on conn
	progress time.Duration // when one last completed, or the first was posted
	fencing  *connection   // the lost connection that the target was asked to end
	busy     bool          // a goroutine runs dial
	closed   bool
	warm     bool          // dial although nothing is queued
	paired   bool          // was connected once: addrs[at] is the one
	backoff  time.Duration // before the next Dial; zero once a slice has completed
	tried    time.Duration // when the last Dial began
	tries    int           // since the last success
	lastErr  error         // of the last lost connection or failed Dial; nil once a slice has completed
	stop     chan struct{} // closed with the path
}

// A connection is one endpoint of a path.
type connection struct{ ep Endpoint }

// postChunk is how many slices are marked posted and offered at once. It
// bounds the marks that are taken back when a full queue takes only some.
const postChunk = 256

func size(run []*Slice) int64 {
	var n int64
	for _, s := range run {
		n += int64(len(s.Local))
	}
	return n
}

func (p *path) name() string { return p.e.cfg.Rails[p.rail].Name() }
func (p *path) addr() string { return p.addrs[p.at.Load()] }

// candidate is the path as selection sees it.
func (p *path) candidate(now time.Duration) selection.Path {
	resting, strikes := p.trusted(now)
	p.meterMu.Lock()
	defer p.meterMu.Unlock()
	return selection.Path{Up: p.up.Load(), Inflight: p.inflight.Load(), Rate: p.meter.Estimate(now), Resting: resting, Strikes: strikes}
}

// take counts slices that are about to be enqueued.
func (p *path) take(run []*Slice) { p.inflight.Add(size(run)) }

// enqueue posts slices that were taken, now or once connected.
func (p *path) enqueue(run []*Slice) {
	if len(run) == 0 {
		return
	}
	var gone []*Slice
	p.mu.Lock()
	for _, s := range run {
		if s.batch.aborted.Load() {
			p.inflight.Add(-int64(len(s.Local)))
			gone = append(gone, s)
			continue
		}
		s.sink, s.Key = p, s.batch.t.keys[p.addr()]
		if s.seg != nil {
			s.LocalKey = s.seg.reg.keys[p.rail]
		}
		p.queue = append(p.queue, s)
	}
	p.flush()
	p.mu.Unlock()
	drop(gone)
}

// flush posts what the endpoint takes, and connects if there is none. The
// caller holds p.mu.
func (p *path) flush() {
	for len(p.queue) > 0 && p.conn != nil {
		chunk := p.queue[:min(len(p.queue), postChunk)]
		for _, s := range chunk {
			s.conn.Store(p.conn)
		}
		if p.posted == 0 {
			p.progress = p.e.cfg.Clock.Now()
			p.meterMu.Lock()
			p.meter.Start(p.progress)
			p.meterMu.Unlock()
		}
		p.posted += len(chunk)
		n, err := p.conn.ep.Post(chunk)
		p.posted -= len(chunk) - n
		for _, s := range chunk[n:] {
			s.conn.Store(nil)
		}
		p.acct.posted(n)
		clear(chunk[:n])
		p.queue = p.queue[n:]
		if err != nil {
			p.lastErr = err
			p.lose(p.conn, PathDown, err)
			return
		}
		if n < len(chunk) {
			return
		}
	}
	if len(p.queue) == 0 {
		p.queue = nil
	} else {
		p.connect()
	}
}

// completed is called by the rail, for slices of this path.
func (p *path) completed(run []*Slice, err error) {
	n := size(run)
	p.inflight.Add(-n)
	if err != nil {
		p.failed(run, err)
		return
	}
	p.acct.completed(run)
	now := p.e.cfg.Clock.Now()
	p.mu.Lock()
	if run[0].conn.Load() == p.conn { // a lost one's are not counted any more
		p.posted -= len(run)
		p.progress = now
		p.meterMu.Lock()
		p.meter.Completed(now, n, p.posted == 0)
		p.meterMu.Unlock()
	}
	p.backoff, p.lastErr = 0, nil
	if len(p.queue) > 0 {
		p.flush()
	}
	p.mu.Unlock()
	p.peer.dispatch()
	for len(run) > 0 {
		b, n := run[0].batch, 1
		for n < len(run) && run[n].batch == b {
			n++
		}
		run = run[n:]
		b.paths.Or(1 << p.index)
		b.sliceDone(n)
	}
}

// again is called by a broken rail, for a slice that has ended: the batch must not count
// it twice. Tests under the race detector end there; otherwise the log has it, once a rail.
func (p *path) again(s *Slice) {
	text := fmt.Sprintf("transport: %s has completed a %v of %d bytes at offset %d twice", p.name(), s.Op, len(s.Local), s.Offset)
	if invariants {
		panic(text)
	}
	p.acct.broken.Do(func() { p.e.cfg.Logger.Error(text, "rail", p.name(), "peer", p.addr()) })
}

// failed takes slices that the rail could not carry. Those that may be tried again
// stay with the path: its next connection fences this one, as its peer can over
// another path.
func (p *path) failed(run []*Slice, err error) {
	p.acct.failed(len(run))
	broken := !Refused(err)
	p.mu.Lock()
	if c := run[0].conn.Load(); c == p.conn {
		p.posted -= len(run)
		p.progress = p.e.cfg.Clock.Now()
		if broken { // the endpoint is
			if !errors.Is(err, net.ErrClosed) { // closed by lose, which knows a better reason
				p.lastErr = err
			}
			p.lose(c, PathDown, p.lastErr)
		}
	}
	p.mu.Unlock()
	var again []*Slice
	for _, s := range run {
		b := s.batch
		switch {
		case b.aborted.Load():
		case s.HasImm && s.tries > 0 && errors.Is(err, ErrBadKey):
			b.abort(Failed, because(ErrUnconfirmed, err), p.name(), p.addr())
		case final(err):
			b.abort(Failed, err, p.name(), p.addr())
		case p.e.cfg.Retries > 0 && s.tries >= p.e.cfg.Retries:
			b.abort(Failed, because(ErrUnreachable, err), p.name(), p.addr())
		default:
			p.acct.retried(int64(len(s.Local)))
			again = append(again, b.retry(s))
			continue
		}
		b.sliceDone(1)
	}
	p.take(again)
	p.enqueue(again)
	p.peer.dispatch()
}

// lose gives up the connection c, if it still is the path's. The caller holds
// p.mu.
func (p *path) lose(c *connection, why PathState, err error) {
	if c == nil || c != p.conn {
		return
	}
	at := p.e.cfg.Clock.Now()
	if !p.e.spawn(func() {
		p.e.changed(p, at, why, err)
		p.dial(c)
	}) {
		return // the engine is closing, and will close it
	}
	p.conn, p.busy, p.posted = nil, true, 0
	p.warm = p.warm || len(p.peer.paths) > 1
	p.up.Store(false)
	p.meterMu.Lock()
	p.meter.Stop(why == PathStalled)
	p.meterMu.Unlock()
}

// checkProgress gives up a connection on which slices are posted and nothing has
// completed for too long: Config.StallTimeout, or four times what they should take.
func (p *path) checkProgress(now time.Duration) {
	c := p.candidate(now)
	limit := p.e.cfg.StallTimeout
	if c.Rate > 0 {
		p.meterMu.Lock()
		expected := 4 * float64(c.Inflight) / p.meter.Rate()
		p.meterMu.Unlock()
		limit = max(limit, min(time.Duration(expected*1e9), 10*limit))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil && p.posted > 0 && now-p.progress > limit {
		p.lastErr = fmt.Errorf("%w: no progress for %v with %d slices, %d bytes under way",
			ErrUnreachable, (now - p.progress).Round(time.Millisecond), p.posted, c.Inflight)
		p.lose(p.conn, PathStalled, p.lastErr)
	}
}

// connect starts dialing unless that is under way. The caller holds p.mu.
func (p *path) connect() {
	if p.conn == nil && !p.busy && !p.closed && p.e.spawn(func() { p.dial(nil) }) {
		p.busy = true
	}
}

// prepare connects ahead of the first slice.
func (p *path) prepare() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		p.warm = true
		p.connect()
	}
}

// dial closes the old connection and makes a new one, if slices wait for it.
// Once a Dial has failed it goes on until one succeeds or the path is closed.
func (p *path) dial(old *connection) {
	if old != nil {
		_ = old.ep.Close()
		p.acct.conns.Add(-1)
		p.peer.evacuate(p)
	}
	for failing := false; ; failing = true {
		p.mu.Lock()
		if p.closed || len(p.queue) == 0 && !p.warm && !failing {
			p.busy = false
			p.mu.Unlock()
			return
		}
		backoff, patience := p.backoff, p.e.cfg.DialTimeout
		if p.peer.otherUp(p) {
			// A link that is back is noticed by the next attempt, so there are many,
			// and they are short: a lost SYN is sent again only after a second.
			backoff = min(backoff, p.e.cfg.ProbeInterval)
			if p.tries%8 != 7 {
				patience = min(patience, 3*p.e.cfg.ProbeInterval)
			}
		}
		wait := p.tried + backoff - p.e.cfg.Clock.Now()
		p.mu.Unlock()
		if wait > 0 && !p.pause(wait) {
			continue // closed
		}

		p.mu.Lock()
		p.warm = false
		p.tried = p.e.cfg.Clock.Now()
		p.backoff = min(max(2*p.backoff, p.e.cfg.BackoffMin), p.e.cfg.BackoffMax)
		p.tries++
		p.mu.Unlock()
		ctx, cancel := context.WithTimeout(p.e.ctx, patience)
		ep, err := p.e.cfg.Rails[p.rail].Dial(ctx, p.addr())
		cancel()
		p.acct.dialed(err)

		if err != nil {
			p.mu.Lock()
			p.lastErr = err
			p.rotate()
			first := p.tries == 1 && !p.paired
			p.mu.Unlock()
			if first {
				p.e.changed(p, p.e.cfg.Clock.Now(), PathDown, err)
			}
			p.peer.evacuate(p)
			continue
		}
		p.mu.Lock()
		p.busy = false
		if p.closed {
			p.mu.Unlock()
			_ = ep.Close()
			return
		}
		p.conn = &connection{ep}
		p.posted, p.paired, p.tries = 0, true, 0
		for _, s := range p.queue { // the rail has told the target which connections are dead
			s.stale = nil
		}
		p.acct.conns.Add(1)
		p.up.Store(true)
		p.flush()
		p.mu.Unlock()
		p.e.changed(p, p.e.cfg.Clock.Now(), PathUp, nil)
		p.peer.connected(p)
		return
	}
}

// rotate goes on to the next of the peer's rails that the path may go with and that
// no connected path has, as long as this one has never been connected: every other
// time if the peer is there, as other paths show, and else every fourth time. The
// caller holds p.mu.
func (p *path) rotate() {
	every := 4
	if p.peer.otherUp(p) {
		every = 2
	}
	if p.paired || len(p.addrs) == 1 || p.tries%every != 0 {
		return
	}
	for range p.addrs {
		p.at.Store((p.at.Load() + 1) % int32(len(p.addrs)))
		if !slices.ContainsFunc(p.peer.paths, func(q *path) bool { return q != p && q.up.Load() && q.addr() == p.addr() }) {
			break
		}
	}
	for _, s := range p.queue {
		s.Key = s.batch.t.keys[p.addr()]
	}
}

// pause waits up to a quarter longer than d, so that the paths of many nodes
// do not return to a restarted peer together. It is false if the path closed.
func (p *path) pause(d time.Duration) bool {
	t := time.NewTimer(d + rand.N(d/4+1))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.stop:
		return false
	}
}

// purge takes an aborted batch's slices out of the queue.
func (p *path) purge(b *Batch) {
	p.mu.Lock()
	if len(p.queue) == 0 {
		p.mu.Unlock()
		return
	}
	n := 0
	var keep []*Slice
	for _, s := range p.queue {
		if s.batch == b {
			n++
			p.inflight.Add(-int64(len(s.Local)))
		} else {
			keep = append(keep, s)
		}
	}
	p.queue = keep
	p.mu.Unlock()
	if n > 0 {
		b.sliceDone(n)
	}
}

// revoke closes the connection if slices of b are posted on it: that is how the
// engine gets their memory back. A connection on which something has completed
// within patience carries others' slices too, and is left alone: revoke returns how
// long it takes at least until it would not be.
func (p *path) revoke(b *Batch, patience time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil || !b.on(p.conn) {
		return 0
	}
	if left := p.progress + patience - p.e.cfg.Clock.Now(); patience > 0 && left > 0 {
		return left
	}
	p.lose(p.conn, PathDown, fmt.Errorf("its slices were revoked: %w", b.reason()))
	return 0
}

func (p *path) lastError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lastErr
}

// shut closes the path. Its queue is empty: nothing has it open, or all
// batches are aborted.
func (p *path) shut() {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	c := p.conn
	p.conn = nil
	p.up.Store(false)
	p.mu.Unlock()
	if first {
		close(p.stop)
	}
	if c != nil {
		_ = c.ep.Close()
		p.acct.conns.Add(-1)
	}
}
