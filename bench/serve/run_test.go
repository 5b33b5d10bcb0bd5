package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/bench/report"
	"kvferry/bench/result"
	"kvferry/bench/stats"
	"kvferry/cluster"
	"kvferry/engine"
	"kvferry/load"
	"kvferry/load/dispatch"
)

// scripted is a target in memory: every answer has the same times, which get worse above a
// rate.
type scripted struct {
	facts           Facts
	opened, closed  int
	runs            []int // requests of each
	openErr, runErr error
	answer          func(s *dispatch.Sending, perSecond float64) *client.Record
	stop            func() // called at half of a run
}

func (s *scripted) Open(context.Context) (Facts, error) { s.opened++; return s.facts, s.openErr }
func (s *scripted) Close() error                        { s.closed++; return nil }

func (s *scripted) Run(ctx context.Context, l load.Load, done func(*client.Record)) (time.Duration, error) {
	all, err := load.Collect(l)
	if err != nil {
		return 0, err
	}
	s.runs = append(s.runs, len(all))
	perSecond := 0.0
	if last := all[len(all)-1].At; last > 0 {
		perSecond = float64(len(all)-1) / last.Seconds()
	}
	end := time.Duration(0)
	for i, r := range all {
		rec := s.answer(&dispatch.Sending{Request: r, Index: i, Due: r.At}, perSecond)
		end = max(end, time.Duration(rec.Finish*1e9))
		done(rec)
		if s.stop != nil && i == len(all)/2 {
			s.stop()
		}
		if ctx.Err() != nil {
			return end, ctx.Err()
		}
	}
	return end, s.runErr
}

// answered is a request that got its tokens, the first after ttft seconds and the others 10 ms
// apart.
func answered(s *dispatch.Sending, ttft float64) *client.Record {
	at := s.Due.Seconds()
	r := &client.Record{
		Index: s.Index, RequestID: fmt.Sprint(s.Index), PromptTokens: len(s.Prompt), MaxTokens: s.MaxTokens, Intended: at, Sent: at,
		Status: client.StatusOK, FinishReason: "length", CountedBy: client.CountUsage, InputTokens: len(s.Prompt), OutputTokens: s.MaxTokens,
		Usage: &client.Usage{PromptTokens: len(s.Prompt), CompletionTokens: s.MaxTokens},
	}
	for i := range s.MaxTokens {
		r.TokenTimes = append(r.TokenTimes, at+ttft+0.010*float64(i))
	}
	r.FirstToken, r.FirstText, r.Finish = at+ttft, at+ttft, r.TokenTimes[s.MaxTokens-1]
	r.LastLine = r.Finish
	return r
}

func quick(s *dispatch.Sending, _ float64) *client.Record { return answered(s, 0.050) }

func configOf(t *testing.T, targets ...Target) Config {
	t.Helper()
	return Config{
		Targets: targets, Out: filepath.Join(t.TempDir(), "out"),
		Load: load.Spec{Kind: load.Random, Requests: 40, Rate: 10, Burstiness: 1, InputLen: 20, OutputLen: 5},
	}
}

func virtual() Facts {
	return Facts{Clock: report.ClockVirtual, Model: "m", Vocab: 100, Label: "scripted"}
}

// summary is what summary.json has of each row.
func summary(t *testing.T, dir string) (rows []struct {
	Clock   string         `json:"clock"`
	Metrics map[string]any `json:"metrics"`
	Faults  []string       `json:"faults"`
	Notes   []string       `json:"notes"`
},
) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, document.SummaryFile))
	if err != nil {
		t.Fatal(err)
	}
	var s struct{ Rows json.RawMessage }
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(s.Rows, &rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestRun: a run prints the tool's report and leaves every file, warm-ups do not count, and
// the target is closed.
func TestRun(t *testing.T) {
	target := &scripted{facts: virtual(), answer: quick}
	cfg := configOf(t, target)
	cfg.Warmups = 3
	var out bytes.Buffer
	cfg.Stdout = &out
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if target.opened != 1 || target.closed != 1 || fmt.Sprint(target.runs) != "[3 40]" {
		t.Errorf("opened %d times, closed %d, asked %v", target.opened, target.closed, target.runs)
	}
	for _, want := range []string{"Serving Benchmark Result", "Successful requests:                     40", "Mean TTFT (ms):                          50.00", "scripted", cfg.Out} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, out.String())
		}
	}
	rows := summary(t, cfg.Out)
	if len(rows) != 1 || rows[0].Clock != "virtual" || rows[0].Metrics["mean_ttft_ms"] != 50.0 || rows[0].Metrics["successful_requests"] != 40.0 {
		t.Errorf("summary.json has %+v", rows)
	}
	for _, name := range []string{document.RecordsFile, document.TableFile, document.ReportFile} {
		if text, err := os.ReadFile(filepath.Join(cfg.Out, name)); err != nil || len(text) == 0 {
			t.Errorf("%s: %v, %d bytes", name, err, len(text))
		}
	}
	lines, _ := os.ReadFile(filepath.Join(cfg.Out, document.RecordsFile))
	if n := bytes.Count(lines, []byte("\n")); n != 40 {
		t.Errorf("%d lines of records, want 40: warm-ups do not count", n)
	}
}

