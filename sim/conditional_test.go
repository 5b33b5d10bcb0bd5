package sim

import (
	"testing"
	"time"

	"kvferry/handoff"
	"kvferry/load"
	"kvferry/placement"
)

// TestConditionalDisaggregation: prompts up to the limit move no KV, longer ones do; and where
// what a decode node has cached counts, the second turn of a long prompt moves none.
func TestConditionalDisaggregation(t *testing.T) {
	for _, h := range handoff.All() {
		cfg := pair(t, h, 1)
		cfg.ConditionalDisaggregation = 300
		local, moved := 0, 0
		cfg.OnOutcome = func(o *Outcome) {
			switch {
			case o.PromptTokens <= 300 && o.Breakdown.Bytes == 0:
				local++
			case o.PromptTokens > 300 && o.Breakdown.Bytes > 0:
				moved++
			default:
				t.Errorf("%v: %d tokens of prompt, %d bytes moved", h, o.PromptTokens, o.Breakdown.Bytes)
			}
		}
		spec := load.Spec{Requests: 100, Rate: 4, Burstiness: 1, InputLen: 300, OutputLen: 8, RangeRatio: 0.5, Seed: 1, Vocab: 1000}
		if _, err := Run(t.Context(), cfg, drawn(t, spec)); err != nil {
			t.Fatal(err)
		}
		if local < 20 || moved < 20 {
			t.Errorf("%v: %d prompts stayed and %d moved", h, local, moved)
		}
	}
	for name, stays := range map[string]bool{placement.PrefixAware: true, placement.LeastLoaded: false} {
		cfg := pair(t, handoff.Layerwise, 1)
		cfg.ConditionalDisaggregation, cfg.PrefixCaching, cfg.Placement = 100, true, name
		var bytes []int64
		cfg.OnOutcome = func(o *Outcome) { bytes = append(bytes, o.Breakdown.Bytes) }
		spec := load.Spec{Requests: 20, Rate: 1, Burstiness: 1, InputLen: 50, OutputLen: 8, PrefixLen: 500, Seed: 1, Vocab: 1000}
		if _, err := Run(t.Context(), cfg, drawn(t, spec)); err != nil {
			t.Fatal(err)
		}
		if (bytes[len(bytes)-1] == 0) != stays || bytes[0] == 0 {
			t.Errorf("%s: prompts that begin alike moved %v bytes", name, bytes)
		}
	}
}

// TestNetworkAware: over links that are not equal, the network's cost in placement has prompts
// be there sooner than their prefixes and loads alone.
func TestNetworkAware(t *testing.T) {
	mean := func(name string, h handoff.Handoff) time.Duration {
		cfg := pair(t, h, 1)
		cfg.Prefill, cfg.Decode, cfg.Placement = 4, 4, name
		cfg.DecodeNICs = []NIC{{BytesPerSecond: 0.2e9}, {BytesPerSecond: 2e9}}
		var sum time.Duration
		cfg.OnOutcome = func(o *Outcome) { sum += o.TTFT() }
		spec := load.Spec{Requests: 200, Rate: 4, Burstiness: 1, InputLen: 1024, OutputLen: 32, Seed: 1, Vocab: 1000}
		stats, err := Run(t.Context(), cfg, drawn(t, spec))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range stats.Nodes {
			if n.Role == "decode" && len(n.Received) != len(cfg.NICs) {
				t.Errorf("%s has %d NICs", n.Name, len(n.Received))
			}
		}
		return sum / time.Duration(spec.Requests)
	}
	// Where decode emits the first token, it waits for the KV.
	if with, without := mean(placement.NetworkAware, handoff.Pull), mean(placement.LeastLoaded, handoff.Pull); with > without*9/10 {
		t.Errorf("mean TTFT %v, and %v by load alone", with, without)
	}
}
