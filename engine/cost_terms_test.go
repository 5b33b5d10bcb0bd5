package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"kvferry/kvcache"
)

// chunk is the part of a prompt from token from on, n tokens long.
func chunk(from, n int) Work { return Work{From: from, N: n, Prompt: true} }

// next is the decode of a sequence whose context has that many tokens then.
func next(context int) Work { return Work{From: context - 1, N: 1, Sample: true} }

func step(kind Kind, works ...Work) *Step {
	s := &Step{Kind: kind, Works: works}
	for _, w := range works {
		s.Tokens += w.N
	}
	return s
}

// TestCostTerms: each term by itself, worked out by hand.
func TestCostTerms(t *testing.T) {
	experts := Experts{Count: 4, PerToken: 2, Shared: 1, ReadMS: 0.5}
	two := TensorParallel{Size: 2, AllReduceLatencyUS: 5, BusGBS: 10}
	small := TensorParallel{Size: 2, AllReduceLatencyUS: 5, BusGBS: 10, SmallBusGBS: 2, SmallBytes: 14336}
	// 28 layers, of which each reduces 3584 x 2 bytes a token twice: on a ring of two GPUs
	// they send as much.
	reduce := func(tokens float64) float64 { return 56 * (0.005 + tokens*7168/10e6) }
	for _, c := range []struct {
		name  string
		costs Costs
		step  *Step
		want  float64 // ms
	}{
		{"attention of a prompt", Costs{PrefillAttentionNS: 1000}, step(Prefill, chunk(0, 4)), 6e-3}, // 0 + 1 + 2 + 3 pairs
		{"attention of a chunk", Costs{PrefillAttentionNS: 1000}, step(Mixed, chunk(100, 2)), 201e-3},
		{"attention of several", Costs{PrefillAttentionNS: 1000}, step(Prefill, chunk(0, 4), chunk(0, 4)), 12e-3},
		{"attention beside decodes", Costs{PrefillAttentionNS: 1000}, step(Mixed, chunk(0, 4), next(50)), 6e-3},
		{"floor", Costs{PrefillStepMS: 1, PrefillTokenMS: 0.1, PrefillFloorMS: 5}, step(Prefill, chunk(0, 20)), 6},
		{"above the floor", Costs{PrefillStepMS: 1, PrefillTokenMS: 0.1, PrefillFloorMS: 5}, step(Prefill, chunk(0, 80)), 9},
		{"floor of a decode", Costs{DecodeStepMS: 1, PrefillFloorMS: 5}, step(Decode, next(1)), 1},
		{"context of decodes", Costs{DecodeKVTokenNS: 1e5}, step(Decode, next(100), next(300)), 40},
		{"context in a mixed step", Costs{PrefillTokenMS: 1, DecodeKVTokenNS: 1e5}, step(Mixed, next(100), chunk(0, 5)), 16},
		// Two of four: another token goes to both others, one or none of them, at 1, 4 and 1 of 6.
		{"experts of a token", Costs{Experts: experts}, step(Decode, next(9)), 0.5 * (2 + 1)},
		{"experts of two tokens", Costs{Experts: experts}, step(Decode, next(9), next(9)), 0.5 * (3 + 1)},
		{"experts of a prompt", Costs{PrefillFloorMS: 1, Experts: experts}, step(Prefill, chunk(0, 2)), 1 + 0.5*(3+1)},
		{"experts of a long prompt", Costs{PrefillTokenMS: 1, PrefillFloorMS: 1, Experts: experts}, step(Prefill, chunk(0, 1000)), 1000},
		{"all experts", Costs{Experts: Experts{Count: 8, PerToken: 8, ReadMS: 1}}, step(Decode, next(9)), 8},
		{"decode on two GPUs", Costs{DecodeStepMS: 10, DecodeSeqMS: 0.1, TensorParallel: two}, step(Decode, next(9), next(9)), 5 + 0.2 + reduce(2)},
		{"prefill on two GPUs", Costs{PrefillStepMS: 1, PrefillTokenMS: 0.1, PrefillAttentionNS: 1000, TensorParallel: two}, step(Prefill, chunk(0, 100)), 1 + 5 + 4950e-3/2 + reduce(100)},
		{"floor on two GPUs", Costs{PrefillFloorMS: 8, TensorParallel: two}, step(Prefill, chunk(0, 1)), 4 + reduce(1)},
		{"context on two GPUs", Costs{DecodeKVTokenNS: 1e5, TensorParallel: two}, step(Decode, next(100)), 5 + reduce(1)},
		// 4 heads of KV on 8 GPUs: each has one whole head.
		{"context on eight GPUs", Costs{DecodeKVTokenNS: 1e5, TensorParallel: TensorParallel{Size: 8, BusGBS: 1e5}}, step(Decode, next(100)), 2.5 + 56*1.75*7168/1e11},
		{"experts on two GPUs", Costs{Experts: experts, TensorParallel: two}, step(Decode, next(9)), 0.25*3 + reduce(1)},
		{"arithmetic of a decode", Costs{DecodeStepMS: 10, DecodeSeqMS: 0.1, DecodeTokenMS: 2, PrefillStepMS: 3}, step(Decode, next(9), next(9), next(9), next(9)), 3 + 8 + 0.4},
		{"arithmetic of a small batch", Costs{DecodeStepMS: 10, DecodeTokenMS: 2, PrefillStepMS: 3}, step(Decode, next(9), next(9)), 10},
		{"arithmetic beside experts", Costs{DecodeStepMS: 10, DecodeTokenMS: 9, Experts: experts}, step(Decode, next(9), next(9)), 18},
		{"arithmetic on two GPUs", Costs{DecodeTokenMS: 4, TensorParallel: two}, step(Decode, next(9)), 2 + reduce(1)},
		// 14,336 bytes of what is reduced are two tokens, at a fifth of the rate.
		{"small all-reduces", Costs{TensorParallel: small}, step(Decode, next(9)), reduce(5)},
		{"large all-reduces", Costs{TensorParallel: small}, step(Prefill, chunk(0, 100)), reduce(100 + 2*4)},
		{"one GPU", Costs{DecodeStepMS: 10, TensorParallel: TensorParallel{Size: 1, AllReduceLatencyUS: 5}}, step(Decode, next(9)), 10},
	} {
		if got := ms(gpu(c.costs).Run(c.step)); math.Abs(got-c.want) > 2e-6 {
			t.Errorf("%s: %v ms, want %v", c.name, got, c.want)
		}
	}
}

