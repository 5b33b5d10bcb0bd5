package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"kvferry/bench/client"
	"kvferry/bench/document"
	"kvferry/bench/document/documenttest"
	"kvferry/bench/observe"
	"kvferry/bench/stats"
)

// golden is a recorded run of testdata.
func golden(t *testing.T, name, backend string) *Run {
	var c recorded
	if err := json.Unmarshal(readFile(t, name+".run.json"), &c); err != nil {
		t.Fatal(err)
	}
	run := c.run(t, backend)
	run.options(t, c.Setup.Args)
	return run
}

// answered is a request that was sent when it was due, with chunks at these times.
func answered(sent float64, times ...float64) client.Record {
	last := times[len(times)-1]
	return client.Record{
		Intended: sent, Sent: sent, FirstToken: times[0], FirstText: times[0], TokenTimes: times, LastLine: last, Finish: last,
		Status: client.StatusOK, PromptTokens: 10, InputTokens: 10, MaxTokens: len(times), OutputTokens: len(times),
		CountedBy: client.CountUsage, FinishReason: "length", Usage: &client.Usage{PromptTokens: 10, CompletionTokens: len(times)},
	}
}

// plain is a run of a hundred requests about which there is nothing to say.
func plain() *Run {
	r := &Run{Duration: 20, Setup: Setup{Clock: ClockReal, Backend: "openai", NumPrompts: 100, RequestRate: 10, Burstiness: 1}}
	for i := range 100 {
		at := float64(i) / 10
		rec := answered(at, at+0.1, at+0.2, at+0.3)
		rec.Index = i
		r.Records = append(r.Records, rec)
	}
	return r
}

// TestMetrics: figures of a run that can be computed by hand.
func TestMetrics(t *testing.T) {
	first, second := answered(1, 2, 2.5, 3), answered(3, 3.5)
	second.Intended, second.Room = 1, 3 // it waited for the first, and took its place
	chunky := answered(10, 11, 13)      // four tokens in two chunks
	chunky.OutputTokens, chunky.MaxTokens, chunky.ChunkTokens = 4, 4, []int{1, 3}
	chunky.Usage = &client.Usage{PromptTokens: 10, CompletionTokens: 4}
	failed := client.Record{Intended: 4, Sent: 4, Finish: 5, Status: client.StatusFailed, Error: "no"}
	r := &Run{Duration: 20, Records: []client.Record{first, second, chunky, failed}, Setup: Setup{
		Clock: ClockReal, RequestRate: 1, MaxConcurrency: 1, Goodput: stats.SLO{{Metric: "ttft", MS: 600}, {Metric: "e2el", MS: 3000}},
	}}
	first.Usage.CachedTokens = 6
	m := r.Metrics()
	for name, c := range map[string][2]float64{
		"mean TTFT":           {m.MeanTTFTMS, (1000 + 500 + 1000) / 3.},
		"median E2EL":         {m.MedianE2ELMS, 2000},
		"P99 E2EL":            {m.P99E2ELMS, 2980},
		"mean E2EL from due":  {m.Latencies[nameE2ELDue].Mean, (2000 + 2500 + 3000) / 3.},
		"ITL of chunks":       {m.Latencies[nameITL].Mean, (500 + 500 + 2000) / 3.},
		"ITL of tokens":       {m.Latencies[nameITLToken].Mean, (500 + 500 + 3*2000/3.) / 5.},
		"most wait for room":  {m.Latencies[nameQueue].Max, 2000},
		"in flight":           {m.Concurrency, (2 + 0.5 + 3 + 1) / 20.},
		"most in flight":      {float64(m.MaxConcurrency), 1},
		"goodput":             {*m.Goodput, 1 / 20.},
		"attained":            {*m.Attained, 1 / 4.},
		"most tokens in 1 s":  {m.PeakOutput, 3},
		"successful":          {float64(m.Successful), 3},
		"output tokens":       {float64(m.GeneratedTokens), 8},
		"chunks":              {float64(m.Chunks), 6},
		"counted by usage":    {float64(m.CountedBy[client.CountUsage]), 3},
		"values of late":      {float64(m.Latencies[nameLate].Values), 4},
		"values of TTFT":      {float64(m.Latencies[nameTTFT].Values), 3},
		"failed":              {float64(m.Failed), 1},
		"cached":              {float64(m.CachedTokens), 6},
		"late":                {(&Run{Records: []client.Record{{Intended: 1, Sent: 1.05}, {Skipped: true}}}).Late(50), 50},
		"the client was late": {m.MaxSendDelayMS, 0},
	} {
		if math.Abs(c[0]-c[1]) > 1e-3 {
			t.Errorf("%s: %g, want %g", name, c[0], c[1])
		}
	}
}

