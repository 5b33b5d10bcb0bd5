package node

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/connector"
	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/internal/clock"
	"kvferry/kvcache"
	"kvferry/kvtransfer"
	"kvferry/proto"
	"kvferry/transport/pacing"
)

// worker drives a node's connector.Core on the real clock: events from the
// control plane, the executor and the rails go into one inbox; one goroutine
// steps the core with them and performs its actions. One timer wakes it for
// whatever the core waits for, so a thousand streams cost one wake an iteration.
type worker struct {
	proto.UnimplementedWorkerServer

	cfg    Config
	log    *slog.Logger
	clk    clock.Clock
	core   *connector.Core
	pool   *kvcache.Pool
	tiers  *kvcache.Tiers
	bus    *pacing.Bus // that their copies cross; nil without tiers
	exec   engine.Executor
	copies sync.WaitGroup    // of blocks that the executor writes
	kv     *kvtransfer.Agent // moves KV
	peer   *peers            // asks other nodes
	slab   *kvcache.Slab
	checks kvChecks

	instance uint64 // tells this node from another that is given the same id

	steps chan launch // to the executor
	timer clock.Timer

	mu     sync.Mutex
	inbox  []inboxEntry
	notify chan struct{} // cap 1

	nextID atomic.Uint64 // of requests, the last one

	// Owned by the loop.
	live     map[uint64]*live
	sessions map[*session]struct{} // open
	writing  []*session            // with something to send
	spare    []inboxEntry
	events   []connector.Event
	loadAt   time.Duration // when the load was last told
	loads    uint64        // told
	progress uint64        // see proto.Load
	written  uint64        // of the executor's, as last told
	due      time.Duration // what the step under way should take
	untold   bool          // something has happened since
	drain    bool
	hurry    bool          // tell the load with this iteration
	idle     chan struct{} // closed once no request is left
	left     chan struct{} // closed once no session is left

	lent []lent // blocks of the last legs whose KV went to other nodes

	landed func(connector.Check) // tests: called before a part is checked
}

// loadEvery is how often the proxy is told of a changing load at most, unless a
// request ends: 100 messages a second are nothing beside the tokens'.
const loadEvery = 10 * time.Millisecond

// slotBytes and askedBytes bound the names of adapters in a load, which a heartbeat has too: those in
// slots, and those of requests that run, or wait. Names of some ten bytes are a thousand, as many as there are slots,
// and four hundred.
const slotBytes, askedBytes = 16 << 10, 6 << 10

// named are the first of these adapters, as many as there is room for.
func named(adapters []string, room int) []string {
	size := 0
	for i, name := range adapters {
		if size += len(name) + 4; size > room { // with tag and length
			return adapters[:i]
		}
	}
	return adapters
}

// lookEvery is how often the loop looks, during a step, whether the executor gets on, and
// tells the proxy. A step may take much longer than the GPU would: the KV that it writes
// is real bytes, which a machine with other work, or one that sees its memory for the
// first time, has for some 100 MB/s.
const lookEvery = 200 * time.Millisecond

// A live request is what the driver knows and the core does not.
type live struct {
	id     uint64
	sess   *session
	sid    uint64 // its ID on the session
	name   string // X-Request-Id
	prompt []kvcache.Token

	adapter, salt string // that its KV is of

	leg     handoff.Leg
	handoff handoff.Handoff
	reserve int                   // tokens beyond the prompt that it has blocks for
	use     engine.Use            // what is done with its KV
	remote  kvtransfer.Descriptor // the other side's blocks, if it has offered them
	moves   *kvtransfer.Transfer  // to or from these; nil if the other side moves
	out     *kvtransfer.Transfer  // to the node that takes the request over; nil if none does
	went    bool                  // all of it, and right as far as is known
	came    bool                  // told to go on
	grant   *kvtransfer.Grant     // the other side's way to our blocks; nil if it has none
	granted uint64                // its transfer ID
	want    map[kvtransfer.Part][]kvtransfer.Digests

	right    int                 // parts of our moves that were checked, and right
	digested kvtransfer.Digested // of the blocks that our move has read or a peer has written

	done  bool // prefill: all was computed, and written if this leg writes
	parts int  // checked
}

// An inboxEntry is an event for the core, or something for the loop to do first.
type inboxEntry struct {
	ev connector.Event
	do func() connector.Event // returns the event, or nil
}

type launch struct {
	step         *engine.Step
	layers, read bool
}

// post gives the core an event.
func (w *worker) post(ev connector.Event) { w.enqueue(inboxEntry{ev: ev}) }

// run has f run on the loop; the event it returns, if any, goes to the core.
func (w *worker) run(f func() connector.Event) { w.enqueue(inboxEntry{do: f}) }

func (w *worker) enqueue(e inboxEntry) {
	w.mu.Lock()
	w.inbox = append(w.inbox, e)
	w.mu.Unlock()
	select {
	case w.notify <- struct{}{}:
	default:
	}
}

