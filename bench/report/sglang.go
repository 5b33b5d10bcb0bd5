package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"kvferry/bench/client"
	"kvferry/bench/stats"
)

// An SGLang is a run as sglang.bench_serving reports it: calculate_metrics and benchmark of
// sglang/benchmark/serving.py and goodput.py, 0.5.23.
//
// With d the run's duration in seconds, which here ends after a GET of /server_info, in the
// prompt tokens as the data set has them and out the output tokens as claimed (see sglangSeen):
//
//	request, input, output, total throughput   completed / d, in / d, out / d, (in + out) / d
//	concurrency                                sum of latencies / d
//	TPOT                                       (latency - TTFT) / (out - 1), of two tokens or more
//	goodput, attainment                        requests that kept the SLOs / d, / all requests
//
// Statistics are numpy's, as vLLM's are, with a greatest gap in the text alone. In retokenised
// tokens the text is counted by the client's tokenizer: where the server's count and this one
// differ, the server ends inside of words, or counts what has no text.
type SGLang struct {
	tally
	input       int   // tokens, as the data set has them, of those that succeeded
	retokenized int   // tokens of the output
	met         []int // how many kept each SLO
	good        int   // that kept all of them
}

// NewSGLang computes SGLang's figures.
func NewSGLang(run *Run) *SGLang {
	g := &SGLang{met: make([]int, len(run.Goodput))}
	g.tally = tallied(run, func(r *client.Record) seen { return sglangSeen(r, run.Backend) }, func(s *seen) {
		g.input += s.asked
		g.retokenized += s.retoken
		kept := 0
		for j, slo := range run.Goodput {
			if s.value(slo.Metric)*1000 <= slo.MS { // milliseconds are compared here, and seconds by vLLM
				g.met[j]++
				kept++
			}
		}
		if kept == len(run.Goodput) {
			g.good++
		}
	})
	return g
}

// latency is a figure of the end-to-end latencies: not a number where nothing succeeded, for
// here the tool does not put a 0 in (its percentiles raise an exception then, and it reports
// nothing at all).
func (g *SGLang) latency(of func(stats.Sample) float64) float64 {
	if len(g.e2el) == 0 {
		return math.NaN()
	}
	return of(g.e2el)
}

// concurrency is the mean number of requests in flight, by Little's law.
func (g *SGLang) concurrency() float64 { return per(g.e2el.Sum(), g.run.Duration) }

// share is of all requests that were sent.
func (g *SGLang) share(n int) float64 { return per(float64(n), float64(len(g.requests))) }

// rateText is the traffic's rate in the report.
func (g *SGLang) rateText() string {
	if g.run.TraceTimestamps {
		return "trace"
	}
	return pyFloat(g.run.rate())
}

// retokenizedKnown is whether the client could count the tokens of the texts.
func (g *SGLang) retokenizedKnown() bool { return g.run.Tokenizer != "" }

// WriteText prints the report, from its heading to its last line; the tool prints an empty
// line before.
func (g *SGLang) WriteText(w io.Writer) error {
	var l Layout
	duration := g.run.Duration
	concurrency := "not set"
	if g.run.bounded() {
		concurrency = strconv.Itoa(g.run.MaxConcurrency)
	}
	l.Heading(" Serving Benchmark Result ", "=")
	l.Word("Backend:", g.run.Backend)
	l.Word("Traffic request rate:", g.rateText())
	l.Word("Max request concurrency:", concurrency)
	l.Count("Successful requests:", g.completed)
	l.Number("Benchmark duration (s):", duration)
	l.Count("Total input tokens:", g.input)
	l.Count("Total input text tokens:", g.input)
	l.Count("Total generated tokens:", g.output)
	if g.retokenizedKnown() {
		l.Count("Total generated tokens (retokenized):", g.retokenized)
	} else {
		l.Word("Total generated tokens (retokenized):", "-")
	}
	l.Number("Request throughput (req/s):", per(float64(g.completed), duration))
	l.Number("Input token throughput (tok/s):", per(float64(g.input), duration))
	l.Number("Output token throughput (tok/s):", per(float64(g.output), duration))
	l.Number("Peak output token throughput (tok/s):", g.peakTokens)
	l.Count("Peak concurrent requests:", g.peakRequests)
	l.Number("Total token throughput (tok/s):", per(float64(g.input+g.output), duration))
	l.Number("Concurrency:", g.concurrency())
	if n, _ := g.run.acceptLength(); n > 0 {
		l.Number("Accept length:", n)
	}
	g.goodput(&l)
	for _, b := range g.blocks() {
		l.Heading(b.title, "-")
		for _, f := range b.figures() {
			if f.text != "Std" {
				l.Number(f.text+" "+b.name+" (ms):", f.value)
			}
		}
	}
	l.Heading("", "=")
	_, err := io.WriteString(w, l.String())
	return err
}

