package calibration

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/fit"
	"kvferry/bench/serve"
	"kvferry/engine"
	"kvferry/load"
	"kvferry/sim"
)

// disturbed is a server as it is seen on a machine that is not quiet: messages take 0.3 ms longer each
// way, a token in ten comes up to 3 ms late, and a tenth of the series finds all costs 20 % higher.
type disturbed struct {
	usual, slow serve.Target
	rng         *rand.Rand
	asked       int // loads
	from, to    int // those of them that are slow
}

const perHop = 300 * time.Microsecond

func disturb(t *testing.T, truth *engine.Profile, seed uint64) *disturbed {
	t.Helper()
	values := map[string]float64{}
	for _, c := range slices.Concat(even, serial) {
		if v := read(t, truth, c); v > 0 && c.field != "hot_slowdown" && c.field != "heat_ms" {
			values["costs."+c.field] = 1.2 * v
		}
	}
	slow, err := fit.With(truth, values)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 3))
	from := 30 + rng.IntN(130)
	return &disturbed{usual: Model(truth, sim.DefaultRPC+perHop), slow: Model(slow, sim.DefaultRPC+perHop), rng: rng, from: from, to: from + 16}
}

func (d *disturbed) Open(context.Context) (serve.Facts, error) { return serve.Facts{}, nil }
func (d *disturbed) Close() error                              { return nil }

func (d *disturbed) Run(ctx context.Context, l load.Load, done func(*client.Record)) (time.Duration, error) {
	t := d.usual
	if d.asked++; d.from <= d.asked && d.asked < d.to {
		t = d.slow
	}
	return t.Run(ctx, l, func(r *client.Record) {
		last := 0.0
		for i := range r.TokenTimes {
			if d.rng.IntN(10) == 0 {
				r.TokenTimes[i] += 3e-3 * d.rng.Float64()
			}
			last = max(last, r.TokenTimes[i]) // no token overtakes another
			r.TokenTimes[i] = last
		}
		r.FirstToken = r.TokenTimes[0]
		done(r)
	})
}

var seeds = flag.Int("seeds", 1, "of TestDisturbed: how many for each profile")

// strangers are servers that nothing here was tuned to, by their costs.
var strangers = []struct {
	name   string
	base   string
	engine string // its scheduler; "": the base's
	costs  map[string]float64
}{
	{"vLLM of 2024", engine.AttentionProfile, "", map[string]float64{
		"request_ms": 6, "prefill_step_ms": 2.9, "prefill_token_ms": 0.11, "prefill_attention_ns": 3.3, "hot_slowdown": 0, "heat_ms": 0,
		"decode_step_ms": 19, "decode_seq_ms": 0.04, "decode_kv_token_ns": 95, "output_delay_ms": 11,
	}},
	{"a small GPU", engine.AttentionProfile, engine.VLLMV1, map[string]float64{
		"request_ms": 5.4, "prefill_step_ms": 3.1, "prefill_token_ms": 0.37, "prefill_attention_ns": 12, "hot_slowdown": 0.3, "heat_ms": 140,
		"decode_step_ms": 31, "decode_seq_ms": 0.07, "decode_kv_token_ns": 240, "output_delay_ms": 0,
	}},
	{"a large GPU", engine.AttentionProfile, engine.VLLMV1, map[string]float64{
		"request_ms": 4.2, "prefill_step_ms": 4.4, "prefill_token_ms": 0.031, "prefill_attention_ns": 0.9, "hot_slowdown": 0, "heat_ms": 0,
		"decode_step_ms": 7.4, "decode_seq_ms": 0.05, "decode_kv_token_ns": 31, "output_delay_ms": 0,
	}},
	{"experts", "sglang-deepseek-v3-triton", "", map[string]float64{
		"request_ms": 5, "prefill_step_ms": 9, "prefill_token_ms": 0.052, "decode_step_ms": 13, "decode_seq_ms": 0.05, "decode_kv_token_ns": 110,
		"experts.read_ms": 0.05, "front_end_in_ms": 3.1, "front_end_out_ms": 0,
	}},
}

// TestDisturbed: what a machine that is not quiet adds to times leaves the costs within 3 %.
func TestDisturbed(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: without -short only, as .ci/run has it")
	}
	for _, s := range strangers {
		values := map[string]float64{}
		for field, v := range s.costs {
			values["costs."+field] = v
		}
		truth, err := fit.With(warm(t, s.base), values)
		if err != nil {
			t.Fatal(err)
		}
		if s.engine != "" {
			truth = truth.WithScheduler(s.engine)
		}
		for seed := range uint64(*seeds) {
			t.Run(fmt.Sprintf("%s/%d", s.name, seed), func(t *testing.T) {
				t.Parallel()
				f := fitted(t, truth, disturb(t, truth, seed), 5)
				var off []string
				for _, c := range slices.Concat(even, serial) {
					got, want := read(t, f.Profile, c), read(t, truth, c)
					if got != want {
						off = append(off, fmt.Sprintf("%s %+.1f %%", c.field, 100*(got/want-1)))
					}
					if math.Abs(got-want) > 0.03*want {
						t.Errorf("%s is %v, want %v", c.field, got, want)
					}
				}
				t.Logf("way %v; %s", 2*f.RPC, strings.Join(off, ", "))
				if want := sim.DefaultRPC + perHop; math.Abs(float64(f.RPC)/float64(want)-1) > 0.03 {
					t.Errorf("half the way takes %v, want %v", f.RPC, want)
				}
				for _, c := range f.Costs {
					if !(c.Low <= c.Value && c.Value <= c.High) || c.High == c.Low {
						t.Errorf("%s is %v, and its interval is %v to %v", c.Field, c.Value, c.Low, c.High)
					}
				}
				for _, want := range []string{"prefill_token_ms", "95 % interval", "front_end_out_ms is 0: not needed; at most", "cold_ms", "a first token took 1.00 ms more", "In sample: "} {
					if text := f.String(); !strings.Contains(text, want) {
						t.Errorf("%q is not in\n%s", want, text)
					}
				}
			})
		}
	}
}