// TestNotes: each thing that is odd is said, and nothing is said of a run that is not.
func TestNotes(t *testing.T) {
	p := New(plain())
	if len(p.faults)+len(p.notes) != 0 {
		t.Errorf("of a plain run: %q %q", p.faults, p.notes)
	}
	all := func(change func(*client.Record)) func(*Run) {
		return func(r *Run) {
			for i := range r.Records {
				change(&r.Records[i])
			}
		}
	}
	for _, c := range []struct {
		name   string
		change func(*Run)
		want   string // faults begin with "fault: "
	}{
		{"did not stream", all(func(r *client.Record) {
			r.TokenTimes, r.FirstToken, r.FirstText = r.TokenTimes[2:], r.TokenTimes[2], r.TokenTimes[2]
			r.OutputTokens, r.MaxTokens = 40, 40
		}), "did not stream"},
		{"few tokens at once", all(func(r *client.Record) {
			r.TokenTimes, r.FirstToken, r.FirstText = r.TokenTimes[2:], r.TokenTimes[2], r.TokenTimes[2]
		}), "each answer came in one chunk, 3.0 tokens on average"},
		{"one did not stream", func(r *Run) {
			rec := &r.Records[3]
			rec.TokenTimes, rec.FirstToken = rec.TokenTimes[2:], rec.TokenTimes[2]
		}, "1 of 100 answers of several tokens came in one piece"},
		{"a role first", all(func(r *client.Record) { r.FirstToken += 0.03 }), "100 of 100 answers began with a chunk without text, a role or the like: TTFT is to the first text, reasoning or call of a tool, 30.0 ms later on average than the first chunk, to which vLLM's layout has its TTFT"},
		{"several tokens a chunk", all(func(r *client.Record) {
			r.OutputTokens, r.MaxTokens, r.Usage.CompletionTokens = 6, 6, 6
		}), "chunks carry several tokens, 2.00 on average"},
		{"ended early", all(func(r *client.Record) { r.MaxTokens = 9 }), "100 of 100 answers ended before max_tokens"},
		{"200 without a token", func(r *Run) {
			r.Records[5] = client.Record{Index: 5, Sent: 1, Finish: 2, Status: client.StatusFailed, Error: "never received a chunk", Silent: true}
		}, "answered with status 200 and not one token"},
		{"an error in a 200", func(r *Run) {
			rec := answered(1, 1.1, 1.2)
			rec.Index, rec.Status, rec.Fault, rec.Error, rec.HTTPStatus = 5, client.StatusFailed, client.FaultServer, "server: out of memory", 200
			r.Records[5] = rec
		}, "vLLM's client would count 100 successful and 0 failed: "},
		{"no token, as SGLang", func(r *Run) {
			r.Compat, r.Backend = "sglang", "sglang"
			r.Records[5] = client.Record{Index: 5, Sent: 1, Finish: 2, LastLine: 2, Status: client.StatusFailed, Fault: client.FaultEmpty, Error: "no chunk", Silent: true, HTTPStatus: 200}
		}, "1 of the failed requests are successes to SGLang's client"},
		{"no [DONE]", all(func(r *client.Record) { r.Notes = []string{client.NoteNoDone} }), "100 requests: no [DONE]"},
		{"unconfirmed prompts", all(func(r *client.Record) { r.Unconfirmed = true }), "prompt lengths of 100 requests are unconfirmed"},
		{"read late", all(func(r *client.Record) { r.ReadDelay = 0.012 }), "the client was late to read: at the 99th percentile of the requests a piece of the answer waited 12.0 ms for it"},
		{"failed", func(r *Run) {
			r.Records[7] = client.Record{Index: 7, Sent: 1, Finish: 2, Status: client.StatusFailed, Error: "status 503 after 3 ms"}
			r.Records[9] = client.Record{Index: 9, Sent: 1, Finish: 2, Status: client.StatusFailed, Error: "status 503 after 12 ms"}
		}, "fault: 2 of 100 requests failed, the first is request 7: status 503 after 3 ms"},
		{"nothing succeeded", all(func(r *client.Record) { r.Status, r.Error = client.StatusFailed, "no" }), "fault: no request succeeded"},
		{"all short", all(func(r *client.Record) {
			r.MaxTokens, r.HTTPStatus, r.Status, r.Fault, r.Error = 9, 200, client.StatusFailed, client.FaultShort, "short output: 3 tokens, want 9"
		}), "fault: no request succeeded by kvferry's rules: summary.json, table.md and report.html have no latencies for that reason alone. The figures in vLLM's layout are of 100 answers that its client counts as successful\n" +
			"fault: 100 of 100 requests ended short, the first is request 0: 3 tokens, 9 were asked for (finish_reason length: a cap of the server's own?)\n"},
		{"longer", func(r *Run) {
			rec := &r.Records[4]
			rec.MaxTokens, rec.Notes = 2, []string{client.NoteLong}
		}, "note: 1 of 100 answers were longer than asked for, the first is request 4: 3 tokens, 2 were asked for. They count as successful\n"},
		{"nothing sent", func(r *Run) { r.Records = nil }, "fault: no request was sent"},
		{"never sent", func(r *Run) {
			r.Records[8] = client.Record{Index: 8, Status: client.StatusFailed, Error: "skipped", Skipped: true}
		}, "1 requests were never sent"},
		{"unconfirmed", all(func(r *client.Record) { r.CountedBy = client.CountChunks }), "token counts of 100 requests are unconfirmed: neither the server nor a tokenizer (--tokenizer)"},
		{"tokenizer", all(func(r *client.Record) { r.CountedBy = client.CountTokenizer }), "counted by the client's tokenizer"},
		{"other prompts", all(func(r *client.Record) { r.InputTokens = 12 }), "other prompt lengths than were sent in 100 of 100 requests, the first is request 0: 12 tokens, 10 sent"},
		{"few", func(r *Run) { r.Records = r.Records[:40] }, "40 requests are too few for a P99"},
		{"one", func(r *Run) { r.Records = r.Records[:1] }, "1 request is too few for a P99"},
		{"late", all(func(r *client.Record) { r.Intended -= 0.05 }), "the client was late: P99 of sent - intended is 50.0 ms"},
		{"no room", func(r *Run) {
			r.MaxConcurrency = 2
			all(func(r *client.Record) { r.Room, r.Intended = r.Sent, r.Sent-0.2 })(r)
		}, "requests waited for room, 200.0 ms on average: from when it was due, a request took 500.0 ms"},
		{"interrupted", func(r *Run) {
			r.Interrupted = true
			r.Records[99].Status, r.Records[99].Error = client.StatusInterrupted, "given up"
		}, "the run was interrupted: 100 of 100 requests had been sent, and 1 of these were cut off, which count neither as successful nor as failed"},
		{"given", func(r *Run) { r.Faults, r.Notes = []string{"a"}, []string{"b"} }, "fault: a"},
		{"disturbed", func(r *Run) { r.Disturbance = &observe.Disturbance{Why: []string{"timers came late"}} }, "disturbed: the client's machine was disturbed: timers came late"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := plain()
			c.change(r)
			var b strings.Builder
			if err := New(r).WriteNotes(&b); err != nil || !strings.Contains(b.String(), c.want) {
				t.Errorf("%v in\n%s\nwant %q", err, &b, c.want)
			}
		})
	}
}