// loop steps the core until ctx ends.
func (w *worker) loop(ctx context.Context) error {
	for {
		w.mu.Lock()
		batch := w.inbox
		w.inbox = w.spare[:0]
		w.mu.Unlock()
		w.events = w.events[:0]
		for _, e := range batch {
			if e.do != nil {
				e.ev = e.do()
			}
			if e.ev != nil {
				w.events = append(w.events, e.ev)
				w.count(e.ev)
			}
		}
		clear(batch)
		w.spare = batch

		a := w.core.Step(w.clk.Now(), w.events...)
		w.untold = w.untold || len(w.events) > 0 || a.Launch != nil || len(a.Tokens) > 0 || w.exec.Progress() != w.written
		a.Perform(w)
		w.send(len(a.Finished)+len(a.Prefilled)+len(a.Failed) > 0)
		if w.idle != nil && len(w.live) == 0 {
			close(w.idle)
			w.idle = nil
		}
		wake := a.Wake
		if at := w.loadAt + loadEvery; w.untold && (wake == 0 || at < wake) {
			wake = at
		}
		if at := w.clk.Now() + lookEvery; w.core.Computing() && (wake == 0 || at < wake) {
			wake = at
		}
		if wake > 0 {
			w.timer.Set(wake)
		} else {
			w.timer.Stop()
		}
		select {
		case <-w.notify:
		case <-w.timer.C():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// count notes events that say that the node gets on: a step, a layer, bytes. A request
// that comes or is cancelled says nothing of that.
func (w *worker) count(ev connector.Event) {
	switch ev.(type) {
	case connector.Submit, connector.Direct, connector.Migrate, connector.Resume, connector.Continue, connector.Cancel, connector.Produce, connector.Gone, connector.Lapsed:
	default:
		w.progress++
	}
}

// execute runs the executor: one step at a time, in order.
func (w *worker) execute(ctx context.Context) error {
	for {
		select {
		case l := <-w.steps:
			var layer func(int, time.Duration)
			if l.layers {
				layer = func(n int, at time.Duration) { w.post(connector.LayerDone{Layer: n, At: at}) }
			}
			var read func()
			if l.read {
				read = func() { w.post(connector.StepRead{}) }
			}
			end, tokens, err := w.exec.Run(ctx, l.step, layer, read)
			if err != nil {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				return fmt.Errorf("node %s: executor: %w", w.cfg.ID, err)
			}
			w.post(connector.StepDone{At: end, Tokens: tokens})
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Launch implements connector.Driver, as do the methods below that are exported. All return at once.
func (w *worker) Launch(step *engine.Step, layers, read bool) {
	most, token := w.cfg.Profile.Slowest()
	w.due = most + time.Duration(step.Tokens)*token + step.Extra
	w.steps <- launch{step, layers, read} // never blocks: the last one is done
}

// Copy waits as long as the modelled bus takes. The bytes of what comes to the GPU are the executor's
// to write meanwhile; they may be late on a machine that is too slow for that.
func (w *worker) Copy(c engine.Copy) {
	done := func(at time.Duration) { w.post(connector.Copied{ID: c.ID, At: at}) }
	if c.Way == engine.ToGPU {
		written := make(chan struct{})
		w.copies.Go(func() {
			defer close(written)
			w.exec.Load(c.Seq, c.Refs, c.First)
		})
		told := done
		done = func(at time.Duration) {
			w.copies.Go(func() {
				<-written
				if now := w.clk.Now(); now-at > engine.MaxLag {
					at = now
				}
				told(at)
			})
		}
	}
	ways := [...]pacing.Way{engine.ToHost: pacing.Up, engine.ToGPU: pacing.Down, engine.ToDisk: pacing.Disk, engine.FromDisk: pacing.Disk}
	w.bus.Copy(w.clk.Now(), c.Since, int64(c.Blocks*w.cfg.Profile.KVGeometry.BlockBytes()), ways[c.Way], done)
}

func (w *worker) Token(t connector.Token) {
	if l := w.live[t.ID]; l != nil {
		m := w.message(l.sess)
		m.Ids = append(m.Ids, l.sid)
		m.Tokens = append(m.Tokens, t.Token)
		m.Positions = append(m.Positions, uint32(t.Position))
	}
}

func (w *worker) Finished(f *connector.Finished) {
	if l := w.live[f.ID]; l != nil {
		m := w.message(l.sess)
		m.Finished = append(m.Finished, &proto.Finished{
			Id: l.sid, Reason: proto.FinishReason_FINISH_LENGTH, CachedTokens: uint32(f.Cached), Breakdown: breakdown(f.Breakdown),
		})
	}
}

func (w *worker) Answer(a connector.Answer) { w.peer.answer(a) }

// message is what the iteration has for a session so far.
func (w *worker) message(s *session) *proto.FromNode {
	if !s.writing {
		s.writing = true
		w.writing = append(w.writing, s)
		s.lock()
	}
	return s.pending
}

// send hands this iteration's messages over. The load goes with those that say
// how a request ended, so that the counts are complete when the last one has,
// and otherwise, when something has happened, every loadEvery: also if there is
// nothing else to say, for the proxy places by it.
func (w *worker) send(ended bool) {
	now := w.clk.Now()
	if ended || w.hurry || w.untold && now-w.loadAt >= loadEvery {
		w.loadAt, w.untold, w.hurry = now, false, false
		load := w.load()
		for s := range w.sessions {
			m := w.message(s)
			m.Load, m.LastSubmit = load, s.submitted
		}
	}
	for i, s := range w.writing {
		s.writing = false
		s.unlock()
		w.writing[i] = nil
	}
	w.writing = w.writing[:0]
}

func (w *worker) load() *proto.Load {
	l, t, ps, ts := w.core.Load(), w.core.Totals(), w.pool.Stats(), w.tiers.Stats()
	running, waiting := w.core.AskedAdapters()
	block := uint64(w.cfg.Profile.KVGeometry.BlockBytes())
	w.loads++
	w.written = w.exec.Progress()
	var due time.Duration
	if w.core.Computing() {
		due = max(w.due, time.Microsecond) // a profile may cost nothing, and 0 is no step
	}
	return &proto.Load{
		Seq: w.loads, Progress: w.progress + w.written, StepUs: proto.Microseconds(due), Waits: due == 0 && w.core.Requests() > 0,
		Running: uint32(l.Running), Waiting: uint32(l.Waiting), WaitingTokens: uint32(l.WaitingTokens),
		KvBlocksUsed: uint32(w.pool.Used()), KvBlocksTotal: uint32(w.pool.Total()),
		Room: uint32(l.Room), Preemptions: l.Preemptions, PrefixQueries: ps.PrefixQueries, PrefixHits: ps.PrefixHits,
		KvBytes: t.Bytes, KvBlocksChecked: t.Checked, KvBlocksBad: t.Bad,
		KvTransfers: t.Transfers, KvTransfersFailed: t.Failed, Draining: w.drain, LinkRate: w.linkRate(), LinkQueued: uint64(w.core.LinkQueued()),
		HostHits: ts.HostHits, DiskHits: ts.DiskHits, KvBytesLoaded: ts.Loaded * block, KvBytesStored: ts.Stored * block,
		DiskBytesRead: ts.Read * block, DiskBytesWritten: ts.Written * block,
		Adapters: named(l.Adapters, slotBytes), AdapterSlots: uint32(l.AdapterSlots), AdapterLoads: l.AdapterLoads, AdapterLoadUs: uint64(l.AdapterLoading.Microseconds()),
		RunningAdapters: named(running, askedBytes), WaitingAdapters: named(waiting, askedBytes),
	}
}

// freshLoad asks the loop for the load: that the loop answers is what a heartbeat
// says. The streams carry it too.
func (w *worker) freshLoad(ctx context.Context) (*proto.Load, error) {
	got := make(chan *proto.Load, 1)
	w.run(func() connector.Event {
		w.hurry = true
		got <- w.load()
		return nil
	})
	select {
	case l := <-got:
		return l, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (w *worker) Drop(id uint64) {
	l := w.live[id]
	if l == nil {
		return
	}
	delete(w.live, id)
	w.exec.Forget(id)
	w.peer.forget(l)
	if l.sess.requests[l.sid] == id {
		delete(l.sess.requests, l.sid)
	}
	l.sess.undirected.CompareAndDelete(l.sid, l)
	w.outOver(l)
	if l.moves != nil {
		if n := l.moves.Moves(); n > 0 {
			panic(fmt.Sprintf("node: request %s dropped with %d moves under way", l.name, n))
		}
		l.moves.Close(l.done && w.checks.landing)
	}
	if l.grant != nil {
		l.grant.Close()
	}
}

// startDrain refuses new requests from now on and says so; the channel it
// returns is closed when the last one has ended and its last words are on their
// way to the proxy.
func (w *worker) startDrain() <-chan struct{} {
	idle := make(chan struct{})
	w.run(func() connector.Event {
		w.drain, w.hurry, w.idle = true, true, idle
		return nil
	})
	return idle
}

// sessionsLeft returns a channel that is closed when the last session has ended:
// the proxy closes its own once it has all it waits for.
func (w *worker) sessionsLeft() <-chan struct{} {
	left := make(chan struct{})
	w.run(func() connector.Event {
		w.left = left
		w.checkLeft()
		return nil
	})
	return left
}

func (w *worker) checkLeft() {
	if w.left != nil && len(w.sessions) == 0 {
		close(w.left)
		w.left = nil
	}
}

func breakdown(b connector.Breakdown) *proto.Breakdown {
	us := proto.Microseconds
	return &proto.Breakdown{
		ProxyUs: us(b.Proxy), QueueUs: us(b.Queue), PrefillUs: us(b.Prefill), PostUs: us(b.Post), WireUs: us(b.Wire),
		LandUs: us(b.Land), FirstDecodeUs: us(b.FirstDecode), KvBytes: uint64(b.Bytes),
		KvBlocksChecked: uint32(b.Checked), KvBlocksBad: uint32(b.Bad), MigratedBytes: uint64(b.Migrated),
	}
}