// acceptLength is how many tokens the server accepts of each speculation on average, as it says
// itself: of a router, the first decode server. The tool asks servers of SGLang's only.
func (r *Run) acceptLength() (n float64, known bool) {
	type server struct {
		States []struct {
			Length *float64 `json:"avg_spec_accept_length"`
		} `json:"internal_states"`
	}
	var info struct {
		server
		Decode []server `json:"decode"`
	}
	if !strings.Contains(r.Backend, "sglang") || json.Unmarshal(r.ServerInfo, &info) != nil {
		return 0, false
	}
	if len(info.Decode) > 0 {
		info.server = info.Decode[0]
	}
	if len(info.States) == 0 || info.States[0].Length == nil {
		return 0, false
	}
	return *info.States[0].Length, true
}

// goodput prints what kept the SLOs, if there are any. Unlike vLLM, SGLang divides by all requests
// that were sent, and says of each SLO how many kept it alone (goodput.py).
func (g *SGLang) goodput(l *Layout) {
	if len(g.run.Goodput) == 0 {
		return
	}
	var slos []string
	for _, slo := range g.run.Goodput {
		slos = append(slos, slo.Metric+":"+strconv.FormatFloat(slo.MS, 'g', 6, 64)) // Python's :g
	}
	l.Heading("Goodput", "-")
	l.Word("SLOs (ms):", strings.Join(slos, " "))
	l.Number("Request goodput (req/s):", per(float64(g.good), g.run.Duration))
	l.Number("SLO attainment (%):", g.share(g.good)*100)
	for j, slo := range g.run.Goodput {
		l.Number(strings.ToUpper(slo.Metric)+" SLO attainment (%):", g.share(g.met[j])*100)
	}
}

// An sglangBlock is one of the report's groups of latencies.
type sglangBlock struct {
	key, name, title string
	of               func(func(stats.Sample) float64) float64
	max              bool // has a line of the greatest
}

func (g *SGLang) blocks() []sglangBlock {
	of := func(s stats.Sample) func(func(stats.Sample) float64) float64 {
		return func(f func(stats.Sample) float64) float64 { return f(s) }
	}
	return []sglangBlock{
		{"e2e_latency", "E2E Latency", "End-to-End Latency", g.latency, false},
		{"ttft", "TTFT", "Time to First Token", of(g.ttft), false},
		{"tpot", "TPOT", "Time per Output Token (excl. 1st token)", of(g.tpot), false},
		{"itl", "ITL", "Inter-Token Latency", of(g.itl), true},
	}
}

// An sglangFigure is a figure with its names in the text and in JSON.
type sglangFigure struct {
	text, key string
	value     float64
}

// figures are those of a block in the order of the JSON; the text has no standard deviation,
// and the JSON no greatest gap.
func (b *sglangBlock) figures() []sglangFigure {
	p := func(q float64) float64 { return b.of(func(s stats.Sample) float64 { return s.Percentile(q) }) }
	all := []sglangFigure{
		{"Mean", "mean", b.of(stats.Sample.Mean)},
		{"Median", "median", b.of(stats.Sample.Median)},
		{"Std", "std", b.of(stats.Sample.Std)},
		{"P90", "p90", p(90)},
		{"P95", "p95", p(95)},
		{"P99", "p99", p(99)},
	}
	if b.max {
		all = append(all, sglangFigure{"Max", "", b.of(stats.Sample.Max)})
	}
	return all
}

