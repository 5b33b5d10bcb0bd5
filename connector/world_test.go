package connector

import (
	"container/heap"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/kvcache"
)

// A world is virtual time: the least discrete-event loop that can drive cores.
type world struct {
	now    time.Duration
	events eventHeap
	seq    int
	tokens map[uint64][]time.Duration
	tb     testing.TB
}

type event struct {
	at  time.Duration
	seq int
	do  func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

func (w *world) at(t time.Duration, do func()) {
	w.seq++
	heap.Push(&w.events, event{t, w.seq, do})
}

func (w *world) run() {
	for len(w.events) > 0 {
		ev := heap.Pop(&w.events).(event)
		if ev.at < w.now {
			w.tb.Fatalf("time runs backwards: %v after %v", ev.at, w.now)
		}
		w.now = ev.at
		ev.do()
	}
}

// host is one node in the world.
type host struct {
	w     *world
	core  *Core
	cost  *engine.CostModel
	prof  *engine.Profile
	peer  *host // the other one of a pair
	link  engine.LinkCost
	busy  time.Duration
	imms  map[uint64]uint64 // our transfer -> request
	wakes map[time.Duration]bool
	onPre func(Prefilled)
	legs  map[uint64]Breakdown // by request, of the legs that ended
	onRes func(Offer)
}

func newHost(w *world, prof *engine.Profile, policy engine.Policy, disagg bool) *host {
	pool := kvcache.NewPool(prof.Blocks(), prof.KVGeometry.BlockTokens, false)
	cfg := engine.ConfigOf(prof, policy, pool)
	costs := prof.Costs
	if disagg {
		costs = prof.DisaggEngine()
	}
	cfg.OutputDelay = millis(costs.OutputDelayMS)
	sched, err := engine.NewScheduler(cfg)
	if err != nil {
		w.tb.Fatal(err)
	}
	core, err := NewCore(Config{Scheduler: sched, Pool: pool, Profile: prof, Disagg: disagg, HoldTimeout: time.Minute})
	if err != nil {
		w.tb.Fatal(err)
	}
	return &host{w: w, core: core, cost: engine.NewCostModel(costs), prof: prof, imms: map[uint64]uint64{}, wakes: map[time.Duration]bool{}, legs: map[uint64]Breakdown{}}
}

func (h *host) step(evs ...Event) {
	a := h.core.Step(h.w.now, evs...)
	for _, f := range a.Failed {
		h.w.tb.Fatalf("request %d failed: %v", f.ID, f.Err)
	}
	for _, t := range a.Tokens {
		h.w.tokens[t.ID] = append(h.w.tokens[t.ID], h.w.now)
		if got := len(h.w.tokens[t.ID]); t.Position != got-1 {
			h.w.tb.Fatalf("request %d: position %d is its %d-th token", t.ID, t.Position, got)
		}
	}
	if s := a.Launch; s != nil {
		end := s.At + h.cost.Run(s)
		var toks []kvcache.Token
		for _, wk := range s.Works {
			if wk.Sample {
				toks = append(toks, wk.Seq.NextToken(h.prof.Vocab))
			}
		}
		if a.Layers {
			n := h.prof.KVGeometry.Layers
			for l := range n {
				at := s.At + (end-s.At)*time.Duration(l+1)/time.Duration(n)
				h.w.at(max(at, h.w.now), func() { h.step(LayerDone{Layer: l, At: at}) })
			}
		}
		h.w.at(max(end, h.w.now), func() { h.step(StepDone{At: end, Tokens: toks}) })
	}
	for _, m := range a.Moves {
		bytes := int64(0)
		prompt := h.core.reqs[m.ID].Prompt
		g := h.prof.KVGeometry
		switch {
		case m.Part == PartAll:
			bytes = int64(len(prompt) * g.TokenBytes())
		case m.Write:
			bytes = int64(len(prompt) * g.TokenBytes() / g.Layers)
		case m.Part == TensorHidden:
			bytes = int64(len(prompt) * g.HiddenTokenBytes())
		default:
			bytes = int64(len(prompt) * g.TokenBytes() / 2)
		}
		posted := h.w.now
		h.busy = max(h.busy, posted) + millis(float64(bytes)/1e6*h.link.MSPerMB)
		done := h.busy
		h.w.at(done, func() {
			if m.Write {
				h.peer.step(Arrived{ID: m.ID, Part: m.Part, Token: m.Token, At: done})
			}
			h.step(Moved{ID: m.ID, Part: m.Part, Bytes: bytes, Posted: posted, At: done})
		})
	}
	for _, c := range a.Checks {
		h.w.at(h.w.now, func() { h.step(Checked{ID: c.ID, Part: c.Part, Blocks: len(c.Refs)}) })
	}
	for _, id := range a.Close {
		h.w.at(h.w.now, func() { h.step(Closed{ID: id}) })
	}
	for _, ask := range a.Ask {
		h.w.at(h.w.now, func() {
			if ask.Release {
				h.peer.step(Release{ask.Transfer})
			} else {
				h.imms[ask.Transfer] = ask.ID
				h.peer.step(Produce{ask.Transfer})
			}
		})
	}
	for _, ans := range a.Answer {
		if ans.Gone {
			h.w.tb.Fatalf("transfer %d gone", ans.Transfer)
		}
		h.w.at(h.w.now, func() { h.peer.step(Produced{ID: h.peer.imms[ans.Transfer], Tensor: ans.Tensor}) })
	}
	for _, f := range a.Finished {
		h.legs[f.ID] = f.Breakdown
	}
	for _, p := range a.Prefilled {
		h.legs[p.ID] = p.Breakdown
		if h.onPre != nil {
			h.onPre(p)
		}
	}
	for _, o := range a.Reserved {
		h.onRes(o)
	}
	if a.Wake > 0 && !h.wakes[a.Wake] {
		h.wakes[a.Wake] = true
		h.w.at(max(a.Wake, h.w.now), func() { delete(h.wakes, a.Wake); h.step() })
	}
}

// A cluster is the nodes of a setting of the bench.
type cluster struct {
	hosts  []*host
	submit func(i int) // prompt i, now
}

func newCluster(w *world, prof *engine.Profile, setting string, prompts [][]kvcache.Token) *cluster {
	const deadline = 10 * time.Minute
	c := &cluster{}
	switch setting {
	case "nondisagg", "chunked":
		policy := engine.PrefillFirst
		if setting == "chunked" {
			policy = engine.Chunked
		}
		h := newHost(w, prof, policy, false)
		c.hosts = []*host{h}
		c.submit = func(i int) {
			h.step(Submit{ID: uint64(i + 1), Leg: Full, Prompt: prompts[i], MaxTokens: 6, Deadline: w.now + deadline})
		}
	default:
		hand, link := V0, setting
		switch setting {
		case "pull":
			hand, link = Pull, "tcp"
		case "layerwise":
			hand, link = Layerwise, "tcp"
		}
		p, d := newHost(w, prof, engine.PrefillFirst, true), newHost(w, prof, engine.PrefillFirst, true)
		p.peer, d.peer = d, p
		p.link, d.link = prof.Links[link], prof.Links[link]
		c.hosts = []*host{p, d}
		blocks := func(o Offer) (bs []Block) {
			for i, b := range o.Blocks {
				bs = append(bs, Block{Index: o.First + i, Ref: b})
			}
			return bs
		}
		if hand == Layerwise {
			c.submit = func(i int) {
				d.step(Submit{ID: uint64(i + 1), Leg: DecodeLeg, Handoff: hand, Prompt: prompts[i], MaxTokens: 6, Deadline: w.now + deadline})
			}
			d.onRes = func(o Offer) {
				r := Remote{Node: "d", Transfer: o.Transfer, Blocks: blocks(o), Tokens: o.Tokens}
				w.at(w.now, func() {
					p.step(Submit{ID: o.ID, Leg: PrefillLeg, Handoff: hand, Prompt: prompts[o.ID-1], MaxTokens: 1, Deadline: w.now + deadline, Remote: r})
				})
			}
		} else {
			c.submit = func(i int) {
				p.step(Submit{ID: uint64(i + 1), Leg: PrefillLeg, Handoff: hand, Prompt: prompts[i], MaxTokens: 1, Deadline: w.now + deadline})
			}
			p.onPre = func(pf Prefilled) {
				r := Remote{Node: "p", Transfer: pf.Offer.Transfer, Blocks: blocks(*pf.Offer), Tokens: pf.Offer.Tokens, FirstToken: pf.FirstToken}
				w.at(w.now, func() {
					d.step(Submit{ID: pf.ID, Leg: DecodeLeg, Handoff: hand, Prompt: prompts[pf.ID-1], MaxTokens: 6, Deadline: w.now + deadline, Remote: r})
				})
			}
		}
	}
	return c
}
