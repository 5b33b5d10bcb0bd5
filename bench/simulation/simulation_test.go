package simulation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kvferry/bench/document"
	"kvferry/bench/document/documenttest"
	"kvferry/bench/stats"
	"kvferry/cluster"
	"kvferry/engine"
	"kvferry/load"
)

func simulation(tb testing.TB) Simulation {
	tb.Helper()
	prof, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		tb.Fatal(err)
	}
	return Simulation{
		Spec: cluster.Spec{
			Costs: prof, Prefill: 1, Decode: 1, NICs: 2, Link: "rate=1.25GB/s,latency=10us", RPC: -1,
		},
		Load: load.Spec{Kind: load.Random, Requests: 200, Rate: 1, Burstiness: 1, InputLen: 256, OutputLen: 16},
		SLO:  stats.SLO{{Metric: "ttft", MS: 500}, {Metric: "tpot", MS: 50}}, Attainment: 0.99,
	}
}

func simulated(tb testing.TB, s Simulation) *Result {
	tb.Helper()
	r, err := s.Run(context.Background(), nil)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// TestNodesOfSeveralGPUs: a node is as many GPUs as compute a layer together.
func TestNodesOfSeveralGPUs(t *testing.T) {
	s := simulation(t)
	p := *s.Costs
	p.KVGeometry.HiddenSize, p.Costs.TensorParallel = 3584, engine.TensorParallel{Size: 4, BusGBS: 100}
	s.Costs = &p
	if r := simulated(t, s); r.GoodputGPU != r.Goodput/8 || !strings.Contains(r.Cluster.String(), ", 4 GPUs a node") {
		t.Errorf("%g of %g, %s", r.GoodputGPU, r.Goodput, &r.Cluster)
	}
}

// TestUnloadedCluster: what can be computed by hand of a cluster with little to do.
func TestUnloadedCluster(t *testing.T) {
	r := simulated(t, simulation(t))
	close := func(what string, got, want, within float64) {
		t.Helper()
		if math.Abs(got-want) > within*want {
			t.Errorf("%s is %.5g, want %.5g", what, got, want)
		}
	}
	n := 200.0
	close("goodput", r.Goodput, n/r.DurationS, 1e-6) // every request is good
	close("goodput a GPU", r.GoodputGPU, r.Goodput/2, 1e-6)
	close("attained", r.Attained, 1, 0)
	close("output throughput", r.OutputThroughput, 16*n/r.DurationS, 1e-6)
	close("KV bytes", float64(r.KVBytes), n*256*57344, 1e-6)
	prefill, decode := r.Roles[0], r.Roles[1]
	if prefill.Role != "prefill" || decode.Role != "decode" || prefill.Received != 0 || decode.Sent != 0 {
		t.Fatalf("%+v", r.Roles)
	}
	close("NICs sent", prefill.Sent, n*256*57344/(2*1.25e9*r.DurationS), 1e-6)
	close("NICs received", decode.Received, prefill.Sent, 1e-6)
	// 15 decode steps a request of 11.41 + 0.06 ms, few of them shared.
	close("decode busy", decode.Decode, n*15*11.47e-3/r.DurationS, 0.15)
	// 256 tokens cold at 0.18627 ms and hotter while they are computed, 1.56 a step.
	close("prefill busy", prefill.Prefill, n*(1.56+256*0.2)*1e-3/r.DurationS, 0.1)
	if prefill.Decode != 0 || decode.Prefill != 0 {
		t.Errorf("the prefill node decodes %v, the decode node prefills %v", prefill.Decode, decode.Prefill)
	}
	if ttft := r.Latency["ttft"]; ttft.Median < 50 || ttft.Median > 70 || ttft.Max < ttft.P99 || ttft.P99 < ttft.P90 {
		t.Errorf("TTFT %+v", ttft)
	}
	// The pool holds about (prompt + output) / 16 blocks while a request decodes.
	if decode.Pool <= 0 || decode.PoolPeak < 17.0/float64(r.Cluster.Node.KVBlocks) || decode.PoolPeak > 0.02 {
		t.Errorf("decode pool %v, peak %v", decode.Pool, decode.PoolPeak)
	}
}

var external = regexp.MustCompile(`(?i)(src|href)\s*=\s*"[^#]|url\(|@import|<script`)

var wallTime = regexp.MustCompile(`\d+\.\d+ s for|\d+\.\d+ million`)

func TestSimulationGolden(t *testing.T) {
	var b bytes.Buffer
	if err := simulated(t, simulation(t)).document().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	documenttest.Golden(t, "simulation.golden", wallTime.ReplaceAll(b.Bytes(), []byte("#")))

	w := sweep(t, "nodes=1:1,1:2,2:1", "link=1GB/s,10GB/s")
	w.Base.Load.Rate = 10
	r, err := w.Run(context.Background(), func(int) {}, func(*Result, *SweepResult) {})
	if err != nil {
		t.Fatal(err)
	}
	documenttest.Golden(t, "sweep.golden", []byte(r.table().Text()+r.Why+"\n"))
	var page bytes.Buffer
	if err := r.document().WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(page.String(), "<svg"); n != 11 || !strings.Contains(page.String(), `class="best"`) {
		t.Errorf("page has %d plots, want 11, and a marked row", n)
	}
	if found := external.FindString(strings.ReplaceAll(page.String(), `xmlns:xlink="http://www.w3.org/1999/xlink"`, "")); found != "" {
		t.Errorf("page loads or runs something: %s", found)
	}
}

func sweep(tb testing.TB, texts ...string) *Sweep {
	tb.Helper()
	w := &Sweep{Base: simulation(tb)}
	for _, text := range texts {
		p, err := ParseSweep(text)
		if err != nil {
			tb.Fatal(err)
		}
		w.Params = append(w.Params, p)
	}
	return w
}

// TestSweepIsDeterministic: the same bytes twice, whatever order the points end in.
func TestSweepIsDeterministic(t *testing.T) {
	var runs [2][]byte
	for i := range runs {
		w := sweep(t, "rate=2,5,10,20", "handoff=v0,pull,layerwise")
		r, err := w.Run(context.Background(), func(int) {}, func(*Result, *SweepResult) {})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Points) != 12 || r.Points[1].Params["rate"] != "2" || r.Points[1].Params["handoff"] != "pull" {
			t.Fatalf("%d points, the second %v", len(r.Points), r.Points[1].Params)
		}
		for _, p := range r.Points {
			p.WallS = 0
		}
		if runs[i], err = json.Marshal(r); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(runs[0], runs[1]) {
		t.Error("two runs differ")
	}
}

// TestBestPoint: the choice, and what is said where there is none.
func TestBestPoint(t *testing.T) {
	prof := simulation(t).Costs
	point := func(name string, attained, goodput, nic float64) *Result {
		return &Result{
			Params: map[string]string{"nodes": name}, Attained: attained, GoodputGPU: goodput,
			Cluster: cluster.Record{Spec: cluster.Spec{Costs: prof, Prefill: 1, Decode: 1, Link: fmt.Sprintf("%gB/s", nic)}},
		}
	}
	for _, c := range []struct {
		name   string
		points []*Result
		best   int
		why    string
	}{
		{"most goodput", []*Result{point("a", 1, 1, 5), point("b", 1, 2, 9), point("c", 1, 1.5, 1)}, 1, "nodes=b: the most goodput"},
		{"cheaper within 1 %", []*Result{point("a", 1, 2, 9), point("b", 1, 1.985, 5), point("c", 1, 1.97, 1)}, 1, "nodes=b"},
		{"first of equals", []*Result{point("a", 1, 2, 5), point("b", 1, 2, 5)}, 0, "nodes=a"},
		{"must attain", []*Result{point("a", 0.98, 9, 1), point("b", 0.99, 1, 9)}, 1, "nodes=b"},
		{"none attains", []*Result{point("a", 0.5, 9, 1), point("b", 0.7, 1, 9)}, -1, "at no point do 99 % of the requests keep the SLO, which has no limits; the closest is nodes=b with 70.0 %"},
		{"none at all", nil, -1, "no point was simulated"},
	} {
		r := &SweepResult{Params: []SweepParam{{Name: "nodes"}}, Attainment: 0.99, Points: c.points}
		r.choose()
		if r.Best != c.best || !strings.Contains(r.Why, c.why) {
			t.Errorf("%s: best %d (%s), want %d (%s)", c.name, r.Best, r.Why, c.best, c.why)
		}
	}
}

func TestSweepFaults(t *testing.T) {
	for text, want := range map[string]string{
		"rate": "write one of nodes=", "speeds=1": "write one of", "rate=": "each value once", "rate=1,1": "each value once",
	} {
		if _, err := ParseSweep(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q in it", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"nodes=3": "prefill:decode", "nodes=0:1": "at least one of each", "rate=-1": "above 0", "speed=2": "only a trace", "handoff=drop": `handoff=drop: "drop": there is no such hand-off`,
		"placement=best": `Params: placement=best: "best": use one of`, "nics=two": "whole number", "link=0GB/s": "rate",
		"link=1GB/s,latency=5us": "rates alone",
	} {
		if err := sweep(t, text).Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q in it", text, err, want)
		}
	}
	for _, c := range []struct{ first, second, want string }{
		{"rate=1", "rate=2", `Params: "rate": given twice`},
		{"nodes=1:2", "prefill=2", `Params: "prefill": nodes is swept too`},
		{"decode=2", "nodes=1:2", `Params: "nodes": decode is swept too`},
	} {
		if err := sweep(t, c.first, c.second).Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s and %s: %v: want %q in it", c.first, c.second, err, c.want)
		}
	}
	w := sweep(t, "rate=1,2,3")
	w.Base.Node.KVBlocks = -1
	if err := w.Validate(); err == nil || strings.Count(err.Error(), "KVBlocks") != 1 {
		t.Errorf("%v: want the fault of all points once", err)
	}
}