// JSON is the line that is appended to --output-file, without its end. details is
// --output-details. As the tool writes it, an infinite rate is Infinity, which JSON does not
// have.
func (g *SGLang) JSON(details bool) ([]byte, error) {
	run := g.run
	o := &object{}
	o.set("tag", orNull(run.Tag))
	o.set("backend", run.Backend)
	o.set("dataset_name", run.Dataset)
	if run.TraceTimestamps {
		o.set("request_rate", "trace")
	} else {
		o.set("request_rate", run.rate())
	}
	o.set("max_concurrency", countOrNull(run.MaxConcurrency))
	o.set("sharegpt_output_len", countOrNull(run.ShareGPTOutputLen))
	o.set("random_input_len", run.InputLen)
	o.set("random_output_len", run.OutputLen)
	o.set("random_range_ratio", run.RangeRatio)
	o.set("server_info", nil)
	if len(run.ServerInfo) > 0 {
		var line bytes.Buffer
		if err := json.Compact(&line, run.ServerInfo); err != nil {
			return nil, fmt.Errorf("server_info: %w", err)
		}
		o.set("server_info", json.RawMessage(line.Bytes()))
	}
	o.set("duration", run.Duration)
	o.set("completed", g.completed)
	o.set("total_input_tokens", g.input)
	o.set("total_input_text_tokens", g.input)
	o.set("total_input_vision_tokens", 0)
	o.set("total_output_tokens", g.output)
	o.set("total_output_tokens_retokenized", nil)
	if g.retokenizedKnown() {
		o.set("total_output_tokens_retokenized", g.retokenized)
	}
	o.set("request_throughput", per(float64(g.completed), run.Duration))
	o.set("input_throughput", per(float64(g.input), run.Duration))
	o.set("output_throughput", per(float64(g.output), run.Duration))
	o.set("total_throughput", per(float64(g.input+g.output), run.Duration))
	for _, b := range g.blocks() {
		for _, f := range b.figures() {
			if f.key != "" {
				o.set(f.key+"_"+b.key+"_ms", f.value)
			}
		}
	}
	o.set("concurrency", g.concurrency())
	o.set("accept_length", nil)
	if n, known := run.acceptLength(); known {
		o.set("accept_length", n)
	}
	o.set("max_output_tokens_per_s", g.peakTokens)
	o.set("max_concurrent_requests", g.peakRequests)
	if len(run.Goodput) > 0 {
		slos, met := &object{}, &object{}
		for j, slo := range run.Goodput {
			slos.set(slo.Metric, slo.MS)
			met.set(slo.Metric, g.share(g.met[j]))
		}
		o.set("goodput_slos_ms", slos)
		o.set("request_goodput", per(float64(g.good), run.Duration))
		o.set("slo_attainment", g.share(g.good))
		o.set("slo_attainment_by_metric", met)
	}
	if details {
		o.set("input_lens", each(g.requests, func(s *seen) int { return s.prompt }))
		o.set("output_lens", each(g.requests, func(s *seen) int { return s.output }))
		o.set("ttfts", each(g.requests, func(s *seen) float64 { return s.ttft }))
		o.set("itls", each(g.requests, func(s *seen) []float64 { return s.itl() }))
		o.set("generated_texts", each(g.requests, func(s *seen) string { return s.text }))
		o.set("errors", each(g.requests, func(s *seen) string { return s.err }))
	}
	return o.python()
}

// FileName is the name that benchmark makes of the backend, the day, the number of prompts and
// the lengths, or the data set where it has no lengths of its own. Results go there where
// --output-file does not say.
func (g *SGLang) FileName() string {
	run := g.run
	name := fmt.Sprintf("%s_%s_%d_", run.Backend, run.ended().Format("0102"), run.NumPrompts)
	if strings.HasPrefix(run.Dataset, "random") {
		return name + fmt.Sprintf("%d_%d.jsonl", run.InputLen, run.OutputLen)
	}
	return name + run.Dataset + ".jsonl"
}
