package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/client/clienttest"
	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/load"
	"kvferry/proxy/serverinfo"
)

// scaled is 256/q8 fast enough for a test: 12 requests in about 40 ms.
var scaled = load.Workload{Name: "256/q8", InputLen: 256, QPS: 400}

func settings(t *testing.T, list string) []Setting {
	t.Helper()
	s, err := ParseSettings(list)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// serving starts, for each cell, a cluster over the server of its setting.
func serving(servers map[string]*clienttest.Server, closed *atomic.Int32) Starter {
	return func(_ context.Context, s Setting) (Cluster, error) {
		f, ok := servers[s.Name]
		if !ok {
			return nil, fmt.Errorf("no node for %s", s.Name)
		}
		return fakeCluster{url: f.URL, closed: closed}, nil
	}
}

func readSummary(t *testing.T, dir string) Summary {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, document.SummaryFile))
	if err != nil {
		t.Fatal(err)
	}
	var s Summary
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

func readAll(t *testing.T, dir string) []Record {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, document.RecordsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	records, err := ReadRecords(f)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// measured are the metrics of records, over so many seconds.
func measured(records []Record, seconds float64) *client.Metrics {
	c := Cell{Records: records}
	c.measure(seconds)
	return c.Metrics
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	var closed atomic.Int32
	var stdout, lines bytes.Buffer
	r, err := Run(t.Context(), Config{
		Workloads:  []load.Workload{scaled},
		Settings:   settings(t, "nondisagg,tcp,layerwise"),
		NumPrompts: 12,
		Repeat:     2,
		Out:        dir,
		Command:    []string{"kvferry", "reproduce", "mooncake"},
		Start: serving(map[string]*clienttest.Server{
			"nondisagg": clienttest.NewServer(t, &clienttest.Server{Metrics: true}),
			"tcp":       clienttest.NewServer(t, &clienttest.Server{Metrics: true, KVBytes: 14 << 20}),
			"layerwise": clienttest.NewServer(t, &clienttest.Server{KVBytes: 14 << 20}), // has no /metrics
		}, &closed),
		Stdout:   &stdout,
		Progress: &lines,
	})
	if err != nil {
		t.Fatal(err)
	}
	if closed.Load() != 6 {
		t.Errorf("%d clusters closed, want 6", closed.Load())
	}

	s := readSummary(t, dir)
	if len(s.Rows) != 6 || len(r.Cells) != 6 {
		t.Fatalf("%d rows in summary.json, %d cells, want 6", len(s.Rows), len(r.Cells))
	}
	tcp := s.Rows[1]
	if tcp.Workload != "256/q8" || tcp.Setting != "tcp" || tcp.Handoff != "v0" || tcp.Clock != "real" || tcp.Compute != "modelled" || tcp.Transfer != "measured" {
		t.Errorf("row = %+v", tcp)
	}
	if m := tcp.Metrics; m.Successful != 12 || m.GeneratedTokens != 72 || m.KVBytes != 12*14<<20 || m.KVBlocksChecked != 24 || m.MeanTTFTMS <= 0 {
		t.Errorf("metrics = %+v", m)
	}
	if tcp.Published != nil || tcp.RelErr != nil {
		t.Error("12 requests are not the published run: nothing to compare with")
	}
	if s.Rows[0].Handoff != "none" || s.Rows[3].Repeat != 1 {
		t.Errorf("rows = %+v", s.Rows)
	}
	if s.Machine.Go == "" || s.Machine.Threads < 1 || s.Config.NumPrompts != 12 || s.Config.Command[0] != "kvferry" {
		t.Errorf("config %+v, machine %+v", s.Config, s.Machine)
	}
	if notes := strings.Join(s.Rows[2].Notes, "; "); !strings.Contains(notes, "no counters to check against") {
		t.Errorf("layerwise notes = %q", notes)
	}

	// Figures are functions of the raw records.
	records := readAll(t, dir)
	if len(records) != 6*12 {
		t.Fatalf("%d records, want 72", len(records))
	}
	again := measured(records[12:24], s.Rows[1].Metrics.DurationS)
	if again.Figures != s.Rows[1].Metrics.Figures {
		t.Errorf("recomputed from results.jsonl: %+v\nin summary.json: %+v", again.Figures, s.Rows[1].Metrics.Figures)
	}
	if x := records[12]; x.Workload != "256/q8" || x.Setting != "tcp" || x.RequestID == "" || x.Usage == nil || x.Breakdown == nil || len(x.TokenTimes) != 6 {
		t.Errorf("record = %+v", x)
	}

	out := stdout.String()
	if n := strings.Count(out, "============ Serving Benchmark Result ============"); n != 6 {
		t.Errorf("%d reports on stdout, want 6", n)
	}
	for _, want := range []string{"256/q8 TTFT (ms)", "256/q8 #2 TPOT (ms)", "compute modelled, transfer measured", "layerwise against nondisagg: at 256/q8 mean TTFT is", dir} {
		if !strings.Contains(out, want) {
			t.Errorf("stdout does not have %q:\n%s", want, out)
		}
	}
	if got := strings.Count(lines.String(), "\n"); got != 6 || !strings.Contains(lines.String(), "cell 5/6 256/q8 tcp #2: 12 ok, 0 failed") {
		t.Errorf("progress:\n%s", lines.String())
	}
	for _, name := range []string{document.TableFile, document.ReportFile} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Contains(text, []byte("layerwise against nondisagg")) {
			t.Errorf("%s: %v, %d bytes, without the verdict", name, err, len(text))
		}
	}
}