// TestSides: two targets are two rows, and a table sets them side by side.
func TestSides(t *testing.T) {
	real := &scripted{facts: Facts{Clock: report.ClockReal, Vocab: 100}, answer: quick}
	model := &scripted{facts: virtual(), answer: func(s *dispatch.Sending, _ float64) *client.Record { return answered(s, 0.055) }}
	cfg := configOf(t, real, model)
	cfg.Layout = LayoutSGLang
	var out bytes.Buffer
	cfg.Stdout = &out
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if rows := summary(t, cfg.Out); len(rows) != 2 || rows[0].Clock != "real" || rows[1].Clock != "virtual" {
		t.Errorf("rows %+v", rows)
	}
	if !strings.Contains(out.String(), "mean TTFT") || !strings.Contains(out.String(), "+10.0%") || !strings.Contains(out.String(), "Mean E2E Latency (ms):") {
		t.Errorf("the two are not set side by side:\n%s", out.String())
	}
}

// TestResultFiles: the tools' files go where the flags say.
func TestResultFiles(t *testing.T) {
	cfg := configOf(t, &scripted{facts: virtual(), answer: quick})
	dir := t.TempDir()
	cfg.Results = []Result{
		{Layout: LayoutVLLM, Dir: filepath.Join(dir, "made"), Name: "v.json", Detailed: true},
		{Layout: LayoutSGLang, Name: filepath.Join(dir, "s.jsonl"), Append: true},
	}
	t.Setenv(report.PyTorchVariable, "1")
	for run := range 2 {
		cfg.Out = filepath.Join(dir, strconv.Itoa(run))
		if err := Run(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	if err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "Out: ") || !strings.Contains(err.Error(), "it has results already (results.jsonl)") {
		t.Errorf("into the same folder: %v", err)
	}
	var v map[string]any
	text, err := os.ReadFile(filepath.Join(dir, "made", "v.json"))
	if err = errors.Join(err, json.Unmarshal(text, &v)); err != nil || v["completed"] != 40.0 || len(v["ttfts"].([]any)) != 40 {
		t.Errorf("vLLM's file: %v, %v", err, v["completed"])
	}
	var records []map[string]any
	text, err = os.ReadFile(filepath.Join(dir, "made", "v.pytorch.json"))
	if err = errors.Join(err, json.Unmarshal(text, &records)); err != nil || len(records) != 12 {
		t.Errorf("PyTorch's file: %v, %d records", err, len(records))
	}
	text, err = os.ReadFile(filepath.Join(dir, "s.jsonl"))
	if n := bytes.Count(bytes.TrimSpace(text), []byte("\n")) + 1; err != nil || n != 2 {
		t.Errorf("SGLang's file: %v, %d lines, want a line a run", err, n)
	}
}

// searched is what a search has written in a folder.
func searched(t *testing.T, dir string) RateResult {
	t.Helper()
	var saved struct {
		Search RateResult `json:"search"`
	}
	text, err := os.ReadFile(filepath.Join(dir, searchFile))
	if err = errors.Join(err, json.Unmarshal(text, &saved)); err != nil {
		t.Fatal(err)
	}
	return saved.Search
}

// TestSearch: the highest rate that keeps the SLO is found, and its run is the one reported.
func TestSearch(t *testing.T) {
	const limit = 20.0 // requests/s: above it the first token takes a second
	target := &scripted{facts: virtual(), answer: func(s *dispatch.Sending, perSecond float64) *client.Record {
		if perSecond > limit {
			return answered(s, 1)
		}
		return answered(s, 0.050)
	}}
	cfg := configOf(t, target)
	cfg.Load.Requests, cfg.Load.Burstiness = 400, 1e6 // even gaps
	cfg.Search = &RateConfig{Start: 4}
	if err := document.WriteFiles(cfg.Out, document.File{Name: document.LogFile, Write: func(io.Writer) error { return nil }}); err != nil {
		t.Fatal(err)
	}
	cfg.Setup.Goodput = stats.SLO{{Metric: "ttft", MS: 100}}
	var out bytes.Buffer
	cfg.Stdout = &out
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	found := searched(t, cfg.Out)
	if v := found.Value; math.Abs(v-limit) > 0.06*limit || !strings.Contains(out.String(), fmt.Sprintf("%.4g", v)) {
		t.Errorf("found %v, want %v within 5 %%:\n%s", v, limit, out.String())
	}
	answer := found.Table().Title
	for _, name := range []string{document.TableFile, document.ReportFile} {
		text, err := os.ReadFile(filepath.Join(cfg.Out, name))
		if err != nil || !strings.Contains(string(text), answer) {
			t.Errorf("no %q in %s (%v)", answer, name, err)
		}
	}
	if strings.Count(out.String(), answer) != 1 || !strings.Contains(out.String(), document.ReportFile+","+searchFile+","+document.LogFile+"}") {
		t.Errorf("the answer, or the name of %s, is not printed once:\n%s", searchFile, out.String())
	}
	// The run that is reported has its own records, and not those of all runs of its rate.
	runs, err := result.Read(cfg.Out)
	if err != nil || len(runs) != 1 || len(runs[0].Requests) != 400 {
		t.Errorf("%d results, the first of %d requests; %v", len(runs), len(runs[0].Requests), err)
	}
}

// TestSearchReportsTheAnswer: a rate whose first run kept the SLO and whose repeats did not is no
// answer, and its run is not the one that is reported.
func TestSearchReportsTheAnswer(t *testing.T) {
	const start = 10.0 // requests/s
	target := &scripted{facts: virtual()}
	target.answer = func(s *dispatch.Sending, perSecond float64) *client.Record {
		if perSecond > 0.99*start && len(target.runs) > 1 {
			return answered(s, 1)
		}
		return answered(s, 0.050)
	}
	cfg := configOf(t, target)
	cfg.Load.Burstiness = 1e6 // even gaps
	cfg.Search = &RateConfig{Start: start, Max: start}
	cfg.Setup.Goodput = stats.SLO{{Metric: "ttft", MS: 100}}
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	found := searched(t, cfg.Out)
	runs, err := result.Read(cfg.Out)
	if err != nil || len(runs) != 1 || !(found.Value > 0 && found.Value < start) || runs[0].Setup["request_rate"] != fmt.Sprint(found.Value) {
		t.Errorf("%d runs reported, the first of %v; %v found; %v", len(runs), runs[0].Setup, found, err)
	}
}

// TestFailures: what goes wrong is said, and what was done is kept.
func TestFailures(t *testing.T) {
	refused := errors.New("refused")
	for _, c := range []struct {
		name    string
		target  *scripted
		change  func(*Config)
		want    string
		records int
	}{
		{"it does not open", &scripted{facts: virtual(), openErr: refused}, nil, "refused", -1},
		{"the run fails in the middle", &scripted{facts: virtual(), answer: quick, runErr: refused}, nil, "refused", 40},
		{"every request fails", &scripted{facts: virtual(), answer: func(s *dispatch.Sending, _ float64) *client.Record {
			return &client.Record{Index: s.Index, Status: client.StatusFailed, Error: "HTTP 500"}
		}}, nil, "no request was answered; the first: HTTP 500", 40},
		{"a warm-up fails", &scripted{facts: virtual(), answer: func(s *dispatch.Sending, _ float64) *client.Record {
			return &client.Record{Status: client.StatusFailed, Error: "HTTP 500"}
		}}, func(c *Config) { c.Warmups = 1 }, "warm-up request failed: HTTP 500", -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := configOf(t, c.target)
			if c.change != nil {
				c.change(&cfg)
			}
			err := Run(t.Context(), cfg)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if c.target.closed != 1 {
				t.Errorf("closed %d times", c.target.closed)
			}
			text, err := os.ReadFile(filepath.Join(cfg.Out, document.RecordsFile))
			if n := bytes.Count(text, []byte("\n")); c.records >= 0 && n != c.records || err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%d records, want %d; %v", n, c.records, err)
			}
			if _, err := os.Stat(filepath.Join(cfg.Out, document.SummaryFile)); (err == nil) != (c.records > 0) {
				t.Errorf("summary.json: %v", err)
			}
		})
	}
}

