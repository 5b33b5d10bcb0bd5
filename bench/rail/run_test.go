package rail

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/transport"
)

// TestMain: the target is this binary executed again, and so is a client that is
// to be killed.
func TestMain(m *testing.M) {
	Child()
	if addr := os.Getenv(clientEnv); addr != "" {
		cfg := quick(addr)
		cfg.Iterations = 0
		cfg.Duration, cfg.Batches, cfg.Depths, cfg.Progress = 100*time.Millisecond, []int{1, 2, 4, 8, 16}, []int{1, 2, 3, 4, 5}, os.Stdout
		_, _ = Run(context.Background(), cfg)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// clientEnv has the server's address of a client that is this binary.
const clientEnv = "KVFERRY_TEST_CLIENT"

// patience bounds every wait for something that must happen. It is no measure of
// speed: the machine may be busy.
const patience = time.Minute

// quick is a run over loopback of two short points.
func quick(server string) Config {
	return Config{
		Rails: []string{"127.0.0.1:0"}, Server: server, Blocks: []int64{4 << 10, 32 << 10}, Batches: []int{4},
		Iterations: 32, Warmup: 5 * time.Millisecond, Segment: 4 << 20, Timeout: patience, Check: true,
	}
}

// noLeaks fails the test if goroutines outlive it.
func noLeaks(t *testing.T) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() { clocktest.Goroutines(t, before) })
}

// sound fails the test if a point is not.
func sound(t *testing.T, p *Point) {
	t.Helper()
	if p.Bytes == 0 || p.Bytes != p.Blocks*p.Block || p.Blocks != p.Batches*int64(p.Batch) || p.GBps <= 0 || p.Errors != 0 ||
		p.Latency.P50US <= 0 || p.Latency.P99US < p.Latency.P50US || p.Latency.MaxUS < p.Latency.P999US || p.PostUS <= 0 || p.CPU.PerGB <= 0 {
		t.Errorf("%+v", p)
	}
	if p.Checked == nil || *p.Checked == 0 || *p.Bad != 0 || p.BadAt != "" {
		t.Errorf("%s %d: checked %v, bad %v %s", p.Op, p.Block, p.Checked, p.Bad, p.BadAt)
	}
	slots := int64(0)
	for _, n := range p.SlotBytes {
		slots += n
	}
	if slots != p.Bytes {
		t.Errorf("%d bytes in the slots, %d in all", slots, p.Bytes)
	}
}

// idle reports whether a rail carried nothing of a point.
func idle(p Point) bool {
	return p.Block > 1 && slices.ContainsFunc(p.Rails, func(u RailUse) bool { return u.Bytes == 0 })
}