// TestToolCalls: an answer whose chunks have no text, as a call of a tool, did stream.
func TestToolCalls(t *testing.T) {
	r := plain()
	for i := range r.Records {
		for k := range r.Records[i].TokenTimes {
			r.Records[i].NoText = append(r.Records[i].NoText, k)
		}
	}
	var b strings.Builder
	if err := New(r).WriteNotes(&b); err != nil || strings.Contains(b.String(), "did not stream") || strings.Contains(b.String(), "one piece") {
		t.Errorf("%v in\n%s", err, &b)
	}
}

// TestCutOff: requests that an interrupt cut off are neither successes nor failures, and the first
// sentence says how many they are.
func TestCutOff(t *testing.T) {
	r := &Run{Interrupted: true, Duration: 3, Setup: Setup{Backend: "openai"}, Records: []client.Record{answered(0.2, 0.5, 0.6), {Index: 1, Sent: 1, Finish: 2, Status: client.StatusInterrupted}}}
	if s := New(r).verdict(); !strings.HasPrefix(s, "1 of 2 requests succeeded, 1 was cut off, in 3.0 s: ") {
		t.Error(s)
	}
}

// TestPeaks: one request that ends as the next begins is not at once with it, for us; both
// tools count the second in which it happens for both.
func TestPeaks(t *testing.T) {
	r := &Run{Duration: 3, Setup: Setup{Backend: "openai"}, Records: []client.Record{answered(0.2, 0.5, 0.6), answered(0.6, 0.8, 2.1)}}
	if m := r.Metrics(); m.MaxConcurrency != 1 {
		t.Errorf("%d at once", m.MaxConcurrency)
	}
	if v := NewVLLM(r); v.peakRequests != 2 || v.peakTokens != 3 {
		t.Errorf("vLLM: %d at once, %g tokens", v.peakRequests, v.peakTokens)
	}
}