// TestConfig: what is wrong is named before a target is opened.
func TestConfig(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Load.InputLen = 0 }, "Load.InputLen"},
		{func(c *Config) { c.Targets = nil }, "Targets"},
		{func(c *Config) { c.Out = "" }, "Out"},
		{func(c *Config) { c.Warmups = -1 }, "Warmups"},
		{func(c *Config) { c.Layout = "tsv" }, "Layout"},
		{func(c *Config) { c.Search = &RateConfig{} }, "Goodput"},
	} {
		target := &scripted{facts: virtual(), answer: quick}
		cfg := configOf(t, target)
		c.change(&cfg)
		if err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), c.want) || target.opened > 0 {
			t.Errorf("%v, opened %d times; want %s", err, target.opened, c.want)
		}
	}
}

// TestInterrupted: a run that is stopped keeps what was done and says so.
func TestInterrupted(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	target := &scripted{facts: virtual(), answer: quick, stop: stop}
	second := &scripted{facts: virtual(), answer: quick}
	cfg := configOf(t, target, second)
	var out bytes.Buffer
	cfg.Stdout = &out
	if err := Run(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	rows := summary(t, cfg.Out)
	if len(rows) != 1 || rows[0].Metrics["successful_requests"] != 21.0 || second.opened != 0 || target.closed != 1 {
		t.Errorf("rows %+v; the second target was opened %d times", rows, second.opened)
	}
	if !strings.Contains(out.String(), "Successful requests:                     21") {
		t.Errorf("what was done is not printed:\n%s", out.String())
	}
}

// TestModel: the model answers like any target, its figures do not change, and adapters are
// refused by name.
func TestModel(t *testing.T) {
	prof, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	nodes := cluster.Spec{Costs: prof, Prefill: 1, Decode: 1, Link: "1GB/s"}
	cfg := configOf(t, Model(nodes))
	var ttft []any
	for range 2 {
		cfg.Out = t.TempDir()
		if err := Run(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		ttft = append(ttft, summary(t, cfg.Out)[0].Metrics["mean_ttft_ms"])
	}
	if ttft[0] != ttft[1] || ttft[0].(float64) <= 0 {
		t.Errorf("mean TTFT %v", ttft)
	}
}

// TestRetriesDisturbed: a run that the machine disturbed is measured again, as often as was asked
// for, and the least disturbed is reported; the records of all are kept.
func TestRetriesDisturbed(t *testing.T) {
	for _, c := range []struct {
		late    []float64 // ms, of each run
		retries int
		runs    int
		note    bool
	}{
		{[]float64{0.1}, 2, 1, false},
		{[]float64{40, 0.1}, 2, 2, true},
		{[]float64{40, 50, 60}, 2, 3, true},
		{[]float64{40}, 0, 1, false},
	} {
		facts := virtual()
		facts.Clock = report.ClockReal
		s := &scripted{facts: facts, answer: quick}
		cfg := configOf(t, s)
		cfg.RetriesDisturbed = c.retries
		late := c.late
		cfg.watch = func([]int) (func() (*observe.Disturbance, error), error) {
			d := &observe.Disturbance{LateMeanMS: late[0], LateTimersPct: late[0]}
			late = late[1:]
			d.Judge()
			return func() (*observe.Disturbance, error) { return d, nil }, nil
		}
		if err := Run(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		records, err := os.ReadFile(filepath.Join(cfg.Out, document.RecordsFile))
		if n := strings.Count(string(records), "\n"); err != nil || n != 40*c.runs {
			t.Errorf("%v: %d records of %d runs, %v", c.late, n, c.runs, err)
		}
		rows := summary(t, cfg.Out)
		if notes := strings.Join(rows[0].Notes, "\n"); len(rows) != 1 || len(late) != 0 || strings.Contains(notes, "a run of the same load is not reported") != c.note {
			t.Errorf("%v: %d rows, %q, %d runs are left", c.late, len(rows), notes, len(late))
		}
	}
}
