package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/bench/document"
	"kvferry/bench/document/documenttest"
)

// run is a result with n requests of the given mean TTFT, in ms.
func run(name string, n int, ttft float64) Run {
	r := Run{
		Source: name, Tool: ToolVLLM, Setup: map[string]string{"seed": "0", "request_rate": "4"},
		Figures: map[string]float64{"request_throughput": 4, "successful_requests": float64(n), "failed_requests": 0, "mean_tpot_ms": 7},
	}
	sum := 0.0
	for i := range n {
		v := ttft * (0.5 + float64(i)/float64(n)) / 1e3
		sum += v
		r.Requests = append(r.Requests, Request{TTFT: v, TPOT: math.NaN(), E2EL: math.NaN(), Prompt: 10 + i%7, Output: 5})
	}
	r.Figures["mean_ttft_ms"] = sum / float64(max(n, 1)) * 1e3
	return r
}

// against is a figure's difference of the second result.
func against(t *testing.T, c *comparison, figure string) difference {
	t.Helper()
	for _, row := range c.Groups[0].Rows {
		if row.Figure == figure {
			return row.Against[0]
		}
	}
	t.Fatalf("no row of %s", figure)
	return difference{}
}

// TestVerdicts: what is said of a difference, and why there is no interval.
func TestVerdicts(t *testing.T) {
	a := run("a", 600, 100)
	change := func(f func(*Run)) Run {
		r := run("b", 600, 100)
		f(&r)
		return r
	}
	for _, c := range []struct {
		name, figure string
		b            Run
		verdict, why string
	}{
		{"slower", "mean_ttft_ms", run("b", 600, 150), slower, ""},
		{"faster", "mean_ttft_ms", run("b", 600, 80), faster, ""},
		{"alike", "mean_ttft_ms", run("b", 400, 100.5), noDifference, ""},
		{"a rate", "request_throughput", run("b", 600, 100), "", oneValue},
		{"not listed", "mean_tpot_ms", run("b", 600, 100), "", "neither lists values by request"},
		{"nothing listed", "mean_ttft_ms", change(func(r *Run) { r.Requests = nil }), "", "B lists no values by request"},
		{"few", "mean_ttft_ms", run("b", 19, 100), "", "19 requests are too few"},
		{"another figure", "mean_ttft_ms", change(func(r *Run) { r.Figures["mean_ttft_ms"] = 123 }), "", "the requests listed do not give the figure"},
	} {
		t.Run(c.name, func(t *testing.T) {
			comparison, err := NewComparison([][]Run{{a}, {c.b}}, 0.95, 500, 1)
			if err != nil {
				t.Fatal(err)
			}
			d := against(t, comparison, c.figure)
			if d.Verdict != c.verdict || d.Why != c.why || (d.Low == nil) != (c.why != "") {
				t.Errorf("%+v, want %q, %q", d, c.verdict, c.why)
			}
			if d.Low != nil && !(*d.Low <= *d.Percent && *d.Percent <= *d.High) {
				t.Errorf("%g is not in %g to %g", *d.Percent, *d.Low, *d.High)
			}
		})
	}
}

// TestTooFewAbove: a P99 needs five values above it, a P90 too.
func TestTooFewAbove(t *testing.T) {
	for n, want := range map[int]bool{499: false, 501: true} {
		var results [][]Run
		for _, name := range []string{"a", "b"} {
			r := run(name, n, 100)
			r.Figures["p99_ttft_ms"] = newPool(r.Values("ttft")).whole()[4]
			results = append(results, []Run{r})
		}
		c, err := NewComparison(results, 0.95, 100, 1)
		if err != nil {
			t.Fatal(err)
		}
		if d := against(t, c, "p99_ttft_ms"); (d.Low != nil) != want {
			t.Errorf("%d requests: %+v", n, d)
		}
	}
}