// TestTable: the whole of table.md of a recorded run.
func TestTable(t *testing.T) {
	run := golden(t, "mixed", "openai")
	run.Command, run.Label = []string{"kvferry", "bench"}, "measured; the server is not known"
	var b bytes.Buffer
	if err := Document(New(run)).WriteMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	documenttest.Golden(t, "table.golden", b.Bytes())
}

// TestFiles: summary.json has the names of mooncake's rows, the page loads nothing from
// elsewhere, and two clocks stand side by side in one folder.
func TestFiles(t *testing.T) {
	run := golden(t, "mixed", "openai")
	run.Steady = &Steady{From: 0.5, To: 2, Table: document.Table{Title: "Steady state", Head: []string{"x"}}, Figures: map[string]int{"sent": 3}}
	run.Disturbance = &observe.Disturbance{LateMeanMS: 0.75, CPU: &observe.CPUUse{CPUs: 2, OthersPct: 61.5}, Why: []string{"timers came late"}}
	run.Records[0].Adapter, run.Records[0].Worker = "sql", "http://10.0.0.7:8000"
	virtual := *golden(t, "plain", "openai")
	virtual.Clock = ClockVirtual
	dir := t.TempDir()
	if err := document.WriteFiles(dir, Document(New(run), New(&virtual)).Files()...); err != nil {
		t.Fatal(err)
	}
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	var s struct {
		Rows []struct {
			Clock   string
			Metrics map[string]any
			Steady  map[string]int
			Rate    any `json:"request_rate"`
			Faults  []string
		}
	}
	if err := json.Unmarshal(read(document.SummaryFile), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Rows) != 2 || s.Rows[1].Clock != ClockVirtual || s.Rows[0].Steady["sent"] != 3 || s.Rows[0].Rate != 8.0 || len(s.Rows[0].Faults) != 2 {
		t.Errorf("%+v", s)
	}
	var figures client.Metrics
	for _, f := range figures.All() {
		if _, ok := s.Rows[0].Metrics[f.Key].(float64); !ok {
			t.Errorf("no %s in a row's metrics", f.Key)
		}
	}
	html := string(read(document.ReportFile))
	if n := strings.Count(html, "<svg"); n != 4+4+4 {
		t.Errorf("%d plots", n)
	}
	if bad := regexp.MustCompile(`(?i)(src|href)=|url\(|@import`).FindString(strings.ReplaceAll(html, "xlink:href", "")); bad != "" {
		t.Errorf("the page loads something: %s", bad)
	}
	for _, want := range []string{"prefers-color-scheme: dark", "steady part", "Side by side", "real: ", "virtual: ", "The slowest requests", "By adapter", "By server", "http://10.0.0.7:8000", "The client&#39;s machine meanwhile", "61.5"} {
		if !strings.Contains(html, want) {
			t.Errorf("no %q in the page", want)
		}
	}
	if !strings.Contains(string(read(document.TableFile)), "### Side by side") {
		t.Error("no table of both clocks")
	}
}

