package sim

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/engine/eos"
	"kvferry/handoff"
	"kvferry/handoff/handofftest"
	"kvferry/kvcache"
	"kvferry/load"
)

func a10(tb testing.TB) *engine.Profile {
	tb.Helper()
	p, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// simulate runs a load and returns every outcome in order of arrival.
func simulate(tb testing.TB, cfg Config, l load.Load) ([]*Outcome, *Stats) {
	tb.Helper()
	var all []*Outcome
	cfg.OnOutcome = func(o *Outcome) {
		for len(all) <= o.Index {
			all = append(all, nil)
		}
		all[o.Index] = o
	}
	stats, err := Run(context.Background(), cfg, l)
	if err != nil {
		tb.Fatal(err)
	}
	return all, stats
}

func pair(tb testing.TB, h handoff.Handoff, gbps float64) Config {
	return Config{
		Profile: a10(tb), Prefill: 1, Decode: 1, Handoff: h, RecordTokens: true,
		NICs: []NIC{{BytesPerSecond: gbps * 1e9}},
	}
}

func poisson(tb testing.TB, n int, rate float64, input, output int) load.Load {
	return drawn(tb, load.Spec{Requests: n, Rate: rate, Burstiness: 1, InputLen: input, OutputLen: output, RangeRatio: 0.2, Seed: 1, Vocab: 151936})
}

// list is a load of these.
func list(r ...load.Request) load.Load {
	l := load.List(r)
	return load.Load{Source: &l}
}

// prompt is n tokens.
func prompt(tb testing.TB, n int) []kvcache.Token {
	tb.Helper()
	r, _, err := drawn(tb, load.Spec{Requests: 1, Rate: 1, Burstiness: 1, InputLen: n, OutputLen: 1, Vocab: 1000}).Next()
	if err != nil {
		tb.Fatal(err)
	}
	return r.Prompt
}

// drawn opens a load.
func drawn(tb testing.TB, s load.Spec) load.Load {
	tb.Helper()
	l, err := s.Open()
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// TestBreakdown: under load, the parts of each request's breakdown, of both legs
// together, add up to its time to the first token; where the prefill node streams that
// one, to the second.
func TestBreakdown(t *testing.T) {
	configs := []Config{{Profile: a10(t), Nondisagg: 1, RecordTokens: true}}
	for _, h := range handofftest.Every() {
		configs = append(configs, pair(t, h, 1.29))
	}
	for _, cfg := range slices.Clone(configs) { // and with a front end that is serial
		cfg.Profile = a10(t)
		cfg.Profile.Costs.FrontEndInMS, cfg.Profile.Costs.FrontEndOutMS = 5, 2
		configs = append(configs, cfg)
	}
	for _, cfg := range configs {
		t.Run(fmt.Sprintf("handoff=%v,out=%v", cfg.Handoff, cfg.Profile.Costs.FrontEndOutMS), func(t *testing.T) {
			out, _ := simulate(t, cfg, poisson(t, 200, 8, 250, 6))
			bad := 0
			for _, o := range out {
				want := o.TTFT()
				if cfg.Handoff.FirstToken == handoff.PrefillLeg {
					want = o.TokenTimes[1] - o.Arrived
				}
				b := o.Breakdown
				sum := b.Proxy + b.Queue + b.Prefill + b.Post + b.Wire + b.Land + b.FirstDecode
				if d := sum - want; d.Abs() > 10*time.Microsecond {
					if bad++; bad <= 5 {
						t.Errorf("request %d: %v of %v is accounted for: %+v", o.Index, sum, want, b)
					}
				}
			}
			if bad > 0 {
				t.Errorf("%d of %d requests", bad, len(out))
			}
		})
	}
}

// TestOneRequest: on an idle cluster every time of a request can be worked out, to the
// microsecond.
func TestOneRequest(t *testing.T) {
	const (
		n, rpc  = 250, time.Millisecond // prompt tokens
		latency = 2 * time.Millisecond  // of the slower NIC
		rate    = 1.5e9                 // of both NICs together
	)
	p := a10(t)
	ms := func(v float64) time.Duration { return time.Duration(v * 1e6) }
	wire := func(bytes int) time.Duration { return latency + time.Duration(float64(bytes)/rate*1e9) }
	front := ms(p.Costs.RequestMS)
	prefill := engine.NewCostModel(p.Costs, p.KVGeometry).Run(&engine.Step{Kind: engine.Prefill, Tokens: n})
	kv, hidden := n*p.KVGeometry.TokenBytes(), n*p.KVGeometry.HiddenTokenBytes()
	mb := func(perMB float64, bytes int) time.Duration { return ms(perMB * float64(bytes) / 1e6) }
	alone := ms(p.Costs.DecodeStepMS + p.Costs.DecodeSeqMS)
	decode := ms(p.Disagg.DecodeStepMS + p.Costs.DecodeSeqMS)
	v0 := p.Disagg.V0
	extract := mb(v0.ExtractMSPerMB, kv+hidden)

	for _, c := range []struct {
		handoff handoff.Handoff
		tokens  func() []time.Duration
		step    time.Duration // busy with prefill
		bytes   int
	}{
		{handoff.None, func() []time.Duration {
			first := rpc + front + prefill + rpc
			return []time.Duration{first, first + alone, first + 2*alone}
		}, prefill, 0},
		{handoff.Pull, func() []time.Duration {
			landed := rpc + front + prefill + 2*rpc + wire(kv)
			first := landed + decode + rpc
			return []time.Duration{first, first + decode, first + 2*decode}
		}, prefill, kv},
		{handoff.Push, func() []time.Duration {
			computed := rpc + front + prefill
			second := computed + wire(kv) + decode + rpc
			return []time.Duration{computed + rpc, second, second + decode}
		}, prefill, kv},
		{handoff.Layerwise, func() []time.Duration {
			// The request went to the decode node first, and back to the proxy, which
			// counts as front end.
			computed := rpc + front + prefill
			second := computed + wire(kv/p.KVGeometry.Layers) + decode + rpc
			return []time.Duration{computed + rpc, second, second + decode}
		}, prefill, kv},
		{handoff.V0, func() []time.Duration {
			asked := rpc + front + prefill + extract + 2*rpc + ms(v0.HopMS)
			free, copied := asked+ms(v0.ReceiveMS), asked+rpc
			for _, tensor := range []int{kv / 2, kv / 2, hidden} {
				copied += mb(v0.ProducerMSPerMB, tensor)
				free = max(free, copied+rpc) + wire(tensor) + mb(v0.ConsumerMSPerMB, tensor)
			}
			first := free + rpc
			return []time.Duration{first, first + decode, first + 2*decode}
		}, prefill + extract, kv + hidden},
	} {
		t.Run(fmt.Sprintf("handoff=%v", c.handoff), func(t *testing.T) {
			cfg := Config{Profile: p, Nondisagg: 1, RPC: rpc, RecordTokens: true}
			if c.handoff != handoff.None {
				cfg.Nondisagg, cfg.Prefill, cfg.Decode, cfg.Handoff = 0, 1, 1, c.handoff
				cfg.NICs = []NIC{{BytesPerSecond: 0.5e9, Latency: latency}, {BytesPerSecond: 1e9, Latency: latency / 2}}
			}
			var gaps []time.Duration
			cfg.OnGap = func(d time.Duration) { gaps = append(gaps, d) }
			const arrival = time.Second
			out, stats := simulate(t, cfg, list(load.Request{At: arrival, Prompt: make([]kvcache.Token, n), MaxTokens: 3}))
			o, want := out[0], c.tokens()
			for i, at := range want {
				if d := o.TokenTimes[i] - arrival - at; d.Abs() > time.Microsecond {
					t.Errorf("token %d after %v, want %v", i, o.TokenTimes[i]-arrival, at)
				}
				if i > 0 && gaps[i-1] != o.TokenTimes[i]-o.TokenTimes[i-1] {
					t.Errorf("gap %d is %v, the times are %v", i, gaps[i-1], o.TokenTimes)
				}
			}
			if o.TTFT() != o.TokenTimes[0]-arrival || o.E2EL() != o.TokenTimes[2]-arrival || o.TPOT() != (o.E2EL()-o.TTFT())/2 {
				t.Errorf("TTFT %v, TPOT %v, E2EL %v of tokens at %v", o.TTFT(), o.TPOT(), o.E2EL(), o.TokenTimes)
			}
			if stats.Requests != 1 || stats.Ended != 1 || stats.Duration != o.Last || stats.KVBytes != int64(c.bytes) || stats.Events == 0 {
				t.Errorf("%+v", stats)
			}
			first, last := stats.Nodes[0], stats.Nodes[len(stats.Nodes)-1]
			if first.PrefillSteps != 1 || (first.PrefillBusy-c.step).Abs() > time.Microsecond || first.PeakBlocks != p.KVGeometry.Blocks(n) || first.Blocks != p.Blocks() {
				t.Errorf("%+v, want one prefill of %v", first, c.step)
			}
			busy, steps := 3*decode, 3
			switch c.handoff {
			case handoff.None:
				busy, steps = 2*alone, 2
				if want := float64(p.KVGeometry.Blocks(n)) * (prefill + busy).Seconds(); math.Abs(first.BlockSeconds-want) > 1e-4 {
					t.Errorf("%v block seconds, want %v", first.BlockSeconds, want)
				}
			case handoff.V0, handoff.Push, handoff.Layerwise: // the first comes from the prefill node
				busy, steps = 2*decode, 2
			}
			if last.DecodeSteps != steps || (last.DecodeBusy-busy).Abs() > time.Microsecond {
				t.Errorf("%+v, want %d decode steps of %v in all", last, steps, busy)
			}
			if c.handoff != handoff.None {
				for i, share := range []float64{1. / 3, 2. / 3} {
					if x := share * float64(c.bytes); math.Abs(first.Sent[i]-x) > 1 || math.Abs(last.Received[i]-x) > 1 || first.Received[i]+last.Sent[i] != 0 {
						t.Errorf("NIC %d: %v bytes sent, %v received, want %v", i, first.Sent[i], last.Received[i], x)
					}
				}
			}
		})
	}
}

// TestNodes: what the configuration says of nodes reaches them.
func TestNodes(t *testing.T) {
	tokens := prompt(t, 1000)
	twice := func() load.Load {
		return list(load.Request{Prompt: tokens, MaxTokens: 2}, load.Request{At: time.Second, Prompt: tokens, MaxTokens: 2})
	}
	for _, c := range []struct {
		chunked, caching bool
		steps, cached    int
	}{
		{false, false, 2, 0},
		{true, false, 4, 0}, // of 512 tokens at most
		{false, true, 2, 992},
		{true, true, 3, 992},
	} {
		cfg := Config{Profile: a10(t), Nondisagg: 1, Chunked: c.chunked, PrefixCaching: c.caching}
		out, stats := simulate(t, cfg, twice())
		n := stats.Nodes[0]
		if n.PrefillSteps != c.steps || out[0].Cached != 0 || out[1].Cached != c.cached || n.PrefixHits != uint64(c.cached) {
			t.Errorf("%+v: %d prefill steps, %d and %d tokens cached, %d hits", c, n.PrefillSteps, out[0].Cached, out[1].Cached, n.PrefixHits)
		}
		if out[0].TokenTimes != nil {
			t.Error("times of tokens that nobody asked for")
		}
	}
	// Round robin unless said otherwise; a prefix draws its like to its node.
	for placement, want := range map[string][2]int{"": {1, 1}, "round-robin": {1, 1}, "prefix-aware": {2, 0}} {
		_, stats := simulate(t, Config{Profile: a10(t), Nondisagg: 2, PrefixCaching: true, Placement: placement}, twice())
		if got := [2]int{stats.Nodes[0].PrefillSteps, stats.Nodes[1].PrefillSteps}; got != want {
			t.Errorf("placement %q: %v prefill steps, want %v", placement, got, want)
		}
	}
	bad := a10(t)
	bad.MaxNumSeqs = 0
	if _, err := Run(context.Background(), Config{Profile: bad, Nondisagg: 1}, twice()); err == nil || !strings.Contains(err.Error(), "MaxNumSeqs: 0: ") {
		t.Errorf("a profile that no scheduler takes: %v", err)
	}
}

// TestPrefixHashes: equal beginnings have equal hashes, block for block, and
// nothing else has.
func TestPrefixHashes(t *testing.T) {
	seen := map[kvcache.Hash]string{}
	base := prompt(t, 100)
	for changed := range 101 {
		prompt := slices.Clone(base)
		if changed < 100 {
			prompt[changed] ^= 1
		}
		hashes := prefixHashes("", prompt, 16)
		if len(hashes) != 6 {
			t.Fatalf("%d hashes of 100 tokens", len(hashes))
		}
		for i, h := range hashes {
			what := fmt.Sprint(prompt[:16*(i+1)])
			if seen[h] != "" && seen[h] != what {
				t.Fatalf("two prefixes have the hash %v", h)
			}
			seen[h] = what
		}
	}
	// The base has 6; a change in block i gives 6-i others.
	if want := 6 + 16*(6+5+4+3+2+1); len(seen) != want {
		t.Errorf("%d hashes, want %d", len(seen), want)
	}
}

// TestStops: a request that may stop ends where package eos says, one that may not has all
// that it asked for, and a length at or beyond max_tokens is no stop.
func TestStops(t *testing.T) {
	lengths := eos.Lengths{Median: 20, Sigma: 1, Seed: 4}
	for _, h := range append([]handoff.Handoff{handoff.None}, handoff.All()...) {
		cfg := pair(t, h, 10)
		if h == handoff.None {
			cfg.Prefill, cfg.Decode, cfg.Nondisagg = 0, 0, 1
		}
		cfg.EOS = lengths
		var requests []load.Request
		for i := range 40 {
			requests = append(requests, load.Request{At: time.Duration(i) * time.Millisecond, Prompt: prompt(t, 100+i), MaxTokens: 30, MayStop: i%4 > 0})
		}
		stopped := 0
		all, _ := simulate(t, cfg, list(requests...))
		for i, o := range all {
			drawn, want := lengths.Draw(requests[i].Prompt, 0), 30
			stops := requests[i].MayStop && drawn <= 30
			if stops {
				want = drawn
				stopped++
			}
			if o.Tokens != want || o.Stopped != stops || o.MaxTokens != 30 || len(o.TokenTimes) != want {
				t.Errorf("%v: request %d has %d tokens, stopped %v; want %d, %v", h, i, o.Tokens, o.Stopped, want, stops)
			}
		}
		if stopped < 10 || stopped == 30 {
			t.Errorf("%v: %d of 30 stopped: the test shows nothing", h, stopped)
		}
	}
	cfg := pair(t, handoff.Layerwise, 10)
	cfg.EOS.Median = -1
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "EOS.median: -1") {
		t.Errorf("%v", err)
	}
}

// TestOversubscription: n prefill nodes write to n decode nodes at once. Through leaf switches
// that are oversubscribed r:1 the KV takes r times as long, and no longer through others.
func TestOversubscription(t *testing.T) {
	t.Parallel()
	const nodes, tokens, rate = 4, 1000, 1e9
	for _, c := range []struct{ ratio, want float64 }{{0, 1}, {1, 1}, {2, 2}, {4, 4}} {
		cfg := pair(t, handoff.Push, rate/1e9)
		cfg.Prefill, cfg.Decode, cfg.Oversubscription = nodes, nodes, c.ratio
		alone := float64(tokens*cfg.Profile.KVGeometry.TokenBytes()) / rate
		l := drawn(t, load.Spec{Requests: nodes, Rate: math.Inf(1), Burstiness: 1, InputLen: tokens, OutputLen: 2, Vocab: cfg.Profile.Vocab})
		all, _ := simulate(t, cfg, l)
		for _, o := range all {
			if got := o.Breakdown.Wire.Seconds() / alone; math.Abs(got-c.want) > 0.01 {
				t.Errorf("%g:1: the KV of request %d took %.2f times as long as alone, want %g", c.ratio, o.Index, got, c.want)
			}
		}
	}
	cfg := pair(t, handoff.Push, 1)
	if cfg.Oversubscription = 0.5; !strings.Contains(fmt.Sprint(cfg.Validate()), "Oversubscription") {
		t.Errorf("0.5: %v", cfg.Validate())
	}
}
