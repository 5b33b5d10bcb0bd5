package attempt

import (
	"container/heap"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"kvferry/connector"
	"kvferry/engine"
	"kvferry/engine/batching"
	"kvferry/kvcache"
)

// A world is three nodes that serve alone, a proxy that has requests go from one to another
// without a rest, and what goes wrong. Time is virtual. A node's KV is a word a token, which
// follows from all tokens up to it, so that a block that was given to others too soon, or was not
// moved, is found by who checks.
type world struct {
	t      *testing.T
	seed   uint64
	rng    *rand.Rand
	now    time.Duration
	agenda agenda
	n      int
	prof   *engine.Profile
	nodes  []*node
	jobs   map[uint64]*job
	faults faults
	tally  tally
}

// faults are the chances, out of 1000, of what can go wrong.
type faults struct{ move, check, cancel, death, hasty int }

// A tally says what the runs met.
type tally struct {
	Well, Migrated, Stayed, Retried, Cancelled, Late, Deaths, Preempted, Cached int
}

type node struct {
	w        *world
	name     string
	core     *connector.Core
	pool     *kvcache.Pool
	slab     map[kvcache.Ref][]uint64
	open     map[uint64]bool // transfers that may be written to
	dead     bool
	inbox    []connector.Event
	armed    time.Duration
	prompts  map[uint64][]kvcache.Token
	moves    map[uint64]int  // under way, by leg
	halted   map[uint64]bool // and to end
	windows  map[uint64]uint64
	to, from time.Duration // when the last message arrived there, and at the proxy
}

// A job is a request as the proxy has it. Legs have IDs of their own.
type job struct {
	id     uint64
	prompt []kvcache.Token
	want   int
	answer []kvcache.Token // that it must have
	got    []kvcache.Token

	attempt   *Attempt
	base      int // tokens that it had before this attempt
	leg       uint64
	at        *node
	target    *node
	targetLeg uint64
	known     int
	transfer  uint64
	deadline  time.Duration
	hasty     bool // its deadline is short
	over      bool
}

type moment struct {
	at time.Duration
	n  int
	do func()
}

type agenda []moment

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].n < a[j].n
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(moment)) }
func (a *agenda) Pop() any {
	m := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return m
}

func (w *world) later(after time.Duration, do func()) {
	w.n++
	heap.Push(&w.agenda, moment{w.now + after, w.n, do})
}

func (w *world) some(limit time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(limit)))
}

func (w *world) chance(n int) bool { return w.rng.IntN(1000) < n }

func (w *world) failf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d at %v: %s", w.seed, w.now, fmt.Sprintf(format, args...))
}

// word is the KV of the last of these tokens.
func words(tokens []kvcache.Token) []uint64 {
	all, s := make([]uint64, len(tokens)), uint64(1)
	for i, t := range tokens {
		s = (s ^ uint64(t+1)) * 0x9e3779b97f4a7c15
		s ^= s >> 29
		all[i] = s
	}
	return all
}

func newWorld(t *testing.T, seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 11))
	w := &world{t: t, seed: seed, rng: rng, jobs: map[uint64]*job{}}
	w.prof = &engine.Profile{
		Name: "small", Model: "small", Vocab: 26,
		KVGeometry:  kvcache.Geometry{Layers: 2, KVHeads: 1, HeadDim: 8, ElemBytes: 1, BlockTokens: 4},
		MaxModelLen: 96, MaxNumSeqs: 2 + rng.IntN(8), MaxBatchedTokens: 96, ChunkTokens: 16,
	}
	if seed%3 == 0 {
		w.prof.Costs.FrontEndOutMS = rng.Float64() * 3
	}
	w.prof.Costs.OutputDelayMS = rng.Float64() * 20
	if seed%4 > 0 {
		w.faults = faults{move: rng.IntN(80), check: rng.IntN(80), cancel: rng.IntN(150), death: rng.IntN(700), hasty: rng.IntN(100)}
	}
	for i := range 3 {
		n := &node{
			w: w, name: string(rune('a' + i)), slab: map[kvcache.Ref][]uint64{}, open: map[uint64]bool{}, prompts: map[uint64][]kvcache.Token{},
			moves: map[uint64]int{}, halted: map[uint64]bool{}, windows: map[uint64]uint64{},
		}
		n.pool = kvcache.NewPool(30+rng.IntN(40), 4, seed%2 == 0)
		cfg := batching.ConfigOf(w.prof, seed%5 == 0, n.pool)
		cfg.PrefixCaching = seed%2 == 0
		sched, err := batching.NewScheduler(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if n.core, err = connector.NewCore(connector.Config{Scheduler: sched, Pool: n.pool, Profile: w.prof, Transfers: uint64(1000 * i)}); err != nil {
			t.Fatal(err)
		}
		w.nodes = append(w.nodes, n)
	}
	return w
}

