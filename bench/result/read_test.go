package result

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/bench/client"
	"kvferry/bench/document"
	"kvferry/bench/report"
	"kvferry/bench/stats"
)

// TestReadGolden: what the real clients wrote is read, and its figures are those that they
// printed; the requests' own latencies give the same figures again.
func TestReadGolden(t *testing.T) {
	files, err := filepath.Glob("../report/testdata/*.*.txt")
	if err != nil || len(files) < 15 {
		t.Fatal(len(files), err)
	}
	for _, text := range files {
		t.Run(filepath.Base(text), func(t *testing.T) {
			printed, err := Read(text)
			if err != nil {
				t.Fatal(err)
			}
			saved, err := Read(strings.TrimSuffix(text, ".txt") + ".json")
			if err != nil {
				t.Fatal(err)
			}
			if len(printed) != 1 || len(saved) != 1 || printed[0].Tool != saved[0].Tool {
				t.Fatalf("%d and %d results", len(printed), len(saved))
			}
			least := 15
			if printed[0].Figures["successful_requests"] == 0 { // it has no latencies
				least = 10
			}
			if len(printed[0].Figures) < least {
				t.Errorf("%d figures in the text", len(printed[0].Figures))
			}
			for key, v := range printed[0].Figures {
				w, ok := saved[0].Figures[key]
				if !ok && strings.HasPrefix(key, "max_itl") {
					continue // only printed
				}
				if !ok && !strings.HasSuffix(key, "_per_request") || ok && math.Abs(v-w) > 0.0051 {
					t.Errorf("%s: %g is printed, %g saved", key, v, w)
				}
			}
			for _, key := range []string{"request_rate", "max_concurrency"} {
				if a, b := printed[0].Setup[key], saved[0].Setup[key]; a != b && (a != "" || b != "inf") {
					t.Errorf("%s: %q and %q", key, a, b)
				}
			}
			again := Run{Figures: map[string]float64{}, Requests: saved[0].Requests}
			again.derive()
			for key, v := range again.Figures {
				if w, ok := saved[0].Figures[key]; ok && math.Abs(v-w) > 1e-6 {
					t.Errorf("%s: %g of the requests, %g saved", key, v, w)
				}
			}
		})
	}
}

// TestReadDetails: which latencies of requests a file has.
func TestReadDetails(t *testing.T) {
	for file, want := range map[string][4]int{ // requests, and those with TTFT, TPOT, E2EL
		"mixed.openai.json":  {19, 19, 17, 19},
		"burst.openai.json":  {40, 0, 0, 40}, // without --save-detailed
		"mixed.sglang.json":  {19, 19, 0, 0}, // the tool does not list latencies
		"failed.openai.json": {0, 0, 0, 0},
	} {
		results, err := Read(golden(file))
		if err != nil {
			t.Fatal(err)
		}
		r := results[0]
		if got := [4]int{len(r.Requests), having(r.Values(nameTTFT)), having(r.Values(nameTPOT)), having(r.Values(nameE2EL))}; got != want {
			t.Errorf("%s: %v, want %v", file, got, want)
		}
		if _, _, ok := r.Lengths(); ok != (want[1] > 0) {
			t.Errorf("%s: lengths are known: %v", file, ok)
		}
	}
}

