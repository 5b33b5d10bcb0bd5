package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/handoff/handofftest"
	"kvferry/load"
	"kvferry/placement"
)

// randomConfig draws a small cluster and a load that strains it: pools that
// prompts of different lengths fill, several NICs, all policies.
func randomConfig(tb testing.TB, seed uint64) (Config, load.Spec) {
	rng := rand.New(rand.NewPCG(seed, 1))
	one := func(n int) int { return 1 + rng.IntN(n) }
	every := handofftest.Every()
	cfg := Config{
		Profile: a10(tb), Prefill: one(3), Decode: one(3), Handoff: every[rng.IntN(len(every))],
		Placement: placement.Names()[rng.IntN(len(placement.Names()))], PrefixCaching: rng.IntN(2) == 0,
		RPC: time.Duration(rng.IntN(2)) * 200 * time.Microsecond, RecordTokens: true,
		KVBlocks: 100 + rng.IntN(400),
	}
	if seed%3 == 0 {
		cfg.RPC *= 100 // prompts go ahead
	}
	for range one(3) {
		cfg.NICs = append(cfg.NICs, NIC{BytesPerSecond: []float64{0.3e9, 1.29e9, 12.5e9}[rng.IntN(3)], Latency: time.Duration(rng.IntN(20)) * time.Microsecond})
	}
	if rng.IntN(4) == 0 {
		cfg.Nondisagg, cfg.Prefill, cfg.Decode, cfg.Handoff, cfg.NICs = one(3), 0, 0, handoff.None, nil
		cfg.Chunked = rng.IntN(2) == 0
	}
	if cfg.Nondisagg == 0 && seed%4 == 1 {
		cfg.ConditionalDisaggregation = one(400)
		cfg.DecodeNICs = []NIC{{BytesPerSecond: 0.5e9}, {BytesPerSecond: 3e9, Latency: time.Millisecond}}
	}
	spec := load.Spec{
		Requests: 100, Rate: 1 + 20*rng.Float64(), Burstiness: 0.2 + rng.Float64(), InputLen: 16 + rng.IntN(700), OutputLen: one(40),
		RangeRatio: rng.Float64() * 0.9, PrefixLen: rng.IntN(3) * 32, Seed: seed, Vocab: 1000,
	}
	return cfg, spec
}

// TestConservation: over random clusters and loads, every request gets exactly
// its tokens in order of time, every byte that a prompt needs moves once, what
// the NICs of one side sent the other received, and when the load is over nobody
// holds a block.
func TestConservation(t *testing.T) {
	t.Parallel()
	seeds := uint64(150)
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		cfg, spec := randomConfig(t, seed)
		name := fmt.Sprintf("seed %d, %v", seed, cfg.Handoff)
		l := drawn(t, spec)
		l.InFlight = int(seed % 4) // 0: open loop
		c, err := newCluster(cfg, l)
		if err != nil {
			t.Fatal(err)
		}
		tokens, bytes, refused, ended := 0, int64(0), 0, 0
		last := time.Duration(0)
		c.cfg.OnOutcome = func(o *Outcome) {
			ended++
			if n := c.stats.Requests - (ended - 1); l.InFlight > 0 && n > l.InFlight || o.Arrived < o.Due {
				t.Fatalf("%s: %d requests at once, one arrives %v, due at %v", name, n, o.Arrived, o.Due)
			}
			if c.now < last {
				t.Fatalf("%s: time runs backwards", name)
			}
			last = c.now
			if o.Err != nil {
				refused++
				if o.PromptTokens+o.MaxTokens <= cfg.KVBlocks*16 && o.PromptTokens+o.MaxTokens <= cfg.Profile.MaxModelLen {
					t.Fatalf("%s: request %d of %d + %d tokens was refused: %v", name, o.Index, o.PromptTokens, o.MaxTokens, o.Err)
				}
				return
			}
			tokens += o.Tokens
			if o.Tokens != o.MaxTokens || len(o.TokenTimes) != o.Tokens || o.First != o.TokenTimes[0] || o.Last != o.TokenTimes[o.Tokens-1] || o.First <= o.Arrived {
				t.Fatalf("%s: %+v", name, o)
			}
			for i := 1; i < len(o.TokenTimes); i++ {
				if o.TokenTimes[i] < o.TokenTimes[i-1] {
					t.Fatalf("%s: request %d: token %d before token %d", name, o.Index, i, i-1)
				}
			}
			g := cfg.Profile.KVGeometry
			want := int64(o.PromptTokens * g.TokenBytes())
			switch {
			case cfg.Nondisagg > 0, o.MaxTokens == 1, o.PromptTokens <= cfg.ConditionalDisaggregation:
				want = 0
			case o.Breakdown.Bytes == 0 && cfg.ConditionalDisaggregation > 0 && c.compute.policy.WantsPrefix():
				want = 0 // the decode node is taken to have enough of it
			case cfg.Handoff.Parts == handoff.Tensors:
				want += int64(o.PromptTokens * g.HiddenTokenBytes())
			}
			moved := o.Breakdown.Bytes
			// The consumer's prefix cache saves whole blocks.
			if cfg.PrefixCaching && !cfg.Handoff.InStep && moved < want && (want-moved)%int64(g.BlockBytes()) == 0 {
				want = moved
			}
			if moved != want {
				t.Fatalf("%s: request %d moved %d bytes, want %d", name, o.Index, moved, want)
			}
			bytes += moved
		}
		if err := c.run(context.Background()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if ended != spec.Requests || c.stats.Ended != ended || c.stats.Failed != refused || len(c.flights) != 0 {
			t.Fatalf("%s: %d of %d requests ended, %d in flight", name, ended, spec.Requests, len(c.flights))
		}
		if c.stats.KVBytes != bytes {
			t.Fatalf("%s: %d bytes of KV in all, %d by request", name, c.stats.KVBytes, bytes)
		}
		sent, received := 0.0, 0.0
		for _, n := range c.nodes {
			if n.core.Requests() != 0 || n.pool.Used() != 0 || n.load.InFlight != 0 || n.load.LinkQueuedBytes != 0 || len(n.askers) != 0 {
				t.Fatalf("%s: %s is left with %d requests, %d blocks, %d legs, %d askers", name, n.name, n.core.Requests(), n.pool.Used(), n.load.InFlight, len(n.askers))
			}
			for i := range n.tx {
				sent, received = sent+n.tx[i].Bytes(), received+n.rx[i].Bytes()
			}
		}
		if math.Abs(sent-float64(bytes)) > 1 || math.Abs(received-sent) > 1 {
			t.Fatalf("%s: %d bytes moved, NICs sent %.0f and received %.0f", name, bytes, sent, received)
		}
		if _, moving := c.network.First(); moving || c.agenda.Len() != 0 {
			t.Fatalf("%s: something moves: %v; %d events left", name, moving, c.agenda.Len())
		}
	}
}