// TestCostOfCold: the first step with prompts that has several sequences takes longer, no other does.
func TestCostOfCold(t *testing.T) {
	m := gpu(Costs{PrefillTokenMS: 1, DecodeStepMS: 2, ColdMS: 100})
	for i, c := range []struct {
		step *Step
		want time.Duration
	}{
		{step(Decode, next(9)), 2 * time.Millisecond}, // of a prompt that another node has computed
		{step(Receive, chunk(0, 9)), 0},
		{step(Prefill, chunk(0, 3)), 3 * time.Millisecond}, // a warm-up
		{step(Prefill, chunk(0, 3), chunk(0, 4)), 107 * time.Millisecond},
		{step(Mixed, chunk(3, 3), chunk(4, 1)), 4 * time.Millisecond},
	} {
		if got := m.Run(c.step); got != c.want {
			t.Errorf("step %d takes %v, want %v", i, got, c.want)
		}
	}
}

// TestAttentionIsAdditive: a prompt's attention is the same in one piece and in several.
func TestAttentionIsAdditive(t *testing.T) {
	c := Costs{PrefillTokenMS: 0.1, PrefillAttentionNS: 5000, HotSlowdown: 0.4, HeatMS: 90}
	whole, cut := gpu(c), gpu(c)
	one := whole.Run(step(Prefill, chunk(0, 8000)))
	s := step(Mixed, chunk(0, 3000))
	two := cut.Run(s)
	s = step(Mixed, chunk(3000, 5000))
	s.At = two
	two += cut.Run(s)
	if d := one - two; d.Abs() > 10*time.Nanosecond {
		t.Errorf("8000 tokens take %v, 3000 and 5000 %v", one, two)
	}
}

// drawnCosts are any, some of them 0.
func drawnCosts(rng *rand.Rand) Costs {
	some := func(most float64) float64 { return most * rng.Float64() * float64(rng.IntN(2)) }
	c := Costs{
		RequestMS: some(10), PrefillStepMS: some(5), PrefillTokenMS: some(0.5), PrefillAttentionNS: some(100), PrefillFloorMS: some(50),
		HotSlowdown: some(1), HeatMS: 1 + 100*rng.Float64(), ColdMS: some(1000), DecodeStepMS: some(20), DecodeSeqMS: some(0.5),
		DecodeKVTokenNS: some(1000), DecodeTokenMS: some(5), OutputDelayMS: some(20),
	}
	if rng.IntN(2) == 0 {
		c.Experts = Experts{Count: 1 + rng.IntN(256), Shared: rng.IntN(3), ReadMS: rng.Float64()}
		c.Experts.PerToken = 1 + rng.IntN(c.Experts.Count)
	}
	if rng.IntN(2) == 0 {
		c.TensorParallel = TensorParallel{Size: 1 + rng.IntN(8), AllReduceLatencyUS: some(20), BusGBS: 1 + 100*rng.Float64()}
		if rng.IntN(2) == 0 {
			c.TensorParallel.SmallBusGBS, c.TensorParallel.SmallBytes = c.TensorParallel.BusGBS*rng.Float64(), rng.IntN(1<<20)
		}
	}
	return c
}

