package rail

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kvferry/bench/document"
	"kvferry/internal/clock/clocktest"
	"kvferry/transport"
)

// briefly is a run of a tenth of a second.
func briefly(specs ...string) FailoverConfig {
	return FailoverConfig{
		Config: Config{
			Rails: specs, Blocks: []int64{16 << 10}, Batches: []int{4}, Depths: []int{3}, Segment: 1 << 20, Slice: 8 << 10,
			Duration: 100 * time.Millisecond, Warmup: 5 * time.Millisecond, Timeout: patience,
		},
		Sample: time.Millisecond,
	}
}

// TestFailoverRuns: rails that nobody harms, as their reports have it: all of the
// memory is right after many rounds, and the two counts of bytes agree.
func TestFailoverRuns(t *testing.T) {
	for name, specs := range map[string][]string{"memory": {Mem, Mem}, "child": {"127.0.0.1:0", "127.0.0.1:0"}} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			cfg := briefly(specs...)
			var out bytes.Buffer
			var r *FailoverResult
			clocktest.Growing(t, cfg.Duration, func(d time.Duration) bool {
				out.Reset()
				cfg.Duration, cfg.Stdout, cfg.Out, cfg.Threads = d, &out, t.TempDir(), []int{2}
				cfg.Faults = []Annotation{{At: 30 * time.Millisecond, Action: LinkDown, Rail: 1}}
				var err error
				if r, err = Failover(t.Context(), cfg); err != nil || !r.Sound() || r.Checked != r.Segment/r.Block || len(r.Recoveries) != 1 {
					t.Fatalf("%v\n%s", err, out.String())
				}
				return r.Bytes > r.Segment && len(r.Samples) >= 5 // a second round has begun
			})
			if text := out.String(); !strings.HasPrefix(text, fmt.Sprintf("%s 2 rails for %v", Loading, cfg.Duration)) || !strings.Contains(text, "nothing lost, nothing twice") || !strings.Contains(text, "link-down") {
				t.Errorf("%s", text)
			}
			var back FailoverResult
			text, err := os.ReadFile(filepath.Join(cfg.Out, failoverFile))
			if err != nil || json.Unmarshal(text, &back) != nil || len(back.Samples) != len(r.Samples) || len(back.Recoveries) != 1 || !back.Sound() {
				t.Errorf("%s: %v", failoverFile, err)
			}
			text, _ = os.ReadFile(filepath.Join(cfg.Out, document.ReportFile))
			if !bytes.Contains(text, []byte("GB/s over time")) {
				t.Error("no plot")
			}
		})
	}
}

func TestFailoverFaultFile(t *testing.T) {
	cfg := briefly(Mem)
	cfg.FaultFile = filepath.Join(t.TempDir(), "faults.jsonl")
	if r, err := Failover(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "faults.jsonl") || len(r.Samples) == 0 {
		t.Errorf("%v: the samples are there, and what is missing is named", err)
	}
	// The lab's line comes while the load runs, and its time is by the wall clock.
	var happened time.Time
	cfg.Stdout = &hook{f: func(text string) {
		if strings.HasPrefix(text, Loading) {
			happened = time.Now()
			line, _ := json.Marshal(map[string]any{"unix_ns": happened.UnixNano(), "action": BlackHole, "nic": 0})
			_ = os.WriteFile(cfg.FaultFile, line, 0o644)
		}
	}}
	r, err := Failover(t.Context(), cfg)
	if err != nil || len(r.Recoveries) != 1 || r.Recoveries[0].Action != BlackHole {
		t.Fatalf("%v, %+v", err, r.Recoveries)
	}
	if at := time.Unix(0, happened.UnixNano()).Sub(r.Began.Round(0)); r.Recoveries[0].At != at {
		t.Errorf("the fault is at %v, not %v", r.Recoveries[0].At, at)
	}
}

