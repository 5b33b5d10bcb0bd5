package transport

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/transport/account"
	"kvferry/transport/immediate"
	"kvferry/transport/pacing"
	"kvferry/transport/selection"
)

// An Engine moves batches over its rails. Its methods, and those of its segments,
// windows, targets and batches, may be called from any goroutine, several at once; Close
// beside all others. None waits for a peer but the Close methods of segments, windows
// and the engine, and those not longer than deadlines and rails allow.
//
// After Close nothing starts: Register, RegisterLocal, Open and Segment.Window return
// net.ErrClosed, and a batch of Submit has failed with it. What tells of things goes on:
// Rails, Info, Bytes, and all of a Batch that has ended.
type Engine struct {
	cfg    Config
	accts  []account.Account // one for each rail
	outbox *immediate.Outbox
	inbox  immediate.Inbox
	pacer  *pacing.Pacer              // nil without Config.Link
	segs   atomic.Pointer[[]*Segment] // smallest first, of those the latest
	names  sync.Map                   // keyAt -> *registration: what the key is of

	ctx    context.Context // of dials; canceled by Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // the engine's goroutines
	stop   chan struct{}  // ends the pacer

	recordsMu sync.Mutex
	records   map[recordKey]*selection.Record // of paths that are not clear
	blamed    atomic.Int64                    // how many

	watched atomic.Int64 // peers whose paths are looked at often

	mu      sync.Mutex
	peers   map[string]*peer
	batches map[*Batch]struct{} // under way
	drained *sync.Cond          // batches is empty
	closed  bool                // no new batches
	sealed  bool                // no new goroutines
	gone    chan struct{}       // closed when Close has done its work
	err     error               // of Close
}

// New starts an engine over cfg.Rails, which it then owns: they are closed with
// the engine, and at once if New fails on a valid configuration. They have not been used
// before. A configuration that is not valid is a [config.Invalid], and its rails stay the
// caller's.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	e := &Engine{
		cfg:     cfg,
		accts:   make([]account.Account, len(cfg.Rails)),
		outbox:  immediate.NewOutbox(immediate.Random()),
		inbox:   immediate.Inbox{HasRoom: cfg.HasRoom},
		stop:    make(chan struct{}),
		records: make(map[recordKey]*selection.Record),
		peers:   make(map[string]*peer),
		batches: make(map[*Batch]struct{}),
		gone:    make(chan struct{}),
	}
	e.segs.Store(new([]*Segment))
	e.drained = sync.NewCond(&e.mu)
	e.ctx, e.cancel = context.WithCancel(context.Background())
	if cfg.Link != nil {
		var err error
		if e.pacer, err = pacing.New(*cfg.Link, cfg.Ledger, cfg.Clock, cfg.Rails); err != nil {
			return nil, errors.Join(fmt.Errorf("transport: %w", err), e.Close())
		}
		e.wg.Go(func() { e.pacer.Run(e.stop) })
	}
	for i, r := range cfg.Rails {
		r.HandleImmediates(func(key Key, imm Imm) error { return e.receive(keyAt{i, key}, imm) })
	}
	return e, nil
}

// receive delivers a peer's immediate, unless it came before, or its key has gone.
// One without a source is a fence: it asks for a connection of the peer's, over any
// rail, to be ended. A question is answered by the error.
func (e *Engine) receive(at keyAt, imm Imm) error {
	if imm.Source == 0 {
		for _, r := range e.cfg.Rails {
			r.Fence(fenced(&imm))
		}
		return nil
	}
	of, ok := e.names.Load(at)
	switch {
	case !ok && imm.Asks():
		return ErrBadKey
	case !ok:
		return nil
	case imm.Asks() && e.inbox.Has(imm):
		e.accts[at.rail].ImmRepeats.Add(1)
		return ErrDelivered
	case imm.Asks():
		return nil
	}
	g := of.(*registration)
	switch {
	case imm.Text != "":
		return e.message(at, g.name, imm)
	case !g.access.May(Write):
		return ErrAccess
	}
	if !e.inbox.Accept(imm) {
		e.accts[at.rail].ImmRepeats.Add(1)
		return nil
	}
	e.accts[at.rail].ImmIn.Add(1)
	if f := e.cfg.OnImmediate; f != nil {
		f(Immediate{Value: imm.Value, Segment: g.name, Rail: e.cfg.Rails[at.rail].Name()})
	}
	return nil
}