// drawnStep has up to seqs sequences of up to tokens tokens.
func drawnStep(rng *rand.Rand, seqs, tokens int) *Step {
	kind := [...]Kind{Decode, Prefill, Mixed}[rng.IntN(3)]
	var works []Work
	for range 1 + rng.IntN(seqs) {
		if from := rng.IntN(tokens); kind == Prefill || kind == Mixed && rng.IntN(3) == 0 {
			works = append(works, chunk(from, 1+rng.IntN(tokens-from)))
		} else {
			works = append(works, next(from+1))
		}
	}
	return step(kind, works...)
}

// TestCostIsMonotone: no step becomes shorter by a higher cost, by another sequence, or by
// one that is longer; a faster bus makes none longer.
func TestCostIsMonotone(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 1))
	run := func(c Costs, s *Step, warm time.Duration) time.Duration {
		m := gpu(c)
		m.Run(&Step{Kind: Receive, Extra: warm})
		s.At = warm
		return m.Run(s)
	}
	longer := map[string]int{}
	for range 4000 {
		c, s := drawnCosts(rng), drawnStep(rng, 40, 2000)
		warm := time.Duration(rng.IntN(2)) * time.Second
		base := run(c, s, warm)
		raised := c
		for name, p := range map[string]*float64{
			"prefill_step": &raised.PrefillStepMS, "prefill_token": &raised.PrefillTokenMS, "attention": &raised.PrefillAttentionNS,
			"floor": &raised.PrefillFloorMS, "hot_slowdown": &raised.HotSlowdown, "cold": &raised.ColdMS, "decode_step": &raised.DecodeStepMS,
			"decode_seq": &raised.DecodeSeqMS, "decode_token": &raised.DecodeTokenMS, "kv": &raised.DecodeKVTokenNS, "read": &raised.Experts.ReadMS, "latency": &raised.TensorParallel.AllReduceLatencyUS,
		} {
			was := *p
			*p += 1 + *p
			if got := run(raised, s, warm); got < base {
				t.Errorf("a higher %s: %v in place of %v: %+v %+v", name, got, base, c, s)
			} else if got > base {
				longer[name]++
			}
			*p = was
		}
		if c.Experts.PerToken < c.Experts.Count {
			raised.Experts.PerToken++
			if got := run(raised, s, warm); got < base {
				t.Errorf("more experts a token: %v in place of %v: %+v %+v", got, base, c, s)
			} else if got > base {
				longer["per_token"]++
			}
			raised.Experts = c.Experts
		}
		raised.TensorParallel.BusGBS *= 2
		if got := run(raised, s, warm); got > base {
			t.Errorf("a faster bus: %v in place of %v: %+v %+v", got, base, c, s)
		} else if got < base {
			longer["bus"]++
		}

		i := rng.IntN(len(s.Works))
		for name, change := range map[string]func(works []Work) []Work{
			"another sequence": func(works []Work) []Work { return append(works, works[i]) },
			"a longer context": func(works []Work) []Work { works[i].From += 100; return works },
			"more tokens":      func(works []Work) []Work { works[i].N += 100; return works },
		} {
			works := change(slices.Clone(s.Works))
			if got := run(c, step(s.Kind, works...), warm); got < base {
				t.Errorf("%s: %v in place of %v: %+v %+v", name, got, base, c, s)
			} else if got > base {
				longer[name]++
			}
		}
	}
	for _, name := range []string{
		"prefill_step", "prefill_token", "attention", "floor", "hot_slowdown", "cold", "decode_step", "decode_seq", "decode_token", "kv", "read", "latency", "per_token", "bus",
		"another sequence", "a longer context", "more tokens",
	} {
		if longer[name] < 100 {
			t.Errorf("%s changed only %d of 4000 steps", name, longer[name])
		}
	}
}

// TestFirstModel: without the terms that a file may leave out, a step takes to the
// nanosecond what the model without them says.
func TestFirstModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 2))
	c := shipped(t).Costs
	m, first := gpu(c), gpu(c)
	at := time.Duration(0)
	for range 2000 {
		s := drawnStep(rng, 40, 2000)
		s.At = at
		first.cool(at)
		want := c.DecodeStepMS + c.DecodeSeqMS*float64(len(s.Works))
		if s.Kind != Decode {
			want = c.PrefillStepMS + first.hot(c.PrefillTokenMS*float64(s.Tokens))
		}
		first.warm(want)
		first.at = at + duration(want)
		got := m.Run(s)
		if got != first.at-at {
			t.Fatalf("%v step of %d tokens takes %v, want %v", s.Kind, s.Tokens, got, first.at-at)
		}
		at += got + time.Duration(rng.IntN(int(100*time.Millisecond)))
	}
}