func TestRuns(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"memory": func(c *Config) { c.Rails = []string{Mem} },
		"two in memory": func(c *Config) {
			c.Rails = []string{Mem, Mem}
			c.Threads, c.Depths, c.Selects = []int{3}, []int{1}, []transport.Selection{transport.RoundRobin}
		},
		"child": func(*Config) {},
		"child, two rails": func(c *Config) {
			c.Rails = append(c.Rails, "127.0.0.1:0")
			c.Slice, c.Threads, c.Selects = 8<<10, []int{2}, []transport.Selection{transport.Static}
		},
		"setups": func(c *Config) {
			c.Rails = []string{Mem, Mem}
			c.Ops, c.Blocks = c.Ops[:1], c.Blocks[1:]
			c.Selects = []transport.Selection{transport.Static, transport.RoundRobin}
			c.Counts = []int{1, 2}
		},
		"setups of a child": func(c *Config) {
			c.Rails = append(c.Rails, "127.0.0.1:0")
			c.Counts, c.Ops, c.Slice, c.Selects = []int{2, 1}, c.Ops[:1], 4<<10, []transport.Selection{transport.Static}
		},
		"iterations": func(c *Config) { c.Rails = []string{Mem}; c.Iterations = 7; c.Threads = []int{2} },
		"odd sizes":  func(c *Config) { c.Blocks = []int64{1, 4097}; c.Warmup = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			cfg := quick("")
			cfg.Ops = []transport.Op{transport.Write, transport.Read}
			cfg.Out = t.TempDir()
			var out, progress bytes.Buffer
			cfg.Stdout, cfg.Progress = &out, &progress
			change(&cfg)
			var r *Result
			clocktest.Growing(t, cfg.Warmup, func(d time.Duration) bool { // a rail's connection may take longer than a point
				cfg.Warmup = d
				out.Reset()
				progress.Reset()
				var err error
				if r, err = Run(t.Context(), cfg); err != nil || len(r.Points) != 4 {
					t.Fatalf("%d points: %v\n%s", len(r.Points), err, out.String())
				}
				return !slices.ContainsFunc(r.Points, idle)
			})
			for i := range r.Points {
				p := &r.Points[i]
				sound(t, p)
				if want := int64(cfg.Iterations * max(1, append(cfg.Threads, 1)[0])); p.Batches != want {
					t.Errorf("%d batches, want %d", p.Batches, want)
				}
				if len(p.Rails) != p.Count || len(cfg.Counts) == 0 && p.Count != len(cfg.Rails) || p.Select == "" {
					t.Errorf("rails %+v of %d, %q", p.Rails, p.Count, p.Select)
				}
			}
			if strings.Count(progress.String(), "\n") != 4 || !strings.Contains(out.String(), "results: ") {
				t.Errorf("stderr:\n%s\nstdout:\n%s", progress.String(), out.String())
			}
			text, err := os.ReadFile(filepath.Join(cfg.Out, "results.json"))
			var back Result
			if err != nil || json.Unmarshal(text, &back) != nil || len(back.Points) != 4 || back.Points[3].Bytes != r.Points[3].Bytes {
				t.Errorf("results.json: %v", err)
			}
			if _, err := os.Stat(filepath.Join(cfg.Out, "report.html")); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestWindow: a point of a given time counts what completes in it.
func TestWindow(t *testing.T) {
	for _, specs := range [][]string{{Mem}, {"127.0.0.1:0"}} {
		clocktest.Growing(t, 20*time.Millisecond, func(d time.Duration) bool {
			cfg := quick("")
			cfg.Rails, cfg.Blocks, cfg.Iterations, cfg.Duration = specs, cfg.Blocks[:1], 0, d
			r, err := Run(t.Context(), cfg)
			if err != nil || len(r.Points) != 1 {
				t.Fatalf("%v: %v", specs, err)
			}
			if r.Points[0].Batches == 0 {
				return false
			}
			sound(t, &r.Points[0])
			return true
		})
	}
}

// TestCheckFindsCorruption: blocks with a wrong byte at the source are found at the
// destination, as many as there are, whichever way they went.
func TestCheckFindsCorruption(t *testing.T) {
	for _, specs := range [][]string{{Mem}, {"127.0.0.1:0"}} {
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			cfg := quick("")
			cfg.Rails, cfg.Ops, cfg.Blocks, cfg.Iterations = specs, []transport.Op{op}, []int64{4096}, 8
			cfg.Corrupt = []int{3, 17}
			var out bytes.Buffer
			cfg.Stdout = &out
			r, err := Run(t.Context(), cfg)
			if !errors.Is(err, ErrFaults) || *r.Points[0].Bad != 2 || !strings.Contains(out.String(), "thread 0, block 3, byte 2048") {
				t.Errorf("%v %v: %v\n%s", specs, op, err, out.String())
			}
		}
	}
}

// hook calls f with every line.
type hook struct {
	mu sync.Mutex
	f  func(string)
}

func (h *hook) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.f(string(b))
	return len(b), nil
}