// Prompts must reach the server as drawn, and the warm-up must not be one of
// them.
func TestRunWarmsUpOnce(t *testing.T) {
	f := clienttest.NewServer(t, &clienttest.Server{})
	_, err := Run(t.Context(), Config{Workloads: []load.Workload{scaled}, Settings: settings(t, "nondisagg"), NumPrompts: 5, Out: t.TempDir(), Start: serving(map[string]*clienttest.Server{"nondisagg": f}, nil)})
	if err != nil {
		t.Fatal(err)
	}
	seen := f.Requests()
	if len(seen) != 6 {
		t.Fatalf("%d requests, want a warm-up and 5", len(seen))
	}
	asked, err := load.Collect(scaled.Load(5, 0, "0", serverinfo.SafeVocabulary))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range asked {
		if !slices.ContainsFunc(seen[1:], func(r clienttest.Completion) bool { return r.ID == want.ID && slices.Equal(r.Prompt, want.Prompt) }) {
			t.Errorf("request %d did not arrive as drawn", i)
		}
		if slices.Equal(seen[0].Prompt[:16], want.Prompt[:16]) {
			t.Errorf("the warm-up shares its first block with request %d", i)
		}
	}
}

func TestRunFaults(t *testing.T) {
	third := &clienttest.Server{KVBytes: 1}
	third.Behave = func(w http.ResponseWriter, _ *http.Request, r *clienttest.Completion) bool {
		if !strings.HasSuffix(r.ID, "-2") { // whichever arrives when
			return false
		}
		http.Error(w, `{"error":{"message":"pool exhausted"}}`, http.StatusServiceUnavailable)
		return true
	}
	dead := &clienttest.Server{}
	dead.Behave = func(w http.ResponseWriter, _ *http.Request, _ *clienttest.Completion) bool {
		http.Error(w, "no", http.StatusInternalServerError)
		return true
	}
	dir := t.TempDir()
	var stdout bytes.Buffer
	r, err := Run(t.Context(), Config{
		Workloads: []load.Workload{scaled}, NumPrompts: 6, Out: dir, Stdout: &stdout,
		Start: serving(map[string]*clienttest.Server{
			// no server for nondisagg
			"chunked":   clienttest.NewServer(t, &clienttest.Server{KVBytes: 5}),
			"rdma":      clienttest.NewServer(t, third),
			"rdma2":     clienttest.NewServer(t, &clienttest.Server{Metrics: true, KVBytes: 100, CountMore: 1}),
			"tcp":       clienttest.NewServer(t, &clienttest.Server{}),
			"layerwise": clienttest.NewServer(t, dead),
		}, nil),
	})
	if !errors.Is(err, ErrFaults) {
		t.Fatalf("err = %v, want ErrFaults", err)
	}
	for i, want := range []string{
		"cluster did not start: no node for nondisagg",
		"KV moved between nodes: the cluster does not serve the setting chunked",
		"1 of 6 requests failed, the first is request 2 (kvferry-",
		"kvferry:kv_bytes_total rose by 606, the answers add up to 600",
		"no KV moved between nodes",
		"warm-up request failed: HTTP 500 Internal Server Error: no",
	} {
		row := r.Cells[i].Row
		if !strings.Contains(strings.Join(row.Faults, "; "), want) {
			t.Errorf("%s: faults %q, want %q", row.Setting, row.Faults, want)
		}
		if !strings.Contains(err.Error(), want) || !strings.Contains(stdout.String(), want) {
			t.Errorf("%s: error or stdout does not say %q", row.Setting, want)
		}
	}
	if !strings.Contains(stdout.String(), "Failed requests:                         1") || !strings.Contains(stdout.String(), "rdma *") {
		t.Errorf("a cell with failures is not marked:\n%s", stdout.String())
	}
	s := readSummary(t, dir)
	if s.Rows[0].Metrics != nil || s.Rows[2].Metrics.Failed != 1 || !slices.Equal(s.Rows[2].Faults, r.Cells[2].Faults) {
		t.Errorf("rows = %+v", s.Rows)
	}
}