// tell brings an event to a node, in order.
func (n *node) tell(ev connector.Event) {
	n.to = max(n.to, n.w.now+n.w.some(2*time.Millisecond))
	n.w.later(n.to-n.w.now, func() { n.take(ev) })
}

func (n *node) take(ev connector.Event) {
	if n.dead {
		return
	}
	n.inbox = append(n.inbox, ev)
	if len(n.inbox) == 1 {
		n.w.later(0, n.step)
	}
}

func (n *node) step() {
	if n.dead {
		return
	}
	events := n.inbox
	n.inbox = nil
	a := n.core.Step(n.w.now, events...)
	a.Perform(driver{n})
	if at := a.Wake; at > 0 && (n.armed <= n.w.now || at < n.armed) {
		n.armed = at
		n.w.later(max(at-n.w.now, 0), func() {
			if n.armed == at {
				n.armed = 0
				n.step()
			}
		})
	}
}

// say brings what a node says to the proxy, in order.
func (n *node) say(do func()) {
	n.from = max(n.from, n.w.now+n.w.some(2*time.Millisecond))
	n.w.later(n.from-n.w.now, do)
}

type driver struct{ *node }

func (d driver) Launch(step *engine.Step, _, _ bool) {
	w := d.w
	var toks []kvcache.Token
	for _, k := range step.Works {
		kv := words(k.Seq.Tokens(0))
		for i := k.From; i < k.From+k.N; i++ {
			d.write(k.Seq.Table.Refs()[i/4], i%4, kv[i])
		}
		for i := range k.From { // what it reads
			if got := d.slab[k.Seq.Table.Refs()[i/4]]; got == nil || got[i%4] != kv[i] {
				w.failf("%s: leg %d computes with the KV of another token at %d", d.name, k.Seq.ID, i)
			}
		}
		if k.Sample {
			toks = append(toks, k.Seq.NextToken(w.prof.Vocab))
		}
	}
	w.later(time.Millisecond+w.some(10*time.Millisecond), func() { d.take(connector.StepDone{At: w.now, Tokens: toks}) })
}

func (n *node) write(r kvcache.Ref, i int, v uint64) {
	if n.slab[r] == nil {
		n.slab[r] = make([]uint64, 4)
	}
	n.slab[r][i] = v
}

func (d driver) Move(m *connector.Move) {
	w, move := d.w, *m
	var to *node
	for _, n := range w.nodes {
		if n.name == m.To {
			to = n
		}
	}
	l := w.byLeg(m.ID)
	transfer := l.transfer
	d.moves[m.ID]++
	w.later(w.some(40*time.Millisecond), func() {
		if d.dead {
			return
		}
		d.moves[move.ID]--
		ev := connector.Moved{ID: move.ID, Part: move.Part, Posted: w.now, At: w.now, Bytes: 1}
		switch {
		case d.halted[move.ID]:
			ev.Err = errors.New("halted")
		case to.dead || !to.open[transfer]:
			ev.Err = fmt.Errorf("%w: no window", connector.ErrWithdrawn)
		case w.chance(w.faults.move):
			ev.Err = errors.New("fault")
		}
		for _, p := range move.Pairs {
			if !d.pool.Valid(p.Local) {
				w.failf("%s: leg %d: block %v was given back under a move", d.name, move.ID, p.Local)
			}
			if ev.Err != nil {
				continue
			}
			if !to.pool.Valid(p.Remote) {
				w.failf("%s: block %v was given back under an open window", to.name, p.Remote)
			}
			for i := range 4 {
				if p.Index*4+i < move.Tokens && d.slab[p.Local] != nil {
					to.write(p.Remote, i, d.slab[p.Local][i])
				}
			}
		}
		d.take(ev)
	})
}