func TestFailoverInterrupted(t *testing.T) {
	noLeaks(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := briefly(Mem)
	cfg.Duration, cfg.Out = time.Minute, t.TempDir()
	var out bytes.Buffer
	cfg.Stdout = &hook{f: func(text string) { out.WriteString(text); cancel() }}
	r, err := Failover(ctx, cfg)
	if !errors.Is(err, context.Canceled) || !r.Interrupted || r.Sound() || !strings.Contains(out.String(), "interrupted: nothing was checked") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if _, err := os.Stat(filepath.Join(cfg.Out, failoverFile)); err != nil {
		t.Error(err)
	}
}

func TestFailoverConfigFaults(t *testing.T) {
	for want, change := range map[string]func(*FailoverConfig){
		"Rails: none given":                        func(c *FailoverConfig) { c.Rails = nil },
		"Blocks: 2: it is one run":                 func(c *FailoverConfig) { c.Blocks = []int64{1, 2} },
		"Selects: 2: it is one run":                func(c *FailoverConfig) { c.Selects = transport.Selections[:2] },
		`Format: "json": text is`:                  func(c *FailoverConfig) { c.Format = JSON },
		"Sample: 1µs: use 1ms":                     func(c *FailoverConfig) { c.Sample = time.Microsecond },
		`FaultFile: "x": faults are`:               func(c *FailoverConfig) { c.FaultFile, c.Faults = "x", []Annotation{{Rail: 0}} },
		`Faults[0]: "0s:clear:1": it is of rail 1`: func(c *FailoverConfig) { c.Faults = []Annotation{{Action: ClearLink, Rail: 1}} },
		`Faults[1]: "0s:clear:0": it does not come`: func(c *FailoverConfig) {
			c.Faults = []Annotation{{Action: ClearLink}, {Action: ClearLink}}
		},
	} {
		cfg := briefly(Mem)
		change(&cfg)
		if r, err := Failover(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || r != nil {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestFailoverGolden(t *testing.T) {
	here := fixedResult().Initiator.Machine
	ms := func(n int) *time.Duration { d := time.Duration(n) * time.Millisecond; return &d }
	r := &FailoverResult{
		Started:   time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC),
		Initiator: End{Where: "this machine", Rails: []string{"tcp/eth0 at 10.0.0.2:4000", "tcp/eth1 at 10.0.1.2:4000"}, Machine: here},
		Target:    End{Where: "10.0.0.1:18515", Rails: []string{"tcp/eth0 at 10.0.0.1:4000", "tcp/eth1 at 10.0.1.1:4000"}, Machine: here},
		Select:    transport.Affinity, Block: 256 << 10, Batch: 16, Threads: 1, Depth: 8, Slice: 256 << 10, Segment: 1 << 30,
		Names:   []string{"tcp/eth0", "tcp/eth1"},
		Samples: timeline{{Bytes: make([]int64, 2), Resent: make([]int64, 2)}},
		Recoveries: []Recovery{
			{
				Annotation: Annotation{At: time.Second, Action: LinkDown, Rail: 1}, Until: 2 * time.Second,
				Detect: ms(12), Recover: ms(40), Gap: 30 * time.Millisecond, Resent: 5242880, Ideal: 0.239e9, Worst: 0.12e9, After: 0.2385e9,
			},
			{Annotation: Annotation{At: 2 * time.Second, Action: LinkUp, Rail: 1}, Until: 3 * time.Second, Detect: ms(480), Recover: ms(520), Ideal: 0.478e9, After: 0.477e9, Share: 0.239e9, Own: 0.239e9},
			{Annotation: Annotation{At: 3 * time.Second, Action: setRate, Rail: 1, Rate: 25e6}, Until: 4 * time.Second, Ideal: 0.263e9, After: 0.2e9, Share: 0.02e9, Own: 0.0239e9},
		},
		Bytes: 1e9, Counted: 1e9 + 1, Errors: 0, Checked: 4096, Bad: 1, BadAt: "thread 0, block 3 of round 2, byte 4 of 8, at 0x40 of the segment", Error: "the target has gone",
	}
	sum := [2]float64{}
	for at := 10 * time.Millisecond; at <= 4*time.Second; at += 10 * time.Millisecond {
		for rail := range sum {
			if before := at - 10*time.Millisecond; rail == 0 || before <= time.Second || before >= 2500*time.Millisecond {
				sum[rail] += 0.239e9 * 0.01
			}
		}
		r.Samples = append(r.Samples, Sample{At: at, Bytes: []int64{int64(sum[0]), int64(sum[1])}, Resent: make([]int64, 2)})
	}
	var b bytes.Buffer
	if err := r.document().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "failover.golden")
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || !bytes.Equal(b.Bytes(), want) {
		t.Errorf("%s (-update rewrites it): %v\n%s", path, err, b.Bytes())
	}
	if err := r.document().WriteHTML(&b); err != nil {
		t.Error(err)
	}
	r.Samples, r.Recoveries = nil, nil
	if err := errors.Join(r.document().WriteText(&b), r.document().WriteHTML(&b)); err != nil {
		t.Errorf("a report of nothing: %v", err)
	}
}