// TestPairing: the same lengths, request by request, are drawn together; another order of the
// same lengths is not.
func TestPairing(t *testing.T) {
	a, b := run("a", 100, 100), run("b", 100, 110)
	for _, want := range []bool{true, false} {
		c, err := NewComparison([][]Run{{a}, {b}}, 0.95, 100, 1)
		if err != nil {
			t.Fatal(err)
		}
		if d := against(t, c, "mean_ttft_ms"); d.Paired != want || d.Low == nil {
			t.Errorf("%+v, want paired %v", d, want)
		}
		b.Requests[3].Prompt, b.Requests[4].Prompt = b.Requests[4].Prompt, b.Requests[3].Prompt
	}
}

// TestDiffers: what was not alike is said, and nothing of two runs that were.
func TestDiffers(t *testing.T) {
	if d := differs([]Run{run("a", 30, 1), run("b", 30, 2)}); len(d) != 0 {
		t.Errorf("of two runs that are alike: %q", d)
	}
	for want, change := range map[string]func(*Run){
		"A and B differ in seed: 0 and 3":                                 func(r *Run) { r.Setup["seed"] = "3" },
		"A and B differ in request rate: 4 and inf":                       func(r *Run) { r.Setup["request_rate"] = "inf" },
		"A and B were measured by vLLM and SGLang: ":                      func(r *Run) { r.Tool = ToolSGLang },
		"A and B did not do the same work: 100.0 and 120.0 output tokens": func(r *Run) { r.Figures["output_tokens_per_request"] = 120 },
		"A and B differ in failed requests, 0.0 and 25.0 %":               func(r *Run) { r.Figures["failed_requests"] = 10 },
		"B: the machine was disturbed":                                    func(r *Run) { r.Doubts = []string{"the machine was disturbed"} },
	} {
		a, b := run("a", 30, 1), run("b", 30, 1)
		a.Figures["output_tokens_per_request"], b.Figures["output_tokens_per_request"] = 100, 100
		change(&b)
		if d := differs([]Run{a, b}); len(d) != 1 || !strings.HasPrefix(d[0], want) {
			t.Errorf("%q, want %s", d, want)
		}
	}
	missing := run("b", 30, 1)
	delete(missing.Setup, "seed")
	if d := differs([]Run{run("a", 30, 1), missing}); len(d) != 0 {
		t.Errorf("a seed that a file does not have: %q", d)
	}
}

// TestDiffersInChunks: gaps between chunks of four tokens are not set beside those of one without a word.
func TestDiffersInChunks(t *testing.T) {
	a, b := run("a", 30, 1), run("b", 30, 1)
	for i := range a.Requests {
		a.Requests[i].Output, a.Requests[i].ITL = 41, make([]float64, 40)
		b.Requests[i].Output, b.Requests[i].ITL = 41, make([]float64, 10)
	}
	if d := differs([]Run{a, b}); len(d) != 1 || !strings.HasPrefix(d[0], "A and B differ in tokens a chunk, 1.00 and 4.00: ") {
		t.Errorf("%q", d)
	}
}

func TestSigned(t *testing.T) {
	for v, want := range map[float64]string{-0.04: "+0.0", 0.04: "+0.0", -0.06: "-0.1", 12.34: "+12.3"} {
		if got := signed(v); got != want {
			t.Errorf("%g is %s, want %s", v, got, want)
		}
	}
}

// TestGroups: rows of tables are compared by their names, what has no counterpart is named.
func TestGroups(t *testing.T) {
	row := func(source, key string) Run {
		r := run(source+" "+key, 30, 1)
		r.Key = key
		return r
	}
	c, err := NewComparison([][]Run{{row("a", "x"), row("a", "y"), row("a", "z")}, {row("b", "y"), row("b", "x")}}, 0.95, 100, 1)
	if err != nil || len(c.Groups) != 2 || c.Groups[1].Name != "y" || c.Groups[1].Results[1].Source != "b y" || len(c.Alone) != 1 || c.Alone[0] != "a z" {
		t.Errorf("%+v, %v", c, err)
	}
	c, err = NewComparison([][]Run{{row("a", "x"), row("a", "y")}, {row("b", "x")}}, 0.95, 100, 1)
	if err != nil || len(c.Groups) != 1 || len(c.Groups[0].Results) != 3 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := NewComparison([][]Run{{row("a", "x")}}, 0.95, 100, 1); err == nil || !strings.HasPrefix(err.Error(), "1 result: ") {
		t.Error(err)
	}
}

