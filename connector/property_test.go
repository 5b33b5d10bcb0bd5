package connector

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/handoff/handofftest"
	"kvferry/kvcache"
)

// TestPair runs random load over a prefill and a decode node in virtual time,
// with a network, checks and a proxy that fail as often as the seed likes. In
// every run: each leg ends exactly once, by its deadline, unless it was
// cancelled; a request that ends well has exactly the tokens that one node alone
// would have drawn; nothing is decoded that was not checked; no block is given
// back while a window, a move or a check can still touch it; and nothing is left
// over at the end. Where clients leave and nothing else happens, nothing fails.
func TestPair(t *testing.T) {
	seeds := uint64(600)
	if testing.Short() {
		seeds = 60
	}
	var sum tally
	for seed := range seeds {
		p := newPair(t, seed)
		p.play()
		sum.add(p.tally)
	}
	t.Logf("%+v", sum)
	for name, n := range map[string]int{
		"well": sum.Well, "deadlines": sum.Deadlines, "transfers failed": sum.Broken, "bad blocks": sum.Bad, "cancelled": sum.Cancelled,
		"refused writes": sum.Refused, "holds given up": sum.Forgotten, "gone": sum.Gone, "preempted": sum.Preempted, "blocks changed later": sum.Changed,
		"went ahead and were told": sum.Directed, "and were not": sum.Undirected, "copied within a node": sum.Copies,
	} {
		if n == 0 {
			t.Errorf("no run met: %s", name)
		}
	}
}

// A tally says what the runs met.
type tally struct{ Well, Deadlines, Broken, Bad, Cancelled, Refused, Forgotten, Gone, Preempted, Changed, Directed, Undirected, Copies int }

func (t *tally) add(o tally) {
	t.Well += o.Well
	t.Deadlines += o.Deadlines
	t.Broken += o.Broken
	t.Bad += o.Bad
	t.Cancelled += o.Cancelled
	t.Refused += o.Refused
	t.Forgotten += o.Forgotten
	t.Gone += o.Gone
	t.Preempted += o.Preempted
	t.Changed += o.Changed
	t.Directed += o.Directed
	t.Copies += o.Copies
	t.Undirected += o.Undirected
}

// faults are the chances, out of 1000, of what can go wrong.
type faults struct{ move, check, cancel, gone, forget, repeat, hasty int }

type pair struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	w    *world
	hand handoff.Handoff
	prof *engine.Profile
	f    faults
	hold time.Duration
	p, d *side

	scheduler schedulerOf

	jobs  map[uint64]*job
	at    time.Duration // of the step being counted
	steps int           // in this instant
	tally tally
}

// A job is a request as the proxy sees it.
type job struct {
	id        uint64
	prompt    []kvcache.Token
	max       int
	answer    []kvcache.Token
	got       int
	cancelled bool
	failed    bool
	forgotten bool // the proxy crashes between the legs
	hasty     bool // its deadline is short
	ahead     bool // its prompt went ahead, and has not been given up
	to        Remote
	deadline  time.Duration
}

// newPair is a pair of package batching's schedulers, which cache prefixes in half of the runs, and
// have tiers below that in a quarter.
func newPair(t *testing.T, seed uint64) *pair {
	return newPairOf(t, seed, func(t *testing.T, prof *engine.Profile, pool *kvcache.Pool, caching bool) engine.Scheduler {
		if seed%4 == 0 {
			return newTiered(t, prof, pool, caching, kvcache.NewTiers(8, 16))
		}
		return newBatching(t, prof, pool, caching)
	})
}

// newPairOf is newPair with a scheduler of the caller's.
func newPairOf(t *testing.T, seed uint64, scheduler schedulerOf) *pair {
	rng := rand.New(rand.NewPCG(seed, 7))
	hands := handofftest.Every()
	x := &pair{t: t, seed: seed, scheduler: scheduler, rng: rng, w: &world{tb: t}, hand: hands[seed%uint64(len(hands))], jobs: map[uint64]*job{}}
	switch { // every fifth run is undisturbed, in every fifth clients leave and nothing else
	case seed%5 == 1:
		x.f.cancel = 100 + rng.IntN(400)
	case seed%5 > 1:
		x.f = faults{move: rng.IntN(60), check: rng.IntN(60), cancel: rng.IntN(300), gone: rng.IntN(60), forget: rng.IntN(100), repeat: rng.IntN(500), hasty: rng.IntN(300)}
	}
	x.hold = time.Minute
	if seed%5 > 2 {
		x.hold = time.Duration(100+rng.IntN(400)) * time.Millisecond
	}
	prof := smallProfile()
	prof.KVBytes = int64(prof.KVGeometry.BlockBytes()) * int64(8+rng.IntN(20))
	prof.MaxNumSeqs = 1 + rng.IntN(6)
	prof.Disagg.V0.LaunchGapMS = rng.Float64() * 10
	prof.Costs.OutputDelayMS = rng.Float64() * 20
	if seed%3 > 0 {
		prof.Costs.FrontEndInMS, prof.Costs.FrontEndOutMS = rng.Float64()*5, rng.Float64()*8
	}
	x.prof = prof
	x.p, x.d = x.side("p"), x.side("d")
	x.p.peer, x.d.peer = x.d, x.p
	return x
}

