package transport

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/transport/account"
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
	order int // of Reach.standsBy
	acct  *account.Account

	addrs []string     // the peer's rails that it may go with, best first
	at    atomic.Int32 // in addrs

	express atomic.Pointer[path] // for what is to go past others; nil until something is
	bulk    *path                // of an express: whose it is

	inflight atomic.Int64 // bytes queued and posted
	up       atomic.Bool  // connected

	meterMu sync.Mutex
	meter   selection.Meter
	bound   selection.Express // of express
	flow    Flow              // of a Gauge, when it was last looked at; guarded by mu as well

	mu       sync.Mutex
	conn     *connection // nil unless connected
	queue    []*Slice
	posted   int           // slices on conn
	progress time.Duration // when one last completed, or the first was posted
	fencing  *connection   // the lost connection that the target was asked to end
	busy     bool          // a goroutine runs dial
	poked    bool          // and nothing has come through since
	closed   bool
	warm     bool          // dial although nothing is queued
	paired   bool          // was connected once: addrs[at] is the one
	backoff  time.Duration // before the next Dial; zero once a slice has completed
	tried    time.Duration // when the last Dial began
	tries    int           // since the last success
	lastErr  error         // of the last lost connection or failed Dial; nil once a slice has completed
	stop     chan struct{} // closed with the path
}

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
	return selection.Path{
		Up: p.up.Load(), Order: p.order, Inflight: p.inflight.Load(), Resting: resting, Strikes: strikes,
		Rate: p.meter.Estimate(now), Best: p.meter.Best(now), Latency: p.meter.Expected(now),
		Young: p.meter.Young() && p.flow.Window >= 0, Window: p.flow.Window, Probing: p.meter.Latency.Probing(),
	}
}

// windowed says that the path has no more under way than selection allows.
func (p *path) windowed() bool { return len(p.peer.paths) > 1 && p.e.cfg.Select == Affinity }

// take counts slices that are about to be enqueued.
func (p *path) take(run []*Slice) { p.inflight.Add(size(run)) }

// enqueue posts slices that were taken, now or once connected.
func (p *path) enqueue(run []*Slice) {
	if len(run) == 0 {
		return
	}
	ride(run)
	var gone []*Slice
	p.mu.Lock()
	p.queue = slices.Grow(p.queue, len(run))
	for _, s := range run {
		if s.batch.aborted.Load() {
			p.inflight.Add(-int64(len(s.Local)))
			gone = append(gone, s)
			continue
		}
		s.sink, s.Key = p, s.target.keys[p.addr()]
		if s.seg != nil {
			s.LocalKey = s.seg.reg.keys[p.rail]
		}
		p.queue = append(p.queue, s)
	}
	p.flush()
	c := p.conn
	p.mu.Unlock()
	drop(gone)
	c.carry()
}