// TestInterrupted: Ctrl-C in a point keeps the ones before and what there is of it.
func TestInterrupted(t *testing.T) {
	noLeaks(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := quick("")
	cfg.Ops = []transport.Op{transport.Write, transport.Read}
	cfg.Out = t.TempDir()
	cfg.Progress = &hook{f: func(line string) {
		if strings.HasPrefix(line, "point 2/4") {
			cancel()
		}
	}}
	r, err := Run(ctx, cfg)
	if !errors.Is(err, context.Canceled) || !r.Interrupted || len(r.Points) < 2 || len(r.Points) > 3 || r.Points[1].Interrupted || r.Error != "" {
		t.Fatalf("%v, %+v", err, r)
	}
	if _, err := os.Stat(filepath.Join(cfg.Out, "results.json")); err != nil {
		t.Error(err)
	}
}

// TestConfigFaults: every fault is named with its field and what would do.
func TestConfigFaults(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"Rails: none given":                 func(c *Config) { c.Rails = nil },
		`kind "udp" is unknown`:             func(c *Config) { c.Rails = []string{"udp/eth0"} },
		`["tcp/lo"] others: leave one out`:  func(c *Config) { c.Rails = []string{Mem, "tcp/lo"} },
		"cannot both listen there":          func(c *Config) { c.Rails = []string{"127.0.0.1:7000"} },
		"both ends in this process":         func(c *Config) { c.Rails, c.Server = []string{Mem}, "10.0.0.1" },
		"Counts: 2: use 1 to 1":             func(c *Config) { c.Counts = []int{2} },
		`Selects: "random": use one of`:     func(c *Config) { c.Selects = []transport.Selection{"random"} },
		"RailLimits: 2 rates: there are 1":  func(c *Config) { c.RailLimits = []float64{1, 2} },
		"Limit: 1: each rail has a rate":    func(c *Config) { c.RailLimits, c.Limit = []float64{1}, 1 },
		`Blocks: "0": use 1 byte`:           func(c *Config) { c.Blocks = []int64{0} },
		"Batches: -1: use 1":                func(c *Config) { c.Batches = []int{-1} },
		"Threads: 0: use 1":                 func(c *Config) { c.Threads = []int{0} },
		"Depths: 0: use 1":                  func(c *Config) { c.Depths = []int{0} },
		"Duration: -1s: use 1ms or more":    func(c *Config) { c.Duration = -time.Second },
		"Timeout: -1s: use a positive":      func(c *Config) { c.Timeout = -time.Second },
		"Iterations: -1: use 1 or more":     func(c *Config) { c.Iterations = -1 },
		`Segment: "-1": use`:                func(c *Config) { c.Segment = -1 },
		"which has":                         func(c *Config) { c.Segment = 1 << 40 },
		`Slice: "-1": use 1 byte`:           func(c *Config) { c.Slice = -1 },
		`Format: "xml": use text`:           func(c *Config) { c.Format = "xml" },
		`Segment: "4m": one batch`:          func(c *Config) { c.Blocks = []int64{1 << 30} },
		"16m at the least, does not fit in": func(c *Config) { c.Blocks, c.Threads = []int64{1 << 20, 2 << 20}, []int{4} },
	} {
		cfg := quick("")
		change(&cfg)
		if r, err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || r != nil {
			t.Errorf("%v, want %q", err, want)
		}
	}
	// Of a sweep, points that the memory is too small for are left out and named.
	cfg := quick("")
	cfg.Rails, cfg.Blocks = []string{Mem}, []int64{4096, 1 << 20, 2 << 20}
	r, err := Run(t.Context(), cfg)
	if err != nil || len(r.Points) != 2 || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "write 2m x 4, threads 1 is left out") {
		t.Errorf("%v, notes %q", err, r.Notes)
	}
}

// TestRailUnreachable: the control connection works and the rail does not: the
// run says why and ends, and does not spend the timeout on each of its points.
func TestRailUnreachable(t *testing.T) {
	noLeaks(t)
	addr, _ := startServer(t, ServerConfig{Rails: []string{"127.0.0.1:0?advertise=127.0.0.1:1"}})
	// The time is also what the server has for each answer, and what the first refused
	// connection may take.
	clocktest.Growing(t, 100*time.Millisecond, func(d time.Duration) bool {
		cfg := quick(addr)
		cfg.Timeout, cfg.Iterations = d, 3
		var out bytes.Buffer
		cfg.Stdout = &out
		r, err := Run(t.Context(), cfg)
		if err == nil {
			t.Fatalf("%+v\n%s", r.Points, out.String())
		}
		return strings.Contains(err.Error(), "nothing was transferred") && len(r.Points) == 1 && r.Points[0].Errors == 4 && r.Points[0].Bytes == 0 &&
			strings.Contains(out.String(), "write *") && strings.Contains(out.String(), "connection refused")
	})
}
