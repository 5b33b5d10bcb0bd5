package rail

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"kvferry/bench/observe"
)

// update rewrites the golden files: go test ./bench/rail -update.
var update = flag.Bool("update", false, "rewrite testdata/*.golden")

func fixedResult() *Result {
	here := observe.Machine{CPU: "AMD EPYC", Threads: 2, MemoryBytes: 24 << 30, OS: "linux/amd64", Kernel: "6.18", Go: "go1.26"}
	far := here
	far.Threads = 16
	limit, pct, checked, none, bad := 12.5, 31.4, int64(16384), int64(0), int64(2)
	return &Result{
		Started: time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC), Protocol: protocol,
		Settings: Settings{
			Rails: []string{"tcp/eth0"}, DurationS: 2, WarmupS: 0.2, Segment: 1 << 30, Slice: 1 << 20, TimeoutS: 10, Check: true,
			LimitGBps: &limit, LimitSource: "the NICs' own",
		},
		Initiator: End{Where: "this machine", Rails: []string{"tcp/eth0 at 10.0.0.2:4000"}, Machine: here},
		Target:    End{Where: "10.0.0.1:18515", Rails: []string{"tcp/eth0 at 10.0.0.1:4000"}, Machine: far},
		Points: []Point{
			{
				Op: "write", Block: 65536, Batch: 16, Threads: 1, Depth: 4, Count: 2, Select: "affinity", Seconds: 2, Batches: 7486, Blocks: 119776, Bytes: 7849639936,
				GBps: 3.924819968, PeakGBps: 4.1, LimitPct: &pct, OpsPerS: 59888, PostUS: 5.31, PostP99US: 9,
				Latency: Latency{MinUS: 800, MeanUS: 1068, P50US: 1050.1, P90US: 1500, P99US: 2703.13, P999US: 5398.4, MaxUS: 6000},
				CPU:     CPU{Initiator: 1.2, Target: 1.1, Bytes: 8e9, PerGB: 0.2875}, Checked: &checked, Bad: &none,
				Rails: []RailUse{{Name: "tcp/eth0", Bytes: 8e9, Slices: 130000, Retries: 3}, {Name: "tcp/eth1", Bytes: 2e9}},
			},
			{
				Op: "read", Block: 8, Batch: 1, Threads: 16, Depth: 128, Count: 1, Select: "static", Seconds: 2, Batches: 12, Blocks: 12, Bytes: 96,
				GBps: 4.8e-8, PeakGBps: 4.8e-8, OpsPerS: 6, Errors: 1, Error: "transport: read: deadline passed",
				Checked: &checked, Bad: &bad, BadAt: "thread 0, block 3, byte 4 of 8, at 0x40 of the segment", Interrupted: true,
			},
		},
		Notes: []string{"write 64m x 128, threads 1 is left out: too large"},
		Error: "the target has gone",
	}
}

func TestReportsGolden(t *testing.T) {
	r := fixedResult()
	for name, write := range map[string]func(*bytes.Buffer) error{
		"report.golden":   func(b *bytes.Buffer) error { return r.document().WriteText(b) },
		"perftest.golden": func(b *bytes.Buffer) error { return r.WritePerftest(b) },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(b.Bytes(), want) {
			t.Errorf("%s (-update rewrites it): %v\n%s", name, err, b.Bytes())
		}
	}
}

func TestHTML(t *testing.T) {
	r := fixedResult()
	var b bytes.Buffer
	if err := r.document().WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", "GB/s over the block size", "tcp/eth0 at 10.0.0.1:4000", "blocks are wrong", `&#34;block_bytes&#34;: 65536`} {
		if !bytes.Contains(b.Bytes(), []byte(want)) {
			t.Errorf("no %q in the page", want)
		}
	}
	r.Points = r.Points[:0]
	if err := r.document().WriteHTML(&b); err != nil {
		t.Errorf("a page of no points: %v", err)
	}
}