// enter puts a batch under way and starts its deadline.
func (e *Engine) enter(b *Batch, timeout time.Duration) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.batches[b] = struct{}{}
	b.mu.Lock()
	b.deadline = b.posted + timeout
	b.timer = time.AfterFunc(timeout, b.expire)
	b.mu.Unlock()
	return true
}

func (e *Engine) leave(b *Batch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.batches, b)
	if len(e.batches) == 0 {
		e.drained.Broadcast()
	}
}

// spawn runs f on a goroutine that Close waits for, unless it is too late.
func (e *Engine) spawn(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sealed {
		return false
	}
	e.wg.Go(f)
	return true
}

// unrefLocked drops a reference; an unused peer's paths are closed after a while.
func (e *Engine) unrefLocked(g *peer) {
	if g.refs--; g.refs > 0 || e.closed {
		return
	}
	g.idle = time.AfterFunc(e.cfg.IdleTimeout, func() {
		e.mu.Lock()
		unused := g.refs == 0 && !e.closed && e.peers[g.id] == g
		if unused {
			delete(e.peers, g.id)
			e.wg.Go(g.shut)
		}
		e.mu.Unlock()
	})
}

// changed tells of a path's new state.
func (e *Engine) changed(p *path, at time.Duration, state PathState, err error) {
	if p.bulk != nil { // the path is as it was
		e.cfg.Logger.Debug("transport: express connection is "+string(state), "rail", p.name(), "peer", p.addr(), "err", err)
		return
	}
	switch state {
	case PathUp:
		e.cfg.Logger.Debug("transport: path is up", "rail", p.name(), "peer", p.addr())
	case PathResting:
		e.cfg.Logger.Warn("transport: path is resting", "rail", p.name(), "peer", p.addr(), "err", err)
	default:
		e.accts[p.rail].Downs.Add(1)
		e.cfg.Logger.Info("transport: path is "+string(state), "rail", p.name(), "peer", p.addr(), "err", err)
	}
	if f := e.cfg.OnPath; f != nil {
		f(PathEvent{At: at, Rail: p.name(), Peer: p.addr(), State: state, Err: err})
	}
}

// Close ends every batch with net.ErrClosed, closes the rails, and returns when
// all of the engine's and the rails' goroutines are gone: no function of the Config runs
// any more, and all memory is its owner's, segments that were not closed too. It must not
// be called from OnDone, OnImmediate or OnPath. Closing again waits likewise and returns
// the same.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		<-e.gone
		return e.err
	}
	e.closed = true
	batches, peers := slices.Collect(maps.Keys(e.batches)), slices.Collect(maps.Values(e.peers))
	for _, g := range peers {
		if g.idle != nil {
			g.idle.Stop()
		}
	}
	e.mu.Unlock()

	e.cancel()
	for _, b := range batches {
		b.abort(Failed, net.ErrClosed, "", "")
	}
	for _, g := range peers {
		g.shut()
	}
	e.mu.Lock()
	for len(e.batches) > 0 {
		e.drained.Wait()
	}
	e.sealed = true
	e.mu.Unlock()
	close(e.stop)
	e.wg.Wait()
	var errs []error
	for _, r := range e.cfg.Rails {
		if err := r.Close(); err != nil {
			errs = append(errs, &Error{Op: "close", Rail: r.Name(), Err: err})
		}
	}
	e.err = errors.Join(errs...)
	close(e.gone)
	return e.err
}