func (d driver) Check(c *connector.Check) {
	w, k := d.w, *c
	k.Refs = slices.Clone(c.Refs)
	w.later(w.some(3*time.Millisecond), func() {
		ev := connector.Checked{ID: k.ID, Part: k.Part, Blocks: len(k.Refs)}
		if k.Again {
			ev.Again, ev.Refs = true, k.Refs
			if w.chance(w.faults.check) {
				ev.Bad, ev.Err = 1, fmt.Errorf("%w: fault", connector.ErrChanged)
			}
			d.take(ev)
			return
		}
		for i, v := range words(d.prompts[k.ID]) {
			at := i/4 - k.First
			if at < 0 || d.dead {
				continue
			}
			if got := d.slab[k.Refs[at]]; got == nil || got[i%4] != v {
				w.failf("%s: leg %d has the KV of another token at %d of %d", d.name, k.ID, i, len(d.prompts[k.ID]))
			}
		}
		if w.chance(w.faults.check) {
			ev.Bad, ev.Err = 1, errors.New("fault")
		}
		d.take(ev)
	})
}

func (d driver) Close(id uint64) {
	d.w.later(d.w.some(2*time.Millisecond), func() {
		delete(d.open, d.windows[id])
		d.take(connector.Closed{ID: id})
	})
}

func (d driver) Halt(id uint64) { d.halted[id] = true }

func (d driver) Drop(id uint64) {
	if d.moves[id] > 0 {
		d.w.failf("%s: leg %d dropped with %d moves", d.name, id, d.moves[id])
	}
	delete(d.prompts, id)
}

func (d driver) Copy(engine.Copy)               {}
func (d driver) Prefilled(*connector.Prefilled) {}
func (d driver) Ask(connector.Ask)              {}
func (d driver) Answer(connector.Answer)        {}

func (d driver) Token(t connector.Token) {
	d.say(func() { d.w.token(t) })
}

func (d driver) Reserved(o *connector.Offer) {
	r := connector.Remote{Node: d.name, Transfer: o.Transfer, Tokens: o.Tokens}
	for i, b := range o.Blocks {
		r.Blocks = append(r.Blocks, kvcache.Entry{Index: o.First + i, Ref: b})
	}
	d.open[o.Transfer], d.windows[o.ID] = true, o.Transfer
	id := o.ID
	d.say(func() { d.w.reserved(id, r) })
}

func (d driver) Migrated(m *connector.Migrated) {
	kept := *m
	kept.Tokens = slices.Clone(m.Tokens)
	if m.Err == nil && (m.ID == 0 || d.moves[m.ID] > 0) {
		d.w.failf("%s: leg %d has moved with %d moves under way", d.name, m.ID, d.moves[m.ID])
	}
	d.say(func() { d.w.migrated(&kept) })
}

func (d driver) Finished(f *connector.Finished) {
	id := f.ID
	d.say(func() { d.w.finished(id) })
}

func (d driver) Failed(f *connector.Failed) {
	kept := *f
	d.say(func() { d.w.failed(&kept) })
}

// alone is what one node answers.
func alone(w *world, prompt []kvcache.Token, n int) (out []kvcache.Token) {
	s := engine.NewSequence(engine.Request{Prompt: prompt, MaxTokens: n})
	for range n {
		t := s.NextToken(w.prof.Vocab)
		s.Append(t)
		out = append(out, t)
	}
	return out
}

// left checks that nothing is left over on the nodes that live.
func (w *world) left() {
	for _, n := range w.nodes {
		w.tally.Preempted += int(n.core.Load().Preemptions)
		w.tally.Cached += int(n.pool.Stats().PrefixHits)
		if n.dead {
			continue
		}
		if n.core.Requests() > 0 || n.pool.Used() > 0 || len(n.prompts) > 0 || len(n.open) > 0 {
			w.failf("%s is left with %d requests, %d blocks, legs %v, windows %v", n.name, n.core.Requests(), n.pool.Used(), slices.Sorted(maps.Keys(n.prompts)), n.open)
		}
	}
}
