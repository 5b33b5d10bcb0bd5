package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/load"
	"kvferry/proxy"
	"kvferry/sim"
)

// TestAdaptersAsSimulated: LoRA adapters are loaded, kept, evicted and paid for by each token on
// real nodes as in virtual time: each request of a round takes as much longer than one without an adapter. A busy machine makes a
// request longer and never shorter, so rounds are repeated until each has been undisturbed once.
func TestAdaptersAsSimulated(t *testing.T) {
	t.Parallel()
	prof, err := engine.LoadProfile(profile(t, cost{PrefillToken: 0.05, Decode: 10}))
	if err != nil {
		t.Fatal(err)
	}
	// An adapter of rank 32 takes 64 ms from host memory, 320 ms from disk, and 32 ms of a prompt.
	prof.LoRA = engine.LoRA{MaxLoRAs: 2, MaxCPULoRAs: 3, BytesPerRank: 1e6, HostGBS: 0.5, DiskGBS: 0.125, TokenUSPerRank: 5}
	ranks := engine.Ranks{"a": 16, "b": 32, "c": 8, "d": 32}
	adapters := []string{"a", "b", "", "a", "c", "d", "d", "b", "c"}
	const promptLen, tokens, rounds = 200, 4, 40
	// What a request takes beyond the third, which is without an adapter, is its adapter's: on a slow machine all take longer.
	// The least that an adapter takes is 16 ms, c's load from host memory.
	asSimulated := func(real, virtual []time.Duration) bool {
		for i := range real {
			if more := virtual[i] - virtual[2]; (real[i] - real[2] - more).Abs() > more/20+5*time.Millisecond {
				return false
			}
		}
		return real[2] >= virtual[2]-5*time.Millisecond && real[2] <= virtual[2]*3/2
	}
	for _, h := range []handoff.Handoff{handoff.None, handoff.Layerwise} {
		t.Run("handoff="+h.Name, func(t *testing.T) {
			t.Parallel()
			cfg := Spec{Prefill: 1, Decode: 1, Profile: write(t, prof), Proxy: proxy.Config{Handoff: h.Name, LoRAs: LoRAs(ranks)}}
			if h == handoff.None {
				cfg.Prefill, cfg.Decode, cfg.Nondisagg = 0, 0, 1
			}
			var requests load.List
			for i := range 2 * len(adapters) {
				requests = append(requests, load.Request{Prompt: tokensOf(prompt(i, promptLen)), MaxTokens: tokens, Adapter: adapters[i%len(adapters)]})
			}
			virtual := make([]time.Duration, len(requests)) // two rounds, the first with nothing loaded
			if _, err := sim.Run(t.Context(), sim.Config{
				Profile: prof, Prefill: cfg.Prefill, Decode: cfg.Decode, Nondisagg: cfg.Nondisagg, Handoff: h, Ranks: ranks, RPC: sim.DefaultRPC,
				NICs: []sim.NIC{{BytesPerSecond: 1e9}}, OnOutcome: func(o *sim.Outcome) { virtual[o.Index] = o.E2EL() },
			}, load.Load{Source: &requests, InFlight: 1}); err != nil {
				t.Fatal(err)
			}
			want := virtual[len(adapters):]
			if disk, host, slot, bare := virtual[1], want[1], want[3], want[2]; disk < host+200*time.Millisecond || host < slot+50*time.Millisecond || slot < bare+15*time.Millisecond {
				t.Fatalf("%v from disk, %v from host memory, %v in a slot, %v without an adapter: they show little", disk, host, slot, bare)
			}
			c := start(t, cfg)
			least := slices.Repeat([]time.Duration{time.Hour}, len(adapters))
			for n := 0; n <= rounds && !asSimulated(least, want); n++ {
				for i, name := range adapters {
					q := call{Prompt: prompt(n*len(adapters)+i, promptLen), MaxTokens: tokens, Stream: true}
					if name != "" {
						q.More = map[string]any{"model": name}
					}
					began := time.Now()
					c.do(q).expect(t, tokens)
					if n > 0 {
						least[i] = min(least[i], time.Since(began))
					}
				}
			}
			t.Logf("%v take %v, in virtual time %v", adapters, least, want)
			if !asSimulated(least, want) {
				t.Errorf("%v take %v, in virtual time %v", adapters, least, want)
			}
			c.poll("loads of adapters among the metrics", func() bool {
				return c.metric("kvferry:lora_loads_total") >= 6 && c.metric("kvferry:lora_load_seconds_total") > 0.6 && strings.Contains(c.metrics(), `max_lora="2"`)
			})
		})
	}
}