// TestSlowestOfAll: no step of any model takes longer than its profile's bound.
func TestSlowestOfAll(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 3))
	closest := 0.0
	for range 300 {
		p := *shipped(t)
		p.Costs, p.MaxNumSeqs, p.MaxModelLen = drawnCosts(rng), 1+rng.IntN(50), 1+rng.IntN(3000)
		p.Disagg.DecodeStepMS = 30 * rng.Float64()
		most, token := p.Slowest()
		front := p
		front.Costs.RequestMS, front.Costs.OutputDelayMS = 0, 0
		if alone, _ := front.Slowest(); (most - alone - duration(p.Costs.RequestMS+p.Costs.OutputDelayMS)).Abs() > 2 {
			t.Fatalf("%v with the front end's part, %v without: %+v", most, alone, p.Costs)
		}
		for _, c := range []Costs{p.Costs, p.DisaggEngine()} {
			m, at := NewCostModel(c, p.KVGeometry), time.Duration(0)
			for range 20 {
				s := drawnStep(rng, p.MaxNumSeqs, p.MaxModelLen)
				s.At = at
				took, bound := m.Run(s), most
				if s.Kind != Decode {
					bound += time.Duration(s.Tokens) * token
				}
				if took > bound {
					t.Fatalf("a step of %d tokens took %v, the bound is %v: %+v", s.Tokens, took, bound, p.Costs)
				}
				if bound > 0 {
					closest = max(closest, float64(took)/float64(bound))
				}
				at += took
			}
		}
	}
	if closest < 0.9 {
		t.Errorf("no step takes more than %.2f of the bound", closest)
	}
}

// allTerms is a profile's costs with everything that there is.
func allTerms(tb testing.TB) Costs {
	c := shipped(tb).Costs
	c.PrefillAttentionNS, c.PrefillFloorMS, c.ColdMS, c.DecodeKVTokenNS, c.DecodeTokenMS = 5.7, 12, 100, 157, 0.1
	c.Experts = Experts{Count: 256, PerToken: 8, Shared: 1, ReadMS: 0.05}
	c.TensorParallel = TensorParallel{Size: 8, AllReduceLatencyUS: 10, BusGBS: 300, SmallBusGBS: 50, SmallBytes: 1 << 20}
	return c
}

// decodes is a decode step of that many sequences, in the middle of their answers.
func decodes(batch int) *Step {
	works := make([]Work, batch)
	for i := range works {
		works[i] = next(1000 + 10*i)
	}
	return step(Decode, works...)
}

func TestCostAllocatesNothing(t *testing.T) {
	m := gpu(allTerms(t))
	for _, s := range []*Step{decodes(256), step(Mixed, chunk(100, 412), next(700))} {
		if n := testing.AllocsPerRun(100, func() { m.Run(s) }); n != 0 {
			t.Errorf("a %v step makes %v allocations", s.Kind, n)
		}
	}
}

// TestCostAgain: steps of one batch take together what each of them takes, one after the other.
func TestCostAgain(t *testing.T) {
	for _, c := range []Costs{allTerms(t), shipped(t).Costs} {
		m, s := gpu(c), decodes(5)
		s.At += m.Run(s)
		want, began := m.Again(s, 40), s.At
		for range 40 {
			for i := range s.Works {
				s.Works[i].From++
			}
			s.At += m.Run(s)
		}
		if got := s.At - began; got != want {
			t.Errorf("%v, one by one %v", want, got)
		}
	}
}

// BenchmarkCostModel: what a step costs the simulator, with the terms of the shipped profile
// and with all terms.
func BenchmarkCostModel(b *testing.B) {
	steps := map[string]*Step{"prefill": step(Prefill, chunk(0, 1000)), "decode=1": decodes(1), "decode=32": decodes(32), "decode=256": decodes(256)}
	for _, terms := range []string{"first", "all"} {
		c := shipped(b).Costs
		if terms == "all" {
			c = allTerms(b)
		}
		for _, name := range []string{"prefill", "decode=1", "decode=32", "decode=256"} {
			b.Run(fmt.Sprintf("terms=%s/%s", terms, name), func(b *testing.B) {
				m := NewCostModel(c, kvcache.Geometry{Layers: 61, KVHeads: 1, HeadDim: 288, HiddenSize: 7168})
				s := steps[name]
				s.At = 0
				b.ReportAllocs()
				for b.Loop() {
					s.At += m.Run(s)
				}
			})
		}
	}
}