// smallProfile is a model of two layers whose token has 0.5 MB of KV and 0.25 MB
// of hidden state, so that costs a MB are milliseconds.
func smallProfile() *engine.Profile {
	p := &engine.Profile{
		Name: "small", Model: "small", Vocab: 26,
		KVGeometry:  kvcache.Geometry{Layers: 2, KVHeads: 1, HeadDim: 125_000, ElemBytes: 1, BlockTokens: 4, HiddenSize: 250_000},
		MaxModelLen: 32, MaxNumSeqs: 8, MaxBatchedTokens: 32, ChunkTokens: 8,
	}
	p.KVBytes = 16 * int64(p.KVGeometry.BlockBytes())
	p.Costs = engine.Costs{PrefillStepMS: 1, PrefillTokenMS: 1, DecodeStepMS: 10, RequestMS: 3}
	p.Disagg = engine.DisaggCosts{DecodeStepMS: 10, V0: engine.V0Costs{HopMS: 20, ReceiveMS: 2, ProducerMSPerMB: 1, ConsumerMSPerMB: 1, ExtractMSPerMB: 0.5, LaunchGapMS: 3}}
	return p
}

func (x *pair) side(name string) *side {
	pool := kvcache.NewPool(x.prof.Blocks(), x.prof.KVGeometry.BlockTokens, x.seed%2 == 0)
	sched := x.scheduler(x.t, x.prof, pool, x.seed%2 == 0)
	core, err := NewCore(Config{Scheduler: sched, Pool: pool, Profile: x.prof})
	if err != nil {
		x.t.Fatal(err)
	}
	return &side{x: x, name: name, core: core, pool: pool, legs: map[uint64]*leg{}, asks: map[uint64]uint64{}}
}

// checks returns the checks of a request: some for most seeds, none for every seventh.
func (x *pair) checks() Checks {
	if x.seed%7 == 0 {
		return Checks{}
	}
	return Checks{Hit: x.rng.IntN(2) == 0, First: x.rng.IntN(4) == 0, Last: x.rng.IntN(4) > 0, Every: x.rng.IntN(4)}
}

func (x *pair) failf(format string, args ...any) {
	x.t.Helper()
	x.t.Fatalf("seed %d, %v, at %v: %s", x.seed, x.hand, x.w.now, fmt.Sprintf(format, args...))
}

func (x *pair) chance(n int) bool { return x.rng.IntN(1000) < n }

func (x *pair) soon(limit time.Duration) time.Duration {
	return x.w.now + time.Duration(x.rng.Int64N(int64(limit)))
}

func (x *pair) play() {
	var at time.Duration
	stem := make([]kvcache.Token, 12)
	for id := uint64(1); id <= 40; id++ {
		at += time.Duration(x.rng.Int64N(int64(40 * time.Millisecond)))
		j := &job{id: id, prompt: slices.Clone(stem[:x.rng.IntN(12)]), max: 1 + x.rng.IntN(10), forgotten: x.chance(x.f.forget)}
		for range 1 + x.rng.IntN(10) {
			j.prompt = append(j.prompt, x.rng.Uint32N(uint32(x.prof.Vocab)))
		}
		x.jobs[id] = j
		life := time.Hour
		if x.chance(x.f.hasty) {
			life = time.Duration(x.rng.Int64N(int64(200 * time.Millisecond)))
			j.hasty = true
		}
		x.w.at(at, func() {
			j.deadline = x.w.now + life
			first := x.p
			if x.hand.First == handoff.DecodeLeg {
				first = x.d
			}
			first.submit(j, x.hand.First, Remote{})
			if j.ahead = x.hand.First == handoff.DecodeLeg && x.seed/10%2 == 0; j.ahead {
				x.p.submit(j, handoff.PrefillLeg, Remote{})
			}
		})
		if x.chance(x.f.cancel) {
			x.w.at(at+time.Duration(x.rng.Int64N(int64(300*time.Millisecond))), func() {
				j.cancelled = true
				x.tally.Cancelled++
				for _, s := range []*side{x.p, x.d} { // in any order
					x.w.at(x.soon(3*time.Millisecond), func() { s.take(Cancel{id}) })
				}
			})
		}
	}
	x.w.run()
	for _, s := range []*side{x.p, x.d} {
		for id, l := range s.legs {
			if !l.dropped || l.ends == 0 && !x.jobs[id].cancelled && !x.jobs[id].failed {
				x.failf("%s: request %d at the end: %+v, %+v", s.name, id, l, s.core.reqs[id])
			}
		}
		c := s.core
		if len(c.reqs)+len(c.transfers)+len(c.deadlines.h)+len(c.producer.queue)+s.pool.Used() > 0 || c.receiver.step != nil {
			x.failf("%s is left with %d requests, %d transfers, %d deadlines, %d copies, %d blocks", s.name,
				len(c.reqs), len(c.transfers), len(c.deadlines.h), len(c.producer.queue), s.pool.Used())
		}
		if c.LinkQueued() != 0 {
			x.failf("%s: %d bytes of KV are still to move at the end", s.name, c.LinkQueued())
		}
		if l := c.Load(); l.Running+l.Waiting+l.WaitingTokens != 0 {
			x.failf("%s: load at the end %+v", s.name, l)
		}
		x.tally.Preempted += int(c.Load().Preemptions)
		if x.f == (faults{cancel: x.f.cancel}) && c.Totals().Failed > 0 {
			x.failf("%s: %d transfers failed, undisturbed but for clients that left", s.name, c.Totals().Failed)
		}
	}
	for _, j := range x.jobs {
		whole := j.got == j.max
		switch {
		case whole && !j.failed:
			x.tally.Well++
		case !j.cancelled && !j.failed && !j.forgotten:
			x.failf("request %d has %d of %d tokens and no reason", j.id, j.got, j.max)
		}
		if j.failed && x.f == (faults{cancel: x.f.cancel}) {
			x.failf("request %d failed, undisturbed but for clients that left", j.id)
		}
		if x.f == (faults{}) && !whole {
			x.failf("request %d got %d of %d tokens, undisturbed", j.id, j.got, j.max)
		}
	}
}
