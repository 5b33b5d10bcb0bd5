package transport

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A path is a local rail and the address of a peer's rail: at most one
// connection, and the slices that wait for it.
//
//	         enqueue, or Open         Dial succeeds
//	idle ──────────────────► dialing ──────────────► connected
//	  ▲                      │  ▲   ▲                     │
//	  └── nothing is queued ─┘  └───┘ Dial fails:         │ a slice fails, or
//	                            back off, doubling        │ a batch is revoked
//	                         ▲                            │
//	                         └── old endpoint closed ◄────┘
//
// The old endpoint is closed before the next Dial, so that a rail can tell its
// peer which connections are dead before slices are sent again.
type path struct {
	e    *Engine
	id   pathID
	rail Rail
	addr string
	acct *account

	inflight atomic.Int64 // bytes queued and posted
	down     atomic.Bool  // the last Dial failed

	refs int         // open targets; guarded by e.mu
	idle *time.Timer // guarded by e.mu

	mu      sync.Mutex
	conn    *connection // nil unless connected
	queue   []*Slice
	busy    bool // a goroutine runs dial
	closed  bool
	warm    bool          // dial although nothing is queued
	backoff time.Duration // before the next Dial; zero once a slice has completed
	tried   time.Duration // when the last Dial began
	lastErr error         // of the last lost connection or failed Dial; nil once a slice has completed
	stop    chan struct{} // closed with the path
}

type pathID struct {
	rail int // index in Config.Rails
	addr string
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

// enqueue posts slices, now or once connected. All are of one batch.
func (p *path) enqueue(key Key, run []*Slice) {
	for _, s := range run {
		s.sink, s.Key = p, key
		if s.seg != nil {
			s.LocalKey = s.seg.keys[p.id.rail]
		}
	}
	b := run[0].batch
	p.mu.Lock()
	if b.aborted.Load() {
		p.mu.Unlock()
		b.sliceDone(len(run))
		return
	}
	p.inflight.Add(size(run))
	p.queue = append(p.queue, run...)
	p.flush()
	p.mu.Unlock()
}

// flush posts what the endpoint takes, and connects if there is none. The
// caller holds p.mu.
func (p *path) flush() {
	for len(p.queue) > 0 && p.conn != nil {
		chunk := p.queue[:min(len(p.queue), postChunk)]
		for _, s := range chunk {
			s.conn.Store(p.conn)
		}
		n, err := p.conn.ep.Post(chunk)
		for _, s := range chunk[n:] {
			s.conn.Store(nil)
		}
		p.acct.posted(n)
		clear(chunk[:n])
		p.queue = p.queue[n:]
		if err != nil {
			p.lastErr = err
			p.lose(p.conn)
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
	p.inflight.Add(-size(run))
	if err != nil {
		p.failed(run, err)
		return
	}
	p.acct.completed(run)
	p.mu.Lock()
	p.backoff, p.lastErr = 0, nil
	if len(p.queue) > 0 {
		p.flush()
	}
	p.mu.Unlock()
	for len(run) > 0 {
		b, n := run[0].batch, 1
		for n < len(run) && run[n].batch == b {
			n++
		}
		run = run[n:]
		b.sliceDone(n)
	}
}

func (p *path) failed(run []*Slice, err error) {
	p.acct.failed(len(run))
	if !errors.Is(err, ErrBadKey) && !errors.Is(err, ErrBounds) { // the endpoint is broken
		p.mu.Lock()
		if !errors.Is(err, net.ErrClosed) { // closed by lose, which knows a better reason
			p.lastErr = err
		}
		p.lose(run[0].conn.Load())
		p.mu.Unlock()
	}
	for _, s := range run {
		b := s.batch
		switch {
		case b.aborted.Load():
		case final(err):
			b.abort(Failed, err, p.rail.Name(), p.addr)
		case p.e.cfg.Retries > 0 && s.tries >= p.e.cfg.Retries:
			b.abort(Failed, because(ErrUnreachable, err), p.rail.Name(), p.addr)
		default:
			p.acct.retried()
			p.enqueue(s.Key, []*Slice{b.retry(s)})
			continue
		}
		b.sliceDone(1)
	}
}

// lose gives up the connection c, if it still is the path's. The caller holds
// p.mu.
func (p *path) lose(c *connection) {
	if c == nil || c != p.conn {
		return
	}
	if !p.e.spawn(func() { p.dial(c) }) {
		return // the engine is closing, and will close it
	}
	p.conn, p.busy = nil, true
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
// Once a Dial has failed it goes on until one succeeds or the path is closed:
// a dead rail gets no slices while others live, and must come back by itself.
func (p *path) dial(old *connection) {
	if old != nil {
		_ = old.ep.Close()
		p.acct.conns.Add(-1)
	}
	for {
		p.mu.Lock()
		if p.closed || len(p.queue) == 0 && !p.warm && !p.down.Load() {
			p.busy = false
			p.mu.Unlock()
			return
		}
		wait := p.tried + p.backoff - p.e.cfg.Clock.Now()
		p.mu.Unlock()
		if p.down.Load() {
			p.reroute()
		}
		if wait > 0 && !p.pause(wait) {
			continue // closed
		}

		p.mu.Lock()
		p.warm = false
		p.tried = p.e.cfg.Clock.Now()
		p.backoff = min(max(2*p.backoff, p.e.cfg.BackoffMin), p.e.cfg.BackoffMax)
		p.mu.Unlock()
		ctx, cancel := context.WithTimeout(p.e.ctx, p.e.cfg.DialTimeout)
		ep, err := p.rail.Dial(ctx, p.addr)
		cancel()
		p.acct.dialed(err)

		p.down.Store(err != nil)
		p.mu.Lock()
		if err != nil {
			p.lastErr = err
			p.mu.Unlock()
			continue
		}
		p.busy = false
		if p.closed {
			p.mu.Unlock()
			_ = ep.Close()
			return
		}
		p.conn = &connection{ep}
		p.acct.conns.Add(1)
		p.flush()
		p.mu.Unlock()
		return
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

// reroute moves the queue of a path that cannot connect to paths that can.
func (p *path) reroute() {
	p.mu.Lock()
	queue := p.queue
	var keep []*Slice
	type move struct {
		s  *Slice
		to route
	}
	var moves []move
	for _, s := range queue {
		if r := s.batch.t.choose(p); r.path != nil && !r.path.down.Load() {
			moves = append(moves, move{s, r})
		} else {
			keep = append(keep, s)
		}
	}
	p.queue = keep
	p.mu.Unlock()
	for _, m := range moves {
		p.inflight.Add(-int64(len(m.s.Local)))
		p.acct.retried()
		m.to.path.enqueue(m.to.key, []*Slice{m.s})
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

// revoke closes the connection if slices of b are posted on it: that is how
// the engine gets their memory back.
func (p *path) revoke(b *Batch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil && b.on(p.conn) {
		p.lose(p.conn)
	}
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
	p.mu.Unlock()
	if first {
		close(p.stop)
	}
	if c != nil {
		_ = c.ep.Close()
		p.acct.conns.Add(-1)
	}
}
