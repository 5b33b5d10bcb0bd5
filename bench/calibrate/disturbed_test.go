package calibrate

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
	"kvferry/bench/serve"
	"kvferry/engine"
	"kvferry/load"
	"kvferry/sim"
)

// disturbed is a server as it is seen on a machine that is not quiet: messages take 0.3 ms longer each
// way, a token in ten comes up to 3 ms late, and a tenth of the series finds all costs 20 % higher. And as
// it is on any machine: timers are 0.05 to 0.15 ms late, so that each token is, and each request of a load;
// requests that were sent at once arrive over 0.1 to 1 ms, as who reads them wakes up late; and the proxy
// takes 0.05 to 0.2 ms with a first token, which is in its account and in no cost.
type disturbed struct {
	usual, slow serve.Target
	rng         *rand.Rand
	silent      bool // it gives no account
	asked       int  // loads
	from, to    int  // those of them that are slow
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
	slow, err := WithFields(truth, values)
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
	between := func(low, high float64) float64 { return low + (high-low)*d.rng.Float64() }
	var asked load.List
	var way []float64 // of each request, from the client's clock to the server, in ms
	burst := between(0.1, 1)
	for at := time.Duration(0); ; {
		r, ok, err := l.Next()
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		way = append(way, between(0, burst))
		late := milliseconds(between(0.05, 0.15) + way[len(way)-1])
		if len(r.After) > 0 {
			r.Delay += late
		} else { // in order
			at = max(at, r.At+late)
			r.At = at
		}
		asked = append(asked, r)
	}
	l.Source = &asked
	return t.Run(ctx, l, func(r *client.Record) {
		r.Sent -= way[r.Index] / 1e3
		own := between(0.05, 0.2)
		r.Breakdown.ProxyOwnUS = client.Count(1e3 * own)
		r.Breakdown.ProxyUS += r.Breakdown.ProxyOwnUS
		last := 0.0
		for i := range r.TokenTimes {
			r.TokenTimes[i] += (own + between(0.05, 0.15)) / 1e3
			if d.rng.IntN(10) == 0 {
				r.TokenTimes[i] += 3e-3 * d.rng.Float64()
			}
			last = max(last, r.TokenTimes[i]) // no token overtakes another
			r.TokenTimes[i] = last
		}
		r.FirstToken = r.TokenTimes[0]
		if d.silent {
			r.Breakdown = nil
		}
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
	{"an A10", engine.AttentionProfile, "", nil},
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

// TestDisturbed: what a machine adds to times, a quiet one and one that is not, leaves the costs within 3 %. Of
// a server that gives no account the way to its engine is in request_ms.
func TestDisturbed(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: without -short only, as .ci/run has it")
	}
	for _, s := range strangers {
		values := map[string]float64{}
		for field, v := range s.costs {
			values["costs."+field] = v
		}
		truth, err := WithFields(warm(t, s.base), values)
		if err != nil {
			t.Fatal(err)
		}
		if s.engine != "" {
			truth = truth.WithScheduler(s.engine)
		}
		for seed := range uint64(*seeds) {
			for _, silent := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/silent=%v", s.name, seed, silent), func(t *testing.T) {
					t.Parallel()
					server := disturb(t, truth, seed)
					server.silent = silent
					holds(t, truth, fitted(t, truth, server, 5))
				})
			}
		}
	}
}

// holds compares a fit to what a disturbed server has.
func holds(t *testing.T, truth *engine.Profile, f *Fitted) {
	t.Helper()
	var off []string
	for _, c := range slices.Concat(even, serial) {
		got, want := read(t, f.Profile, c), read(t, truth, c)
		if c.field == "request_ms" && !f.Told { // what is late on the way is in it
			want += 2 * 1e3 * perHop.Seconds()
			if got > want && got < want+0.7 {
				continue
			}
		}
		if got != want {
			off = append(off, fmt.Sprintf("%s %+.1f %%", c.field, 100*(got/want-1)))
		}
		if math.Abs(got-want) > 0.03*want {
			t.Errorf("%s is %v, want %v", c.field, got, want)
		}
	}
	t.Logf("way %v; %s", 2*f.RPC, strings.Join(off, ", "))
	wants := []string{"prefill_token_ms", "95 % interval", "cold_ms", "In sample: "}
	if f.Told {
		// Of what is late on the way, half is seen here and half there.
		if want := sim.DefaultRPC + perHop; f.RPC < want || f.RPC > want+500*time.Microsecond {
			t.Errorf("half the way takes %v, want %v and what is late", f.RPC, want)
		}
		wants = append(wants, "a first token took 1.")
	}
	inside, wide := 0, ""
	for _, c := range f.Costs {
		want, err := ReadField(truth, "costs."+c.Field)
		if err != nil {
			t.Fatal(err)
		}
		if c.Low <= want && want <= c.High {
			inside++
		}
		wide += fmt.Sprintf(" %s %.1f %%", c.Field, 50*(c.High-c.Low)/c.Value)
		if !(c.Low <= c.Value && c.Value <= c.High) || c.High == c.Low {
			t.Errorf("%s is %v, and its interval is %v to %v", c.Field, c.Value, c.Low, c.High)
		}
	}
	t.Logf("intervals: %d of %d have the truth; half as wide as%s", inside, len(f.Costs), wide)
	for _, want := range wants {
		if text := f.String(); !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}