func TestParseGoodput(t *testing.T) {
	slo, err := ParseGoodput([]string{"ttft:2000, tpot:50", "e2el:1e4"})
	if want := (stats.SLO{{Metric: "ttft", MS: 2000}, {Metric: "tpot", MS: 50}, {Metric: "e2el", MS: 10_000}}); err != nil || !slices.Equal(slo, want) {
		t.Errorf("%+v, %v", slo, err)
	}
	for _, bad := range []string{"ttft", "ttft:0", "ttft:x", "itl:5", "tpot:-1", "ttft:NaN", "ttft:Inf", "", ",", "ttft:1 ttft:2"} {
		if _, err := ParseGoodput([]string{bad}); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

// TestSimulateFiles: what a run leaves behind, and that every request is there.
func TestSimulateFiles(t *testing.T) {
	dir := t.TempDir()
	trace := filepath.Join(dir, "t.jsonl")
	lines := `{"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]}
{"timestamp": 900, "input_length": 20000, "output_length": 4, "hash_ids": [` + strings.TrimSuffix(strings.Repeat("9,", 40), ",") + `]}
{"timestamp": 9000, "input_length": 600, "output_length": 4, "hash_ids": [1, 3]}
`
	if err := os.WriteFile(trace, []byte(lines), 0o644); err != nil {
		t.Fatal(err)
	}
	s := simulation(t)
	var err error
	s.Load = load.Spec{Kind: load.Traced, File: trace, Speed: 1, Vocab: 9}
	var longest int
	if s.Load.Requests, longest, err = s.Load.Scan(); err != nil || s.Load.Requests != 3 || longest != 20004 {
		t.Fatalf("%+v, %v", s.Load, err)
	}
	s.Node.PrefixCaching = true
	var out bytes.Buffer
	if err := Run(context.Background(), Config{Sweep: Sweep{Base: s}, Out: dir, Detailed: true, Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, "refused      1 of 3 requests") || !strings.Contains(text, "(see --max-model-len)\n") || strings.Contains(text, "--kv-blocks") || !strings.Contains(text, "too long     1 of 3 requests") {
		t.Errorf("a request that is too long goes unsaid:\n%s", text)
	}
	records, err := os.ReadFile(filepath.Join(dir, document.RecordsFile))
	if err != nil {
		t.Fatal(err)
	}
	cached := map[int]int{}
	for line := range strings.Lines(string(records)) {
		var r struct {
			Index  int     `json:"index"`
			Cached int     `json:"cached_tokens"`
			First  float64 `json:"first_token"`
			Error  string  `json:"error"`
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil || (r.Error == "") != (r.First > 0) {
			t.Errorf("%v: %s", err, line)
		}
		cached[r.Index] = r.Cached
	}
	if len(cached) != 3 || cached[2] != 512 {
		t.Errorf("cached tokens by request %v, want 512 of the last", cached)
	}
	// With the length that the trace needs nothing is refused.
	s.FitLoad(longest)
	if r := simulated(t, s); r.Failed != 0 || r.Cluster.MaxModelLen != 20004 {
		t.Errorf("%d requests failed with max_model_len %d", r.Failed, r.Cluster.MaxModelLen)
	}
	s.Node.KVBlocks, s.MaxModelLen = 700, 0
	if s.FitLoad(longest); s.MaxModelLen != 700*16 {
		t.Errorf("max_model_len is %d with a pool of %d", s.MaxModelLen, 700*16)
	}
}

// TestSimulateStops: a load that can never be served is an error that says why; an
// interrupted sweep keeps the points that ended.
func TestSimulateStops(t *testing.T) {
	s := simulation(t)
	s.Load.InputLen = 20000
	err := Run(context.Background(), Config{Sweep: Sweep{Base: s}, Out: t.TempDir()})
	if !errors.Is(err, engine.ErrTooLong) || !strings.Contains(err.Error(), "every request was refused") {
		t.Errorf("%v", err)
	}
	for err, want := range map[error]string{engine.ErrTooLong: " (see --max-model-len)", engine.ErrPoolSize: " (see --kv-blocks)", engine.ErrEmptyPrompt: ""} {
		if got := see(fmt.Errorf("request 1: %w", err)); got != want {
			t.Errorf("%v%s, want %q", err, got, want)
		}
	}
	// So is a sweep without a single request served; its figures are no zeros.
	refused := sweep(t, "rate=1,2")
	refused.Base.Load.InputLen = 20000
	dir := t.TempDir()
	var out bytes.Buffer
	err = Run(context.Background(), Config{Sweep: *refused, Out: dir, Stdout: &out})
	if err == nil || !strings.Contains(err.Error(), "every request of every point was refused") || !strings.Contains(err.Error(), "--max-model-len") {
		t.Errorf("%v", err)
	}
	if !regexp.MustCompile(`(?m)^ +1 +- +- +- +- +0\.00 `).MatchString(out.String()) {
		t.Errorf("latencies of nothing:\n%s", out.String())
	}
	if page, err := os.ReadFile(filepath.Join(dir, document.ReportFile)); err != nil || strings.Contains(string(page), "NaN") {
		t.Errorf("the page of it: %v, or NaN drawn", err)
	}
	for _, n := range []int{0, -1} {
		s := simulation(t)
		s.Load.Requests = n
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), "Load.Requests: ") {
			t.Errorf("%d requests: %v", n, err)
		}
	}

	// What an interrupted point has recorded ends with a whole line.
	var records bytes.Buffer
	s = simulation(t)
	s.Load.Requests, s.Load.Rate, s.Records = 100000, 20, &records
	ctx, cancel := context.WithCancel(context.Background())
	if r, err := s.Run(ctx, func(int) { cancel() }); r != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v, %v", r, err)
	}
	if n := records.Len(); n == 0 || records.Bytes()[n-1] != '\n' {
		t.Errorf("%d bytes of records, cut within a line", n)
	}

	ctx, cancel = context.WithCancel(context.Background())
	w := sweep(t, "rate=1,2,3,4,5,6,7,8")
	w.Base.Load.Requests = 2000
	ended := 0
	r, err := w.Run(ctx, func(int) {}, func(*Result, *SweepResult) {
		if ended++; ended == 2 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || len(r.Points) < 2 || len(r.Points) == 8 {
		t.Errorf("%d points, %v", len(r.Points), err)
	}
}

func BenchmarkSimulation(b *testing.B) {
	for _, handoff := range []string{"pull", "layerwise"} {
		b.Run("handoff="+handoff, func(b *testing.B) {
			s := simulation(b)
			s.Proxy.Handoff, s.Prefill, s.Decode = handoff, 8, 8
			s.Load = load.Spec{Kind: load.Random, Requests: 2000, Rate: 24, Burstiness: 1, InputLen: 1024, OutputLen: 128}
			events := uint64(0)
			for b.Loop() {
				r := simulated(b, s)
				events += r.Events
			}
			b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(b.N)*2000/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