// TestDeterminism: the same seed gives the same outcomes to the last bit.
func TestDeterminism(t *testing.T) {
	t.Parallel()
	seeds := uint64(20)
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		var runs [2]string
		for i := range runs {
			cfg, spec := randomConfig(t, seed)
			var b strings.Builder
			cfg.OnOutcome = func(o *Outcome) { fmt.Fprintf(&b, "%+v\n", *o) }
			stats, err := Run(context.Background(), cfg, drawn(t, spec))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%+v\n", *stats)
			runs[i] = b.String()
		}
		if runs[0] != runs[1] {
			t.Fatalf("seed %d: two runs differ", seed)
		}
	}
}

// TestFasterIsNotSlower: with pull, push and layerwise, a faster link or another NIC
// does not make mean TTFT worse by more than 1 %, everything else being equal.
// With v0 it may, by a lot: a transfer that ends earlier lets its decode node ask
// for the next one earlier, whose copies then hold back a prefill that would have
// gone first.
func TestFasterIsNotSlower(t *testing.T) {
	t.Parallel()
	mean := func(h handoff.Handoff, nics []NIC, seed uint64, input int, rate float64) time.Duration {
		cfg := pair(t, h, 1)
		cfg.NICs = nics
		var sum time.Duration
		n := 0
		cfg.OnOutcome = func(o *Outcome) { sum, n = sum+o.TTFT(), n+1 }
		spec := load.Spec{Requests: 300, Rate: rate, Burstiness: 1, InputLen: input, OutputLen: 16, RangeRatio: 0.3, Seed: seed, Vocab: 1000}
		if _, err := Run(context.Background(), cfg, drawn(t, spec)); err != nil {
			t.Fatal(err)
		}
		return sum / time.Duration(n)
	}
	link := func(gb float64, n int) (nics []NIC) {
		for range n {
			nics = append(nics, NIC{BytesPerSecond: gb * 1e9})
		}
		return nics
	}
	type workload struct {
		input int
		rate  float64
	}
	seeds, workloads := uint64(3), []workload{{256, 8}, {1024, 2}, {1024, 3}}
	if testing.Short() {
		seeds, workloads = 1, workloads[:1]
	}
	for _, h := range []handoff.Handoff{handoff.Pull, handoff.Push, handoff.Layerwise} {
		for _, w := range workloads {
			for seed := range seeds {
				before := time.Duration(math.MaxInt64)
				for _, nics := range [][]NIC{link(0.3, 1), link(0.6, 1), link(0.6, 2), link(2.4, 1), link(2.4, 2), link(12.5, 1), link(12.5, 4)} {
					ttft := mean(h, nics, seed, w.input, w.rate)
					if float64(ttft) > 1.01*float64(before) {
						t.Errorf("%v, %d tokens at %v/s, seed %d: mean TTFT %v with %d NICs of %v GB/s, %v with less",
							h, w.input, w.rate, seed, ttft, len(nics), nics[0].BytesPerSecond/1e9, before)
					}
					before = ttft
				}
			}
		}
	}
}

