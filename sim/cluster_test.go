package sim

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"kvferry/connector"
	"kvferry/engine"
	"kvferry/kvcache"
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
func simulate(tb testing.TB, cfg Config, load Load) ([]*Outcome, *Stats) {
	tb.Helper()
	var all []*Outcome
	cfg.OnOutcome = func(o *Outcome) {
		for len(all) <= o.Index {
			all = append(all, nil)
		}
		all[o.Index] = o
	}
	stats, err := Run(context.Background(), cfg, load)
	if err != nil {
		tb.Fatal(err)
	}
	return all, stats
}

func pair(tb testing.TB, h connector.Handoff, gbps float64) Config {
	return Config{
		Profile: a10(tb), Prefill: 1, Decode: 1, Handoff: h, RecordTokens: true,
		NICs: []NIC{{BytesPerSecond: gbps * 1e9}},
	}
}

func poisson(n int, rate float64, input, output int) Load {
	return Random{Requests: n, Rate: rate, Burstiness: 1, InputLen: input, OutputLen: output, RangeRatio: 0.2, Seed: 1, Vocab: 151936}.Load()
}

// TestBreakdown: under load, the parts of each request's breakdown, of both legs
// together, add up to its time to the first token; under layerwise, where the
// prefill node streams that one, to the second.
func TestBreakdown(t *testing.T) {
	for _, cfg := range []Config{
		{Profile: a10(t), Nondisagg: 1, RecordTokens: true},
		pair(t, connector.V0, 1.29), pair(t, connector.Pull, 1.29), pair(t, connector.Layerwise, 1.29),
	} {
		t.Run(fmt.Sprintf("handoff=%v", cfg.Handoff), func(t *testing.T) {
			out, _ := simulate(t, cfg, poisson(200, 8, 250, 6))
			bad := 0
			for _, o := range out {
				want := o.TTFT()
				if cfg.Handoff == connector.Layerwise {
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

// TestPrefixHashes: equal beginnings have equal hashes, block for block, and
// nothing else has.
func TestPrefixHashes(t *testing.T) {
	seen := map[kvcache.Hash]string{}
	base := fill(nil, 100, 1, 1000)
	for changed := range 101 {
		prompt := slices.Clone(base)
		if changed < 100 {
			prompt[changed] ^= 1
		}
		hashes := prefixHashes(prompt, 16)
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