// golden is a file that the real clients made; package report has them.
func golden(name string) string { return filepath.Join("..", "report", "testdata", name) }

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(golden(name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A line of results.jsonl of kvferry bench.
type line struct {
	Clock string `json:"clock"`
	client.Record
}

// answered is a request that was sent when it was due, with chunks at these times.
func answered(sent float64, times ...float64) client.Record {
	last := times[len(times)-1]
	return client.Record{
		Intended: sent, Sent: sent, FirstToken: times[0], TokenTimes: times, Finish: last, Status: client.StatusOK, PromptTokens: 10,
		InputTokens: 10, MaxTokens: len(times), OutputTokens: len(times), CountedBy: client.CountUsage,
	}
}

// plain is a run of a hundred requests.
func plain() *report.Run {
	r := &report.Run{Duration: 20, Setup: report.Setup{Clock: report.ClockReal, RequestRate: 10, Burstiness: 1}}
	for i := range 100 {
		at := float64(i) / 10
		rec := answered(at, at+0.1, at+0.2, at+0.3)
		rec.Index = i
		r.Records = append(r.Records, rec)
	}
	return r
}

// having is how many requests have a value.
func having(values [][]float64) (n int) {
	for _, list := range values {
		if len(list) > 0 {
			n++
		}
	}
	return n
}

// TestReadFolder: our own folder gives back the figures that it was made with, of each row.
func TestReadFolder(t *testing.T) {
	dir := t.TempDir()
	run, virtual := plain(), plain()
	virtual.Clock = report.ClockVirtual
	for i := range virtual.Records {
		virtual.Records[i].TokenTimes = []float64{virtual.Records[i].Sent + 0.5, virtual.Records[i].Sent + 0.6, virtual.Records[i].Sent + 0.7}
		virtual.Records[i].FirstToken = virtual.Records[i].Sent + 0.5
	}
	folder := document.OpenFolder(dir, func(string) {})
	reports := []*report.Report{report.New(run), report.New(virtual)}
	for _, p := range reports {
		for i := range p.Records {
			folder.Record(line{p.Clock, p.Records[len(p.Records)-1-i]}) // they come as they end
		}
	}
	folder.Record(line{report.ClockReal, client.Record{Index: 100, Status: client.StatusFailed, Error: "no"}})
	folder.Save(report.Document(reports...).Files()...)
	if err := folder.Close(); err != nil {
		t.Fatal(err)
	}
	appendText(t, filepath.Join(dir, document.RecordsFile), `{"index": 101, "sta`) // killed while it wrote
	results, err := Read(dir)
	if err != nil || len(results) != 2 {
		t.Fatal(len(results), err)
	}
	for i, r := range results {
		m := reports[i].M
		if r.Key != reports[i].Clock || len(r.Requests) != 100 || r.Figures["mean_ttft_ms"] != m.MeanTTFTMS || r.Figures["p90_e2el_ms"] != stats.Round(m.Latencies["e2el"].P90, 4) || r.Setup["request_rate"] != "10" {
			t.Errorf("%s: %d requests, %v, %v", r.Key, len(r.Requests), r.Figures, r.Setup)
		}
		if got := r.Values(nameTTFT)[99][0]; math.Abs(got-m.MeanTTFTMS) > 1e-6 {
			t.Errorf("TTFT of a request is %g, want %g", got, m.MeanTTFTMS)
		}
	}
	if summary, err := Read(filepath.Join(dir, SummaryFile)); err != nil || len(summary) != 2 {
		t.Error(len(summary), err)
	}
}

// TestReadSearch: the records of a search's runs are not taken for one run's, and the run that is
// reported has its own.
func TestReadSearch(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, SummaryFile, `{"rows": [{"clock": "real", "metrics": {"mean_ttft_ms": 100}}]}`)
	var records strings.Builder
	for _, point := range []string{"2", "4", `4,"repeat":1`, `4,"repeat":1`} {
		line, err := json.Marshal(answered(1, 1.1, 1.2))
		if err != nil {
			t.Fatal(err)
		}
		records.WriteString(`{"clock":"real","point":` + point + `,` + string(line[1:]) + "\n")
	}
	write(t, dir, document.RecordsFile, records.String())
	if results, err := Read(dir); err != nil || len(results) != 1 || results[0].Requests != nil {
		t.Errorf("%+v, %v", results, err)
	}
	for row, want := range map[string]int{`"point": 4`: 1, `"point": 4, "repeat": 1`: 2} {
		write(t, dir, SummaryFile, `{"rows": [{"clock": "real", `+row+`, "metrics": {"mean_ttft_ms": 100}}]}`)
		if results, err := Read(dir); err != nil || len(results) != 1 || len(results[0].Requests) != want {
			t.Errorf("%s: %+v, %v; want %d requests", row, results, err, want)
		}
	}
}

func appendText(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestReadSimulate: kvferry sim's folder has another form, and shorter records.
func TestReadSimulate(t *testing.T) {
	dir := t.TempDir()
	summary := `{"command": [], "result": {"clock": "virtual", "load": {"requests": 2, "request_rate": 4, "seed": 7}, "requests": 2, "failed_requests": 0,
		"duration_s": 2, "prompt_tokens": 20, "output_tokens": 6, "latency_ms": {"ttft": {"mean": 40, "p50": 40, "p99": 49.8}}}}`
	records := `{"index":1,"prompt_tokens":10,"output_tokens":5,"arrived":1,"first_token":1.05,"finish":1.45}
{"index":0,"prompt_tokens":10,"output_tokens":1,"arrived":0.5,"first_token":0.53,"finish":0.53}
`
	write(t, dir, SummaryFile, summary)
	write(t, dir, document.RecordsFile, records)
	results, err := Read(dir)
	if err != nil || len(results) != 1 {
		t.Fatal(len(results), err)
	}
	r := results[0]
	if r.Figures["median_ttft_ms"] != 40 || r.Figures["total_generated_tokens"] != 6 || r.Figures["successful_requests"] != 2 || r.Setup["seed"] != "7" {
		t.Errorf("%v %v", r.Figures, r.Setup)
	}
	if len(r.Requests) != 2 || math.Abs(r.Requests[0].TTFT-0.03) > 1e-9 || !math.IsNaN(r.Requests[0].TPOT) || math.Abs(r.Requests[1].TPOT-0.1) > 1e-9 {
		t.Errorf("%+v", r.Requests)
	}
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestReadText: reports of other versions, in the middle of what else a terminal shows.
func TestReadText(t *testing.T) {
	old := `Namespace(backend='vllm', model='Qwen/Qwen2.5-7B', num_prompts=200, seed=0, goodput=None)
============ Serving Benchmark Result ============
Successful requests:                     200
Benchmark duration (s):                  98.72     
Total Token throughput (tok/s):          2051.33   
---------------Time to First Token----------------
Mean TTFT (ms):                          461.50    
P99.9 TTFT (ms):                         1734.00   
==================================================
`
	middle := `#Input tokens: 5661
============ Serving Benchmark Result ============
Backend:                                 sglang    
Traffic request rate:                    inf       
Max request concurrency:                 not set   
Successful requests:                     200       
Total throughput (tok/s):                12345.6
-----------------End-to-End Latency-----------------
Mean E2E Latency (ms):                   524.00
Max ITL (ms):                            nan
[STDERR] a warning: about something
`
	results, err := Parse("terminal", []byte(old+"exit code 0\n"+middle))
	if err != nil || len(results) != 2 {
		t.Fatal(len(results), err)
	}
	a, b := results[0], results[1]
	if a.Tool != ToolVLLM || a.Figures["mean_ttft_ms"] != 461.5 || a.Figures["p99.9_ttft_ms"] != 1734 || a.Figures["total_token_throughput"] != 2051.33 || a.Setup["model_id"] != "Qwen/Qwen2.5-7B" || a.Setup["seed"] != "0" {
		t.Errorf("%+v", a)
	}
	if b.Tool != ToolSGLang || b.Figures["mean_e2el_ms"] != 524 || b.Setup["request_rate"] != "inf" || b.Setup["max_concurrency"] != "" || b.Source != "terminal #2" {
		t.Errorf("%+v", b)
	}
	if _, ok := b.Figures["max_itl_ms"]; ok {
		t.Error("nan is a figure")
	}
}

// TestReadAppended: several results in a file, as both tools append them.
func TestReadAppended(t *testing.T) {
	one := string(readFile(t, "plain.openai.json"))
	for _, text := range []string{one + one, strings.TrimSpace(one) + "\n" + strings.TrimSpace(one), string(readFile(t, "burst.sglang.json")) + string(readFile(t, "plain.sglang.json"))} {
		results, err := Parse("all.jsonl", []byte(text))
		if err != nil || len(results) != 2 || results[1].Source != "all.jsonl #2" || results[0].Source != "all.jsonl #1" {
			t.Error(len(results), err)
		}
	}
	results, err := Parse("burst", readFile(t, "burst.sglang.json"))
	if err != nil || results[0].Setup["request_rate"] != "inf" {
		t.Errorf("%v, %v: a bare Infinity", results[0].Setup, err)
	}
}

// TestReadRefuses: an error names the file, which of its results, and the key.
func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	object := func(more string) string { return `{"total_token_throughput": 1` + more + `}` }
	for _, c := range []struct{ text, want string }{
		{"", "it is empty"},
		{"hello", "there is no result in it"},
		{object("") + "\nx", "result 2: this is no JSON: invalid character 'x'"},
		{"[1, 2]", "result 1: the value: array: want an object in braces"},
		{`{"a": 1}`, "result 1: it is no result"},
		{`{"rows": []}`, "result 1: it is a summary.json of kvferry under another name"},
		{object("") + "\n{", "result 2: it ends in the middle"},
		{object(`, "duration": "long"`), `result 1: duration: "long" is no number`},
		{object(`, "ttfts": [1, 2], "errors": [""]`), "result 1: errors: 1 requests, and 2 in the lists before it"},
		{object(`, "ttfts": 3`), "result 1: ttfts: number: want a list in brackets"},
		{object(`, "ttfts": [-1]`), "result 1: ttfts: request 0: -1 is no time in seconds"},
		{object(`, "latencies": ["a"]`), "result 1: latencies: string: want a number"},
		{object(`, "itls": [[0.1], [NaN]]`), "result 1: itls: string: want a number"},
		{object(`, "input_lens": [1.5]`), "result 1: input_lens: number 1.5: want a whole number"},
	} {
		path := write(t, dir, "r.json", c.text)
		_, err := Read(path)
		var format *FormatError
		if !errors.As(err, &format) || !strings.HasPrefix(err.Error(), path+": "+c.want) {
			t.Errorf("%s: %v, want %s", c.text, err, c.want)
		}
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "it has no summary.json") {
		t.Error(err)
	}
	for text, want := range map[string]string{
		`{"rows": []}`:                            "summary.json: rows: there is none",
		`{"rows": [{"metrics": 3}]}`:              "summary.json: result 1: metrics: number: want an object",
		`{"rows": [{"latency_ms": {"ttft": 3}}]}`: "summary.json: result 1: latency_ms: number: want an object",
		`{`: "summary.json: it ends in the middle",
	} {
		write(t, dir, SummaryFile, text)
		if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	write(t, dir, SummaryFile, `{"rows": [{"metrics": {"mean_ttft_ms": 1}}]}`)
	write(t, dir, document.RecordsFile, "{}\nxx\n{}\n")
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "results.jsonl: line 2: ") {
		t.Error(err)
	}
	if _, err := Read(filepath.Join(dir, "nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// FuzzParse: whatever a file holds, it is read or refused; figures are finite, and a request's
// latencies are as many as its lists.
func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("../report/testdata/*.json")
	texts, _ := filepath.Glob("../report/testdata/*.txt")
	for _, name := range append(files, texts...) {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"total_token_throughput": -Infinity, "mean_ttft_ms": NaN, "label": "Infinity \" NaN", "errors": ["x"], "latencies": [0]}`))
	f.Add([]byte("=== Serving Benchmark Result ===\nMean TTFT (ms): inf\n===\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		results, err := Parse("x", text)
		if err != nil {
			var format *FormatError
			if !errors.As(err, &format) || format.File != "x" {
				t.Fatal(err)
			}
			return
		}
		for _, r := range results {
			for key, v := range r.Figures {
				if math.IsNaN(v) || math.IsInf(v, 0) {
					t.Errorf("%s is %g", key, v)
				}
			}
			for _, name := range []string{nameTTFT, nameTPOT, nameITL, nameE2EL} {
				if n := len(r.Values(name)); n != 0 && n != len(r.Requests) {
					t.Errorf("%d values of %s in %d requests", n, name, len(r.Requests))
				}
			}
		}
	})
}

// TestQuoted: words that JSON does not have get quotation marks, but not in strings.
func TestQuoted(t *testing.T) {
	for text, want := range map[string]string{
		`{"a": Infinity, "b": -Infinity, "c": [NaN, 1]}`: `{"a": "Infinity", "b": "-Infinity", "c": ["NaN", 1]}`,
		`{"Infinity": "x \" NaN \\", "d": NaN}`:          `{"Infinity": "x \" NaN \\", "d": "NaN"}`,
		`{"a": 1}`:                                       `{"a": 1}`,
	} {
		if got := string(quoted([]byte(text))); got != want {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
	}
	var n number
	for text, ok := range map[string]bool{"1e3": true, `"inf"`: true, `"-inf"`: true, `"nan"`: true, "true": false, `"x"`: false, "1e999": false, "{}": false} {
		if err := json.Unmarshal([]byte(text), &n); (err == nil) != ok {
			t.Errorf("%s: %v, %v", text, n, err)
		}
	}
}