// TestEmpty: a run without a request, and one without a success, have all files too.
func TestEmpty(t *testing.T) {
	for _, r := range []*Run{{Setup: Setup{Clock: ClockReal}}, golden(t, "failed", "openai")} {
		if err := document.WriteFiles(t.TempDir(), Document(New(r)).Files()...); err != nil {
			t.Error(err)
		}
		if _, err := NewVLLM(r).JSON(true); err != nil {
			t.Error(err)
		}
		r.Backend = "sglang"
		line, err := NewSGLang(r).JSON(true)
		if err != nil || !strings.Contains(string(line), `"mean_e2e_latency_ms": NaN`) {
			t.Errorf("%s, %v", line, err)
		}
	}
}

// TestAppendLine: a result is a line of its own, also after one of vLLM's, which do not end
// with a newline.
func TestAppendLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "r.jsonl")
	for _, line := range []string{"1", "2"} {
		if err := AppendLine(path, []byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, []byte("1\n2"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := AppendLine(path, []byte("3")); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "1\n2\n3\n" {
		t.Errorf("%q, %v", text, err)
	}
	lost := (*document.OutputError)(nil)
	if err := AppendLine(filepath.Join(path, "below"), nil); !errors.As(err, &lost) {
		t.Error(err)
	}
}

func TestParse(t *testing.T) {
	if slos, err := stats.ParseSLO([]string{"ttft:200", "tpot:30.5,e2el:0"}); err != nil || len(slos) != 3 || slos[1] != (stats.Bound{Metric: "tpot", MS: 30.5}) {
		t.Error(slos, err)
	}
	if p, err := ParseMetadata(" tp = 2=3"); err != nil || p != (Pair{"tp", "2=3"}) {
		t.Error(p, err)
	}
	for _, c := range []struct {
		err  func() error
		want string
	}{
		{func() error { _, err := stats.ParseSLO([]string{"itl:3"}); return err }, `"itl:3": write METRIC:MS`},
		{func() error { _, err := stats.ParseSLO([]string{"ttft:-3"}); return err }, `"ttft:-3": write ttft:MS`},
		{func() error { _, err := stats.ParseSLO([]string{"ttft:NaN"}); return err }, `"ttft:NaN": write ttft:MS`},
		{func() error { _, err := stats.ParseSLO([]string{"ttft:1", "ttft:2"}); return err }, `"ttft:2": ttft is given twice`},
		{func() error { _, err := ParseMetadata("tp"); return err }, `"tp": write KEY=VALUE`},
		{func() error { _, err := ParsePercentiles("50,101"); return err }, `"101": write percentiles from 0 to 100`},
		{func() error { _, err := ParsePercentiles("50,"); return err }, `"": write percentiles`},
		{func() error { _, err := ParsePercentileMetrics("ttft,e2e"); return err }, `"e2e": use ttft, tpot, itl, e2el`},
	} {
		if err := c.err(); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
	for v, want := range map[float64]string{4: "4.0", 0.5: "0.5", 1e-5: "1e-05", math.Inf(1): "inf", 1e16: "1e+16", 123456789: "123456789.0"} {
		if got := pyFloat(v); got != want {
			t.Errorf("%v is %s, want %s", v, got, want)
		}
	}
}

// TestPeaksOfYears: a run may last for years of virtual time, and takes no memory for it.
func TestPeaksOfYears(t *testing.T) {
	var all []seen
	for i := range 3 {
		all = append(all, seen{ok: true, start: float64(i) * 4e9, ttft: 1, latency: 1, itl: func() []float64 { return nil }})
	}
	if tokens, requests := peaks(all); tokens != 1 || requests != 1 {
		t.Errorf("%v tokens and %d requests in a second", tokens, requests)
	}
}

// TestRunOfYears: nor do our own figures.
func TestRunOfYears(t *testing.T) {
	r := &Run{Duration: 8e9}
	for i := range 3 {
		at := float64(i) * 4e9
		r.Records = append(r.Records, client.Record{
			Index: i, Status: client.StatusOK, Intended: at, Sent: at, FirstToken: at + 1, TokenTimes: []float64{at + 1}, Finish: at + 1,
			OutputTokens: 1, InputTokens: 1, CountedBy: client.CountUsage, Usage: &client.Usage{PromptTokens: 1, CompletionTokens: 1},
		})
	}
	if p := New(r); p.M.PeakOutput != 1 || p.M.MaxConcurrency != 1 {
		t.Errorf("%v tokens in a second, %d requests at once", p.M.PeakOutput, p.M.MaxConcurrency)
	}
	for _, f := range Document(New(r)).Files() {
		if err := f.Write(io.Discard); err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
	}
}