func TestEmptyLoad(t *testing.T) {
	stats, err := Run(context.Background(), pair(t, handoff.Layerwise, 1), list())
	if err != nil || stats.Requests != 0 || stats.Duration != 0 {
		t.Errorf("%+v, %v", stats, err)
	}
}

// A load that never fits is refused request by request, with the reason.
func TestLoadThatNeverFits(t *testing.T) {
	for _, h := range handofftest.Every() {
		cfg := pair(t, h, 1)
		cfg.KVBlocks = 10
		out, stats := simulate(t, cfg, poisson(t, 10, 1, 500, 5))
		if stats.Failed != 10 || stats.Ended != 10 {
			t.Errorf("%v: %+v", h, stats)
		}
		for _, o := range out {
			if !errors.Is(o.Err, engine.ErrPoolSize) {
				t.Errorf("%v: request %d: %v", h, o.Index, o.Err)
			}
		}
	}
}

func TestConfigFaults(t *testing.T) {
	good := pair(t, handoff.Pull, 1)
	for want, spoil := range map[string]func(*Config){
		"NICs[0].BytesPerSecond: 0:":                       func(c *Config) { c.NICs = []NIC{{}} },
		"NICs[0].BytesPerSecond: NaN:":                     func(c *Config) { c.NICs = []NIC{{BytesPerSecond: math.NaN()}} },
		"NICs[1].Latency: -1ns: use 0s":                    func(c *Config) { c.NICs = append(c.NICs[:1:1], NIC{BytesPerSecond: 1, Latency: -1}) },
		"NICs: 0: ":                                        func(c *Config) { c.NICs = nil },
		"Decode: 0: a cluster has":                         func(c *Config) { c.Decode = 0 },
		"Prefill: -1: use 0 to":                            func(c *Config) { c.Prefill = -1 },
		"DecodeNICs[0].BytesPerSecond: 0:":                 func(c *Config) { c.DecodeNICs = []NIC{{}} },
		"ConditionalDisaggregation: -1: use 0 to":          func(c *Config) { c.ConditionalDisaggregation = -1 },
		"ConditionalDisaggregation: 9: nodes that do both": func(c *Config) { c.ConditionalDisaggregation, c.Nondisagg, c.Prefill, c.Decode = 9, 1, 0, 0 },
		"Nondisagg: 2: a cluster has":                      func(c *Config) { c.Nondisagg = 2 },
		"Handoff: none given":                              func(c *Config) { c.Handoff = handoff.None },
		`Placement: "best": use one of`:                    func(c *Config) { c.Placement = "best" },
		"RPC: 2s: use 0s to 1s":                            func(c *Config) { c.RPC = 2 * time.Second },
		"RPC: -1ns: use 0s":                                func(c *Config) { c.RPC = -1 },
		"KVBlocks: 1073741825: ":                           func(c *Config) { c.KVBlocks = 1<<30 + 1 },
		"Profile: none given":                              func(c *Config) { c.Profile = nil },
	} {
		c := good
		spoil(&c)
		if _, err := Run(context.Background(), c, list()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q in it", err, want)
		}
	}
	good.RPC, good.KVBlocks = time.Second, 1<<30
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
}

// TestCancel: a run that is stopped returns what it has.
func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cfg := pair(t, handoff.Pull, 1)
	ended := 0
	cfg.OnOutcome = func(*Outcome) {
		if ended++; ended == 50 {
			cancel()
		}
	}
	stats, err := Run(ctx, cfg, poisson(t, 1e6, 4, 256, 16))
	if !errors.Is(err, context.Canceled) || stats.Ended < 50 || stats.Ended > 5000 {
		t.Errorf("%+v, %v", stats, err)
	}
}

// TestMemoryDoesNotGrow: what a run keeps does not depend on how many requests it
// has finished.
func TestMemoryDoesNotGrow(t *testing.T) {
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	cfg := pair(t, handoff.Layerwise, 12.5)
	cfg.RecordTokens = false
	cfg.Prefill, cfg.Decode, cfg.PrefixCaching, cfg.KVBlocks = 2, 2, true, 500
	cfg.OnGap = func(time.Duration) {}
	ended := 0
	var early, late uint64
	cfg.OnOutcome = func(*Outcome) {
		switch ended++; ended {
		case 3000:
			early = heap()
		case 9500:
			late = heap()
		}
	}
	if _, err := Run(context.Background(), cfg, poisson(t, 10000, 10, 128, 4)); err != nil {
		t.Fatal(err)
	}
	if late > early+1<<20 {
		t.Errorf("%d KiB after 3,000 requests, %d after 9,500", early>>10, late>>10)
	}
}
