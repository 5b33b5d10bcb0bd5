package report

import (
	"cmp"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/stats"
)

// The files of testdata are made by the real clients: golden.py says how, names.json has
// their versions.

// started is when the golden runs began, by the clock that the clients were given.
var started = time.Date(2026, 11, 22, 8, 9, 10, 0, time.UTC)

// A recorded run is what came over the wire, and when, in seconds.
type recorded struct {
	Setup struct {
		Model          string
		RequestRate    string `json:"request_rate"`
		MaxConcurrency int    `json:"max_concurrency"`
		Goodput        []string
		Dataset, Tag   string
		Args           []string `json:"vllm_args"`
		RampStrategy   string   `json:"ramp_up_strategy"`
		RampStart      int      `json:"ramp_up_start_rps"`
		RampEnd        int      `json:"ramp_up_end_rps"`
	}
	Duration float64
	Requests []struct {
		Intended, Sent     float64
		Prompt, Asked, Max int
		Status             int
		Chunks             []struct {
			At                  float64
			Text                string
			Tokens              int
			Usage, Done, Broken bool
		}
	}
}

// run is what bench/client records of it, as client.Record says.
func (c *recorded) run(t *testing.T, backend string) *Run {
	rate, err := strconv.ParseFloat(c.Setup.RequestRate, 64)
	if err != nil {
		t.Fatal(err)
	}
	slos, err := stats.ParseSLO(c.Setup.Goodput)
	if err != nil {
		t.Fatal(err)
	}
	r := &Run{Duration: c.Duration, ServerInfo: json.RawMessage(`{"internal_states": [{"avg_spec_accept_length": null}]}`), Setup: Setup{
		Started: started, Clock: ClockReal, Backend: backend, Model: c.Setup.Model, Tokenizer: c.Setup.Model, Dataset: "random",
		NumPrompts: len(c.Requests), RequestRate: rate, Burstiness: 1, MaxConcurrency: c.Setup.MaxConcurrency, Goodput: slos,
		InputLen: 64, OutputLen: 16, Tag: c.Setup.Tag,
	}}
	if c.Setup.Dataset != "" {
		r.Dataset = c.Setup.Dataset
	}
	if c.Setup.RampStrategy != "" {
		r.RampUp = &RampUp{c.Setup.RampStrategy, c.Setup.RampStart, c.Setup.RampEnd}
	}
	for i, q := range c.Requests {
		rec := client.Record{
			Index: i, PromptTokens: q.Asked, MaxTokens: q.Max, Intended: q.Intended, Sent: q.Sent, Status: client.StatusOK,
			HTTPStatus: 200, InputTokens: q.Asked, CountedBy: client.CountTokenizer, ChunkTokens: []int{},
		}
		if r.bounded() && q.Sent > q.Intended+0.001 {
			rec.Room = q.Sent - 0.0002
		}
		if q.Status == 500 {
			rec.Status, rec.Error, rec.Fault, rec.HTTPStatus = client.StatusFailed, "500 Internal Server Error", client.FaultStatus, 500
		}
		for _, k := range q.Chunks {
			if k.Broken {
				rec.Status, rec.Error, rec.Fault = client.StatusFailed, "stream ended without [DONE]", client.FaultTruncated
				break
			}
			if k.Usage && strings.HasPrefix(backend, "sglang") {
				continue // which its client does not ask for, and does not get
			}
			rec.LastLine = k.At
			if k.Usage || backend == sglangGenerate {
				rec.InputTokens, rec.CountedBy = q.Prompt, client.CountUsage
			}
			if k.Done || k.Usage {
				continue
			}
			if k.Text == "" {
				rec.NoText = append(rec.NoText, len(rec.TokenTimes))
			} else if rec.FirstText == 0 {
				rec.FirstText = k.At
			}
			rec.TokenTimes = append(rec.TokenTimes, k.At)
			rec.FirstToken = cmp.Or(rec.FirstText, rec.TokenTimes[0])
			rec.ChunkTokens = append(rec.ChunkTokens, k.Tokens)
			rec.OutputTokens += k.Tokens
			rec.Text += k.Text
			rec.Retokenized += strings.Count(k.Text, "w")
		}
		rec.Finish = rec.LastLine
		if rec.OutputTokens > 0 {
			rec.Usage = &client.Usage{PromptTokens: q.Prompt, CompletionTokens: rec.OutputTokens}
		}
		if q.Status == 0 && len(rec.TokenTimes) == 0 {
			rec.Status, rec.Error, rec.Silent, rec.Fault = client.StatusFailed, "never received a valid chunk", true, client.FaultEmpty
		}
		if backend != sglangGenerate {
			rec.ChunkTokens = nil // OpenAI's chunks do not say
		}
		if rec.Status == client.StatusFailed {
			rec.Text = ""
		}
		r.Records = append(r.Records, rec)
	}
	return r
}