// flush posts what the endpoint takes, and connects if there is none. The
// caller holds p.mu, and has the connection carry when it has let go of it.
func (p *path) flush() {
	for len(p.queue) > 0 && p.conn != nil {
		chunk := p.queue[:min(len(p.queue), postChunk)]
		now := p.e.cfg.Clock.Now()
		for _, s := range chunk {
			s.conn.Store(p.conn)
			s.posted = now
		}
		if p.posted == 0 {
			if p.conn.gauge != nil {
				p.peer.rouse()
			}
			p.progress = now
			p.meterMu.Lock()
			p.meter.Start(p.progress)
			p.meterMu.Unlock()
		}
		p.posted += len(chunk)
		n, err := p.conn.post(chunk)
		p.posted -= len(chunk) - n
		for _, s := range chunk[n:] {
			s.conn.Store(nil)
		}
		p.acct.Posted(n)
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
	tally(p.acct, run)
	now := p.e.cfg.Clock.Now()
	p.mu.Lock()
	if run[0].conn.Load() == p.conn { // a lost one's are not counted any more
		p.posted -= len(run)
		p.progress = now
		p.meterMu.Lock()
		if p.meter.Young() {
			p.gauge()
		}
		explained := time.Duration(0)
		if p.windowed() {
			explained = selection.Explained(p.meter.Latency.Least())
		}
		p.meter.Latency.Completed(now, run[len(run)-1].posted, explained, p.flow.RoundTrip)
		p.meter.Completed(now, n, p.posted == 0)
		p.bound.Completed(n)
		p.meterMu.Unlock()
	}
	p.backoff, p.lastErr = 0, nil
	var more *connection
	if len(p.queue) > 0 {
		p.flush()
		more = p.conn
	}
	p.mu.Unlock()
	more.carry()
	p.peer.dispatch()
	var again []*Slice
	for len(run) > 0 {
		b, n := run[0].batch, 1
		for n < len(run) && run[n].batch == b {
			n++
		}
		b.paths.Or(1 << p.index)
		for _, s := range run[:n] {
			switch {
			case !s.HasImm:
			case s.Imm.Asks():
				again = append(again, b.answered(false)...)
			case len(s.Local) > 0:
				b.arrive()
			}
		}
		b.applied(run[:n])
		run = run[n:]
		b.sliceDone(n)
	}
	p.peer.assign(again)
}

// again is called by a broken rail, for a slice that has ended: the batch must not count
// it twice. Tests under the race detector end there; otherwise the log has it, once a rail.
func (p *path) again(s *Slice) {
	text := fmt.Sprintf("transport: %s has completed a %v of %d bytes at offset %d twice", p.name(), s.Op, len(s.Local), s.Offset)
	if invariants {
		panic(text)
	}
	p.acct.Broken.Do(func() { p.e.cfg.Logger.Error(text, "rail", p.name(), "peer", p.addr()) })
}

// failed takes slices that the rail could not carry. Those that may be tried again
// stay with the path: its next connection fences this one, as its peer can over
// another path.
func (p *path) failed(run []*Slice, err error) {
	p.acct.Failed(len(run))
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
		case errors.Is(err, ErrDelivered) && s.Imm.Asks():
			b.answered(true)
		case s.HasImm && !s.Imm.Part() && s.tries > 0 && errors.Is(err, ErrBadKey):
			b.abort(Failed, because(ErrUnconfirmed, err), p.name(), p.addr())
		case errors.Is(err, ErrMemory):
			b.abort(Failed, s.taken(err), p.name(), p.addr())
		case final(err):
			b.abort(Failed, err, p.name(), p.addr())
		case p.e.cfg.Retries > 0 && s.tries >= p.e.cfg.Retries:
			b.abort(Failed, because(ErrUnreachable, err), p.name(), p.addr())
		default:
			n := b.retry(s)
			switch postponed, question := b.postpone(p, s, n); {
			case question != nil:
				again = append(again, question)
			case !postponed:
				p.acct.Retried(int64(len(n.Local)))
				again = append(again, n)
			}
			continue
		}
		b.sliceDone(1)
	}
	p.take(again)
	p.enqueue(again)
	p.mu.Lock()
	p.flush() // what is refused leaves room for others
	c := p.conn
	p.mu.Unlock()
	c.carry()
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
	dismount(p.queue)
	p.warm = p.warm || p.bulk == nil && len(p.peer.paths) > 1
	p.up.Store(false)
	p.meterMu.Lock()
	p.meter.Stop(why == PathStalled)
	p.meterMu.Unlock()
}

// purge takes an aborted batch's slices out of the queue.
func (p *path) purge(b *Batch) {
	p.mu.Lock()
	had := len(p.queue)
	p.queue = slices.DeleteFunc(p.queue, func(s *Slice) bool {
		if s.batch == b {
			p.inflight.Add(-int64(len(s.Local)))
		}
		return s.batch == b
	})
	n := had - len(p.queue)
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
		p.acct.Conns.Add(-1)
	}
	if x := p.express.Load(); x != nil {
		x.shut()
	}
}
