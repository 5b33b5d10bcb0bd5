package rail

import (
	"bytes"
	"encoding/csv"
	"math"
	"slices"
	"strings"
	"testing"

	"kvferry/transport"
)

// TestLatency: sizes of a model, with and without an immediate, in both directions, beside bare
// sockets, between this process and a child.
func TestLatency(t *testing.T) {
	noLeaks(t)
	cfg := quick("")
	cfg.Latency, cfg.Imms, cfg.Beside = true, []bool{false, true}, []string{Bare}
	cfg.Blocks, cfg.Batches, cfg.Ops = nil, nil, []transport.Op{transport.Write, transport.Read}
	cfg.Models, cfg.BlockTokens = []Layout{{Model: "tiny", Source: "here", Layers: 2, Token: 24}}, 4
	var out bytes.Buffer
	cfg.Stdout, cfg.Out = &out, t.TempDir()
	cfg.Duration = 20e6
	r, err := Run(t.Context(), cfg)
	if err != nil || len(r.Points) != 2*4*2 || len(r.References) != 2*4 {
		t.Fatalf("%d points, %d references, %v\n%s", len(r.Points), len(r.References), err, out.String())
	}
	for i := range r.Points {
		p := &r.Points[i]
		sound(t, p)
		if p.Depth != 1 || p.Batch != 1 || p.Imm != (i%2 == 1) || p.Fairness != nil {
			t.Errorf("%+v", p)
		}
	}
	for _, o := range r.References {
		if o.Error != "" || o.Samples < 1 || o.GBps <= 0 {
			t.Errorf("%+v", o)
		}
	}
	for _, want := range []string{"kvferry + immediate", "tiny: block of 4, all layers", "KV sizes of tiny follow from here", "write bare is a ping of blocking sockets", "\nread "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	var table bytes.Buffer
	if err := r.table().WriteCSV(&table); err != nil {
		t.Fatal(err)
	}
	if rows, err := csv.NewReader(&table).ReadAll(); err != nil || len(rows) != 1+16+8 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

// TestOneAtATime: latencies have one batch under way, whatever the default is else.
func TestOneAtATime(t *testing.T) {
	for _, alone := range []bool{false, true} {
		cfg := quick("")
		cfg.Rails, cfg.Latency, cfg.Iterations = []string{Mem}, alone, 64
		r, err := Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Points[0].Depth; alone && got != 1 || !alone && got != 4 {
			t.Errorf("alone %v: depth %d", alone, got)
		}
	}
}

// TestPeers: several initiators share one target, and what each has moved is counted.
func TestPeers(t *testing.T) {
	noLeaks(t)
	for _, specs := range [][]string{{Mem}, {"127.0.0.1:0"}} {
		cfg := quick("")
		cfg.Rails, cfg.Peers, cfg.Threads = specs, []int{1, 3}, []int{2}
		cfg.Blocks = cfg.Blocks[:1]
		var out bytes.Buffer
		cfg.Stdout = &out
		r, err := Run(t.Context(), cfg)
		if err != nil || len(r.Points) != 2 {
			t.Fatal(r, err)
		}
		one, three := &r.Points[0], &r.Points[1]
		sound(t, one)
		sound(t, three)
		each := int64(2*cfg.Iterations*cfg.Batches[0]) * cfg.Blocks[0]
		if f := three.Fairness; one.Fairness != nil || three.Threads != 2 || f == nil || !slices.Equal(f.Bytes, []int64{each, each, each}) || f.MinMax != 1 || math.Abs(f.Jain-1) > 1e-9 {
			t.Errorf("%+v and %+v", one.Fairness, three.Fairness)
		}
		if three.Rails[0].Bytes != 3*each && len(three.Rails) == 1 {
			t.Errorf("the rails have carried %d bytes, want %d", three.Rails[0].Bytes, 3*each)
		}
		if !strings.Contains(out.String(), "initiators  min/max   Jain") {
			t.Error(out.String())
		}
	}
}

// TestPercentileMarks: a percentile is marked or left out where too few samples are behind it.
func TestPercentileMarks(t *testing.T) {
	for _, c := range []struct {
		n    int64
		p    float64
		want string
	}{{10_000, 99.9, "7.0"}, {9_999, 99.9, "7.0~"}, {1_000, 99.9, "7.0~"}, {999, 99.9, ""}, {1_000, 99, "7.0"}, {1, 50, ""}} {
		if got := percentile(7, c.p, c.n); got != c.want {
			t.Errorf("p%v of %d samples: %q, want %q", c.p, c.n, got, c.want)
		}
	}
}

// TestNotInstalled: what is not there is said, and the points are measured all the same.
func TestNotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	cfg := quick("")
	cfg.Latency, cfg.Beside = true, []string{UCX, Iperf3}
	var out bytes.Buffer
	cfg.Stdout = &out
	r, err := Run(t.Context(), cfg)
	if err != nil || len(r.Points) != 2 || len(r.Notes) != 2 {
		t.Fatalf("%v, %q", err, r.Notes)
	}
	for _, want := range []string{"ucx is left out from write of 4k on: ucx_perftest is not installed here", "iperf3 is not installed here"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestLatencyFaults(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"Peers: 0: use 1":                     func(c *Config) { c.Peers = []int{0} },
		"2 initiators cannot all listen":      func(c *Config) { c.Rails, c.Peers, c.Server = []string{"127.0.0.1:7000"}, []int{2}, "10.0.0.1" },
		`Depths: "[2]": latencies are of one`: func(c *Config) { c.Latency, c.Depths = true, []int{2} },
		`Beside: "netperf": use some of bare`: func(c *Config) { c.Latency, c.Beside = true, []string{"netperf"} },
		"it stands beside latencies":          func(c *Config) { c.Beside = []string{"bare"} },
		"BlockTokens: -1: use":                func(c *Config) { c.BlockTokens = -1 },
	} {
		cfg := quick("")
		change(&cfg)
		if r, err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || r != nil {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