func TestRunNotReady(t *testing.T) {
	f := &clienttest.Server{}
	f.Unhealthy.Store(1 << 30)
	clienttest.NewServer(t, f)
	out := t.TempDir()
	log := filepath.Join(out, document.LogFile)
	var stdout bytes.Buffer
	_, err := Run(t.Context(), Config{
		Workloads: []load.Workload{scaled}, Settings: settings(t, "tcp"), Out: out, ReadyTimeout: 60 * time.Millisecond, Stdout: &stdout,
		Start: func(context.Context, Setting) (Cluster, error) {
			if err := os.WriteFile(log, nil, 0o600); err != nil {
				return nil, err
			}
			return fakeCluster{url: f.URL, closeErr: errors.New("decode node exited with status 2")}, nil
		},
	})
	for _, want := range []string{"not ready within 60ms (--ready-timeout)", ", see " + log, "decode node exited with status 2"} { // TestReady: and why
		if !errors.Is(err, ErrFaults) || !strings.Contains(err.Error(), want) {
			t.Errorf("err = %v, want %q", err, want)
		}
	}
	if !strings.Contains(stdout.String(), ","+document.LogFile+"}") {
		t.Errorf("the log is not listed:\n%s", stdout.String())
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	err := Config{NumPrompts: -1, Repeat: -2, RetriesDisturbed: -3, RequestTimeout: -1, ReadyTimeout: -1, Workloads: []load.Workload{{Name: "x"}}}.Validate()
	wantError(t, "Validate", err, "NumPrompts: -1: use", "Repeat: -2: use", "RetriesDisturbed: -3: use", "RequestTimeout: -1ns: use", "ReadyTimeout: -1ns: use", "Out: none given", "Start: none given", `Workloads: "x": its input length is 0`)
}

// The bar is drawn on a terminal, which gets no lines.
func TestBar(t *testing.T) {
	f := clienttest.NewServer(t, &clienttest.Server{})
	var bar bytes.Buffer
	_, err := Run(t.Context(), Config{
		Workloads: []load.Workload{scaled}, Settings: settings(t, "nondisagg,chunked"), NumPrompts: 3, Out: t.TempDir(),
		Start: serving(map[string]*clienttest.Server{"nondisagg": f, "chunked": f}, nil), Progress: &bar, Terminal: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(bar.String(), "cell 2/2 256/q8 chunked, ") || strings.Contains(bar.String(), "\n") {
		t.Errorf("bar: %q", bar.String())
	}
}

// A machine that is slower than the link it stands for says so.
func TestBehindLink(t *testing.T) {
	record := func(us client.Count) Record {
		return Record{Record: client.Record{Breakdown: &client.Breakdown{WireUS: us, KVBytes: 10_000_000}}}
	}
	kept := []Record{record(10_000), record(10_500), record(10_000), record(10_900), record(10_100), {}}
	slow := append([]Record{record(16_000), record(18_000), record(17_000)}, kept...)
	for _, c := range []struct {
		records []Record
		handoff string
		paced   float64
		says    string
	}{
		{kept, "v0", 1e9, ""},
		{slow, "v0", 1e9, "38 % of the transfers took over 1.1 times what they take at 1.00 GB/s, the median 1.07 times"},
		{slow, "layerwise", 1e9, ""},
		{slow, "v0", 0, ""},
	} {
		cell := Cell{Records: c.records}
		cell.Metrics = &client.Metrics{Stages: &client.Stages{}}
		cell.PacedTo = c.paced
		cell.Disturbance = &observe.Disturbance{}
		cell.judge(Setting{Handoff: c.handoff})
		if known := c.paced > 0 && c.handoff != "layerwise"; known != (cell.Disturbance.BehindLinkPct != nil) {
			t.Errorf("%s at %v: behind link %v", c.handoff, c.paced, cell.Disturbance.BehindLinkPct)
		}
		if marked := len(cell.Disturbance.Why) > 0; marked != (c.says != "") || marked != (cell.Disturbance.Score() > 1) {
			t.Errorf("%s at %v: marked because of %q, score %v", c.handoff, c.paced, cell.Disturbance.Why, cell.Disturbance.Score())
		}
		notes := strings.Join(cell.Notes, "\n")
		if (notes == "") != (c.says == "") || !strings.Contains(notes, c.says) {
			t.Errorf("%s at %v: %q, want %q", c.handoff, c.paced, notes, c.says)
		}
	}
}