// options are the flags of a case that vLLM has alone. It reports whether the result has the
// lists of every request.
func (r *Run) options(t *testing.T, args []string) (detailed bool) {
	for i := 0; i < len(args); i++ {
		var err error
		switch args[i] {
		case "--save-detailed":
			detailed = true
		case "--label":
			r.ResultLabel = args[i+1]
		case "--burstiness":
			r.Burstiness, err = strconv.ParseFloat(args[i+1], 64)
		case "--metric-percentiles":
			r.Percentiles, err = ParsePercentiles(args[i+1])
		case "--percentile-metrics":
			r.PercentileMetrics, err = ParsePercentileMetrics(args[i+1])
		case "--metadata":
			for i++; i < len(args) && !strings.HasPrefix(args[i], "--"); i++ {
				p, e := ParseMetadata(args[i])
				if e != nil {
					t.Fatal(e)
				}
				r.Metadata = append(r.Metadata, p)
			}
			i--
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return detailed
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestGolden: on the same recorded runs our text is the clients' own, to the byte, and our
// JSON has their keys and values.
func TestGolden(t *testing.T) {
	var names map[string]any
	if err := json.Unmarshal(readFile(t, "names.json"), &names); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/*.*.txt")
	if err != nil || len(files) < 15 {
		t.Fatal(len(files), err)
	}
	for _, file := range files {
		stem := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(stem, func(t *testing.T) {
			name, backend, _ := strings.Cut(stem, ".")
			var c recorded
			if err := json.Unmarshal(readFile(t, name+".run.json"), &c); err != nil {
				t.Fatal(err)
			}
			run := c.run(t, backend)
			detailed := run.options(t, c.Setup.Args)
			var report interface {
				JSON(bool) ([]byte, error)
				FileName() string
			}
			var text strings.Builder
			if strings.HasPrefix(backend, "sglang") {
				g := NewSGLang(run)
				detailed, report, err = true, g, g.WriteText(&text)
			} else {
				v := NewVLLM(run)
				report, err = v, v.WriteText(&text)
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := string(readFile(t, stem+".txt")); text.String() != want {
				t.Errorf("text\n%s\nwant\n%s", &text, want)
			}
			got, err := report.JSON(detailed)
			if err != nil {
				t.Fatal(err)
			}
			same(t, "", decode(t, got), decode(t, readFile(t, stem+".json")))
			if kept := names[stem].([]any)[0]; kept != "run.json" && kept != report.FileName() {
				t.Errorf("file %s, want %s", report.FileName(), kept)
			}
		})
	}
}

// TestPyTorch: the records for PyTorch's database are vLLM's, but for its own command line.
func TestPyTorch(t *testing.T) {
	var c recorded
	if err := json.Unmarshal(readFile(t, "ramp.run.json"), &c); err != nil {
		t.Fatal(err)
	}
	text, err := NewVLLM(c.run(t, "openai")).PyTorch(false, "run.json")
	if err != nil {
		t.Fatal(err)
	}
	got, want := decode(t, text).([]any), decode(t, readFile(t, "ramp.openai.pytorch.json")).([]any)
	for _, list := range [][]any{got, want} {
		for _, record := range list {
			extra := record.(map[string]any)["benchmark"].(map[string]any)["extra_info"].(map[string]any)
			if args := extra["args"].(map[string]any); args["backend"] != "openai" || args["num_prompts"] != 12.0 {
				t.Errorf("args %v", args)
			}
			delete(extra, "args") // theirs are the command line's
		}
	}
	same(t, "", got, want)
	if name := PyTorchName("dir/run.json"); name != "dir/run.pytorch.json" {
		t.Error(name)
	}
}

// decode reads what Python's json.dump wrote.
func decode(t *testing.T, text []byte) any {
	t.Helper()
	bare := strings.NewReplacer(": Infinity", `: "Infinity"`, ": NaN", `: "NaN"`).Replace(string(text))
	var v any
	if err := json.Unmarshal([]byte(bare), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

// same compares values of JSON: numbers to 1e-9, an error's text by whether there is one, and
// moments not at all, for Python's clock went on while it wrote.
func same(t *testing.T, at string, got, want any) {
	t.Helper()
	switch want := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			t.Fatalf("%s: %v, want %v", at, got, want)
		}
		for key := range g {
			if _, ok := want[key]; !ok {
				t.Errorf("%s has %s", at, key)
			}
		}
		for key, w := range want {
			v, ok := g[key]
			if !ok {
				t.Errorf("%s has no %s", at, key)
				continue
			}
			same(t, at+"."+key, v, w)
		}
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(want) {
			t.Fatalf("%s: %v, want %v", at, got, want)
		}
		for i := range want {
			same(t, at+"["+strconv.Itoa(i)+"]", g[i], want[i])
		}
	case float64:
		g, ok := got.(float64)
		if !ok || math.Abs(g-want) > 1e-9*math.Max(math.Abs(want), 1e-3) {
			t.Errorf("%s: %v, want %v", at, got, want)
		}
	case string:
		switch g, ok := got.(string); {
		case strings.HasPrefix(at, ".errors"):
			if !ok || (g == "") != (want == "") {
				t.Errorf("%s: %v, want %v", at, got, want)
			}
		case strings.HasSuffix(at, ".timestamp"):
			if len(g) < 19 || len(want) < 19 || g[:19] != want[:19] {
				t.Errorf("%s: %v, want %v", at, got, want)
			}
		case got != want:
			t.Errorf("%s: %v, want %v", at, got, want)
		}
	default:
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", at, got, want)
		}
	}
}
