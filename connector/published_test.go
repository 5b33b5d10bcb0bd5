package connector

import (
	"container/heap"
	"encoding/csv"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/kvcache"
)

// This file replays the published load through the state machines in virtual
// time and compares with the published table: what the daemons run, without
// their noise. The discrete-event loop is the least that can do it.

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
	return &host{w: w, core: core, cost: engine.NewCostModel(costs), prof: prof, imms: map[uint64]uint64{}, wakes: map[time.Duration]bool{}}
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
	for _, p := range a.Prefilled {
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

// replay runs a row of the published load and returns the nine latencies.
func replay(tb testing.TB, prof *engine.Profile, input, qps int, setting string, seed uint64) [9]float64 {
	w := &world{tokens: map[uint64][]time.Duration{}, tb: tb}
	arrivals := publishedArrivals(float64(qps))
	mean, sd := 245.3, 6.6
	if input == 1024 {
		mean, sd = 1011.6, 15
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	prompts := make([][]kvcache.Token, len(arrivals))
	for i := range prompts {
		prompts[i] = make([]kvcache.Token, int(math.Round(mean+sd*rng.NormFloat64())))
		for j := range prompts[i] {
			prompts[i][j] = rng.Uint32N(uint32(prof.Vocab))
		}
	}
	const deadline = 10 * time.Minute
	var hosts []*host
	var submit func(i int)
	switch setting {
	case "nondisagg", "chunked":
		policy := engine.PrefillFirst
		if setting == "chunked" {
			policy = engine.Chunked
		}
		h := newHost(w, prof, policy, false)
		hosts = []*host{h}
		submit = func(i int) {
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
		hosts = []*host{p, d}
		blocks := func(o Offer) (bs []Block) {
			for i, b := range o.Blocks {
				bs = append(bs, Block{Index: o.First + i, Ref: b})
			}
			return bs
		}
		if hand == Layerwise {
			submit = func(i int) {
				d.step(Submit{ID: uint64(i + 1), Leg: DecodeLeg, Handoff: hand, Prompt: prompts[i], MaxTokens: 6, Deadline: w.now + deadline})
			}
			d.onRes = func(o Offer) {
				r := Remote{Node: "d", Transfer: o.Transfer, Blocks: blocks(o), Tokens: o.Tokens}
				w.at(w.now, func() {
					p.step(Submit{ID: o.ID, Leg: PrefillLeg, Handoff: hand, Prompt: prompts[o.ID-1], MaxTokens: 1, Deadline: w.now + deadline, Remote: r})
				})
			}
		} else {
			submit = func(i int) {
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
	for i, t := range arrivals {
		w.at(t, func() { submit(i) })
	}
	w.run()
	for _, h := range hosts {
		if n, used := h.core.Requests(), h.core.cfg.Pool.Used(); n != 0 || used != 0 {
			tb.Fatalf("%s: %d requests and %d blocks left", setting, n, used)
		}
	}
	return latencies(tb, w, arrivals)
}

func latencies(tb testing.TB, w *world, arrivals []time.Duration) (m [9]float64) {
	var ttft, tpot, itl []float64
	for i, a := range arrivals {
		t := w.tokens[uint64(i+1)]
		if len(t) != 6 {
			tb.Fatalf("request %d got %d tokens", i+1, len(t))
		}
		ttft = append(ttft, ms(t[0]-a))
		tpot = append(tpot, ms(t[5]-t[0])/5)
		for j := 1; j < 6; j++ {
			itl = append(itl, ms(t[j]-t[j-1]))
		}
	}
	for i, x := range [][]float64{ttft, tpot, itl} {
		slices.Sort(x)
		sum := 0.0
		for _, v := range x {
			sum += v
		}
		m[3*i] = sum / float64(len(x))
		for j, p := range []float64{0.5, 0.99} {
			r := p * float64(len(x)-1)
			lo := int(r)
			hi := min(lo+1, len(x)-1)
			m[3*i+1+j] = x[lo] + (r-float64(lo))*(x[hi]-x[lo])
		}
	}
	return m
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// publishedArrivals is the arrival sequence of the published runs: numpy's
// legacy generator, seed 0, with 1.2 ms of client drift a gap.
func publishedArrivals(qps float64) []time.Duration {
	var mt [624]uint32
	for i := 1; i < 624; i++ {
		mt[i] = 1812433253*(mt[i-1]^mt[i-1]>>30) + uint32(i)
	}
	pos := 624
	next := func() uint32 {
		if pos == 624 {
			for i := range mt {
				y := mt[i]&0x80000000 | mt[(i+1)%624]&0x7fffffff
				mt[i] = mt[(i+397)%624] ^ y>>1 ^ (y&1)*0x9908b0df
			}
			pos = 0
		}
		y := mt[pos]
		pos++
		y ^= y >> 11
		y ^= y << 7 & 0x9d2c5680
		y ^= y << 15 & 0xefc60000
		return y ^ y>>18
	}
	out := make([]time.Duration, 200)
	t := 0.0
	for i := 1; i < 200; i++ {
		a, b := next()>>5, next()>>6
		u := (float64(a)*67108864 + float64(b)) / 9007199254740992
		t += -math.Log(1-u)/qps*1e3 + 1.2
		out[i] = millis(t)
	}
	return out
}

func readPublished(tb testing.TB) map[string][9]float64 {
	f, err := os.Open("../bench/mooncake_a10.csv")
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		tb.Fatal(err)
	}
	out := map[string][9]float64{}
	for _, r := range rows[1:] {
		var m [9]float64
		for i := range m {
			if m[i], err = strconv.ParseFloat(r[10+i], 64); err != nil {
				tb.Fatal(err)
			}
		}
		out[fmt.Sprintf("%s/q%s/%s", r[0], r[1], r[2])] = m
	}
	return out
}

func TestPublished(t *testing.T) {
	prof, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	pub := readPublished(t)
	for _, row := range [][2]int{{1024, 2}, {256, 2}, {256, 4}, {256, 6}, {256, 8}} {
		for _, set := range []string{"nondisagg", "chunked", "rdma", "rdma2", "tcp", "pull", "layerwise"} {
			var m [9]float64
			const seeds = 4
			for seed := range uint64(seeds) {
				for i, v := range replay(t, prof, row[0], row[1], set, seed) {
					m[i] += v / seeds
				}
			}
			line := fmt.Sprintf("%4d/q%d/%-10s", row[0], row[1], set)
			p, ok := pub[fmt.Sprintf("%d/q%d/%s", row[0], row[1], set)]
			for i, v := range m {
				if ok {
					line += fmt.Sprintf(" %+6.1f%%", 100*(v/p[i]-1))
				} else {
					line += fmt.Sprintf(" %7.1f", v)
				}
			}
			t.Log(line)
		}
	}
}