// TestRun: files of the real clients side by side, in all forms of the output.
func TestRun(t *testing.T) {
	of := func(name string) string { return filepath.Join("..", "report", "testdata", name) }
	out := filepath.Join(t.TempDir(), "out")
	var b bytes.Buffer
	cfg := CompareConfig{Confidence: 95, Draws: 200, Seed: 1, Out: out, Stdout: &b, Paths: []string{of("burst.openai.json"), of("burst.sglang.json"), of("plain.sglang-oai.txt")}}
	if err := Compare(cfg); err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(b.String(), out, "OUT")
	documenttest.Golden(t, "compare.golden", []byte(text))
	var c comparison
	encoded, err := os.ReadFile(filepath.Join(out, compareFile))
	if err == nil {
		err = json.Unmarshal(encoded, &c)
	}
	if err != nil || len(c.Groups) != 1 || len(c.Groups[0].Results) != 3 || c.Groups[0].Rows[0].Values[2] == nil {
		t.Errorf("%+v, %v", c, err)
	}
	html, err := os.ReadFile(filepath.Join(out, document.ReportFile))
	if err != nil || strings.Count(string(html), "<svg") != 3 || !strings.Contains(string(html), "What was run") {
		t.Errorf("%d plots, %v", strings.Count(string(html), "<svg"), err)
	}
	if table, err := os.ReadFile(filepath.Join(out, document.TableFile)); err != nil || !strings.Contains(string(table), "### C against A") {
		t.Errorf("%v", err)
	}

	var format *FormatError
	cfg.Paths = []string{of("burst.openai.json"), of("golden.py")}
	if err := Compare(cfg); !errors.As(err, &format) || format.File != of("golden.py") {
		t.Error(err)
	}
}

// TestNotComparable: what a run has not is no figure, no difference and no verdict, and the
// comparison says why; so are one request, and a result beside itself.
func TestNotComparable(t *testing.T) {
	a, whole := run("a", 600, 100), run("b", 600, 300)
	for key := range whole.Figures {
		if strings.Contains(key, "_ttft_") || strings.Contains(key, "_tpot_") {
			delete(whole.Figures, key)
		}
	}
	for i := range whole.Requests {
		whole.Requests[i].TTFT = math.NaN()
	}
	whole.Doubts = []string{"it did not stream"}
	one := run("one", 1, 100)
	for _, c := range []struct {
		name       string
		a, b       Run
		want, none []string
	}{
		{"whole answers", a, whole, []string{"mean TPOT (ms) 7 - -", "~ B: it did not stream"}, []string{"faster", "-100.0%"}},
		{"whole answers first", whole, a, []string{"mean TPOT (ms) - 7 -", "~ A: it did not stream"}, []string{"slower", "Inf", "NaN"}},
		{"twice", whole, whole, []string{"~ A and B are the same result"}, []string{"TPOT", "TTFT"}},
		{"one request", one, a, []string{"1 request is too few"}, []string{"1 requests are"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			comparison, err := NewComparison([][]Run{{c.a}, {c.b}}, 0.95, 100, 1)
			if err != nil {
				t.Fatal(err)
			}
			var text bytes.Buffer
			if err := comparison.document().WriteText(&text); err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !strings.Contains(strings.Join(strings.Fields(text.String()), " "), want) {
					t.Errorf("no %q in\n%s", want, &text)
				}
			}
			for _, none := range c.none {
				if strings.Contains(strings.ReplaceAll(text.String(), comparison.how(), ""), none) {
					t.Errorf("%q in\n%s", none, &text)
				}
			}
		})
	}
}
