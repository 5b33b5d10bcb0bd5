package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/stats"
)

// A VLLM is a run as `vllm bench serve` reports it: calculate_metrics and benchmark of
// vllm/benchmarks/serve.py, 0.32.0.
//
// With completed and failed requests, d the run's duration in seconds, in and out the prompt
// and output tokens of those that completed:
//
//	request throughput   completed / d
//	request goodput      completed requests that kept every SLO / d
//	output throughput    out / d
//	total throughput     (in + out) / d
//	TTFT, E2EL, queue    over completed requests
//	TPOT                 (latency - TTFT) / (output tokens - 1), over those with two or more
//	ITL                  every gap of every completed request, in one list
//
// and of each latency numpy's mean, median, population standard deviation and percentiles, 0 of
// no values. The duration is from the start to the last answer; the server's own figures, which
// vLLM fetches after it, are no part of it.
type VLLM struct {
	tally
	input                    int          // tokens of those that succeeded
	good                     int          // that kept all SLOs
	queue, queued            stats.Sample // waiting for room; latency and it
	bounded, ratedAndBounded bool         // whether the two are reported
}

// NewVLLM computes vLLM's figures, once.
func NewVLLM(run *Run) *VLLM {
	v := &VLLM{}
	// The client's queue has figures only where there can be one; that of a load which is sent
	// all at once says nothing about the server, so latency and queue together need a rate, too.
	v.bounded = run.bounded()
	v.ratedAndBounded = v.bounded && !math.IsInf(run.rate(), 1)
	v.tally = tallied(run, func(r *client.Record) seen { return vllmSeen(r, run.Tokenizer != "") }, func(s *seen) {
		v.input += s.prompt
		if len(run.Goodput) > 0 && s.keeps(run.Goodput) {
			v.good++
		}
		v.queue, v.queued = append(v.queue, s.queue), append(v.queued, s.latency+s.queue)
	})
	v.queue, v.queued = stats.NewSample(v.queue), stats.NewSample(v.queued)
	return v
}

// keeps is whether a request keeps all SLOs. The TPOT of a single token counts as 0. Values
// are compared in seconds, as vLLM does.
func (s *seen) keeps(slo stats.SLO) bool {
	for _, b := range slo {
		if !(b.MS/1000 >= s.value(b.Metric)) {
			return false
		}
	}
	return true
}

// value is a metric that an SLO may bound, in seconds.
func (s *seen) value(metric string) float64 {
	switch metric {
	case "ttft":
		return s.ttft
	case "tpot":
		t, _ := s.tpot()
		return t
	}
	return s.latency
}

// rate is --request-rate as both tools see it: infinite under a ramp, which sets its own.
func (s *Setup) rate() float64 {
	if s.RampUp != nil || s.RequestRate == 0 {
		return math.Inf(1)
	}
	return s.RequestRate
}

// A block is one of the report's groups of latencies.
type block struct {
	key, name, title string
	values           stats.Sample
}

// blocks are those that the report has, in its order.
func (v *VLLM) blocks() []block {
	all := []block{
		{"ttft", "TTFT", "Time to First Token", v.ttft},
		{"tpot", "TPOT", "Time per Output Token (excl. 1st token)", v.tpot},
		{"itl", "ITL", "Inter-token Latency", v.itl},
		{"e2el", "E2EL", "End-to-end Latency", v.e2el},
	}
	if v.bounded {
		all = append(all, block{"client_queue_time", "Client Queue Time", "Client-side Queueing", v.queue})
	}
	if v.ratedAndBounded {
		all = append(all, block{"e2el_including_client_queue", "E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency", v.queued})
	}
	shown := all[:0]
	for _, b := range all {
		if v.run.shown(b.key) {
			shown = append(shown, b)
		}
	}
	return shown
}

// WriteText prints the report, from its heading to its last line. vLLM leaves out what counts
// tokens where it has no tokenizer; we do not, since our counts are the server's first.
func (v *VLLM) WriteText(w io.Writer) error {
	var l Layout
	duration := v.run.Duration
	l.Heading(" Serving Benchmark Result ", "=")
	l.Count("Successful requests:", v.completed)
	l.Count("Failed requests:", v.failed)
	if v.bounded {
		l.Count("Maximum request concurrency:", v.run.MaxConcurrency)
	}
	if rate := v.run.rate(); !math.IsInf(rate, 1) {
		l.Number("Request rate configured (RPS):", rate)
	}
	l.Number("Benchmark duration (s):", duration)
	l.Count("Total input tokens:", v.input)
	l.Count("Total generated tokens:", v.output)
	l.Number("Request throughput (req/s):", per(float64(v.completed), duration))
	if len(v.run.Goodput) > 0 {
		l.Number("Request goodput (req/s):", per(float64(v.good), duration))
	}
	l.Number("Output token throughput (tok/s):", per(float64(v.output), duration))
	l.Number("Peak output token throughput (tok/s):", v.peakTokens)
	l.Number("Peak concurrent requests:", float64(v.peakRequests))
	l.Number("Total token throughput (tok/s):", per(float64(v.input+v.output), duration))
	for _, b := range v.blocks() {
		l.Heading(b.title, "-")
		l.Number("Mean "+b.name+" (ms):", b.values.Mean())
		l.Number("Median "+b.name+" (ms):", b.values.Median())
		for _, p := range v.run.percentiles() {
			l.Number("P"+percentileWord(p)+" "+b.name+" (ms):", b.values.Percentile(p))
		}
	}
	l.Heading("", "=")
	_, err := io.WriteString(w, l.String())
	return err
}

// vllmDate is vLLM's strftime("%Y%m%d-%H%M%S").
const vllmDate = "20060102-150405"

// perRequest are the lists that a result has only with --save-detailed. It always has those of
// latencies and queue times.
var perRequest = []string{"input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors"}

// JSON is what --save-result writes, on one line without its end. detailed is
// --save-detailed.
func (v *VLLM) JSON(detailed bool) ([]byte, error) {
	o := v.result()
	if !detailed {
		o.drop(perRequest...)
	}
	return o.python()
}

// result is the whole result, key by key as main_async and benchmark make it.
func (v *VLLM) result() *object {
	run := v.run
	o := &object{}
	// main_async: what was run. endpoint_type is the backend again, for readers of old files.
	o.set("date", run.ended().Format(vllmDate))
	o.set("endpoint_type", run.Backend)
	o.set("backend", run.Backend)
	o.set("label", orNull(run.ResultLabel))
	o.set("model_id", run.Model)
	o.set("tokenizer_id", orNull(run.Tokenizer))
	o.set("num_prompts", run.NumPrompts)
	for _, p := range run.Metadata { // at the top level: one replaces a key before it, and is replaced by one after it
		o.set(p.Key, p.Value)
	}
	if rate := run.rate(); math.IsInf(rate, 1) {
		o.set("request_rate", "inf")
	} else {
		o.set("request_rate", rate)
	}
	o.set("burstiness", run.Burstiness)
	o.set("max_concurrency", countOrNull(run.MaxConcurrency))
	if r := run.RampUp; r != nil {
		o.set("ramp_up_strategy", r.Strategy)
		o.set("ramp_up_start_rps", r.Start)
		o.set("ramp_up_end_rps", r.End)
	}
	// benchmark: what came of it. Lists are in the order of the load, failed requests among
	// them with an output of 0 tokens and a latency of 0.
	o.set("duration", run.Duration)
	o.set("completed", v.completed)
	o.set("failed", v.failed)
	o.set("total_input_tokens", v.input)
	o.set("total_output_tokens", v.output)
	o.set("request_throughput", per(float64(v.completed), run.Duration))
	if len(run.Goodput) > 0 {
		o.set("request_goodput", per(float64(v.good), run.Duration))
	} else {
		o.set("request_goodput", nil)
	}
	o.set("output_throughput", per(float64(v.output), run.Duration))
	o.set("total_token_throughput", per(float64(v.input+v.output), run.Duration))
	o.set("input_lens", each(v.requests, func(s *seen) int { return s.prompt }))
	o.set("output_lens", each(v.requests, func(s *seen) int { return s.output }))
	o.set("ttfts", each(v.requests, func(s *seen) float64 { return s.ttft }))
	o.set("itls", each(v.requests, func(s *seen) []float64 { return s.itl() }))
	o.set("latencies", each(v.requests, func(s *seen) float64 { return s.latency }))
	o.set("start_times", each(v.requests, func(s *seen) float64 { return s.start }))
	o.set("queue_times", each(v.requests, func(s *seen) float64 { return s.queue }))
	o.set("generated_texts", each(v.requests, func(s *seen) string { return s.text }))
	o.set("errors", each(v.requests, func(s *seen) string { return s.err }))
	o.set("max_output_tokens_per_s", v.peakTokens)
	o.set("max_concurrent_requests", v.peakRequests)
	o.set("rtfx", 0.0) // speech recognition's, of which there is none here
	// What a ramp did, then the latencies that were chosen by --percentile-metrics.
	if events := v.rateChanges(); events != nil {
		o.set("rps_change_events", events)
	}
	for _, b := range v.blocks() {
		o.set("mean_"+b.key+"_ms", b.values.Mean())
		o.set("median_"+b.key+"_ms", b.values.Median())
		o.set("std_"+b.key+"_ms", b.values.Std())
		for _, p := range run.percentiles() {
			o.set("p"+percentileWord(p)+"_"+b.key+"_ms", b.values.Percentile(p))
		}
	}
	return o
}

// A rateChange is when a ramp first reached a whole rate.
type rateChange struct {
	RPS       int    `json:"rps"`
	Timestamp string `json:"timestamp"` // local time, as Python's isoformat has it
}

// rateChanges are those of a ramp; nil without one. As in benchmark, the rate of request i is
// looked at when it is its turn, and each whole rate that was passed since the request before
// has an event of that moment.
func (v *VLLM) rateChanges() []rateChange {
	ramp := v.run.RampUp
	if ramp == nil {
		return nil
	}
	stamp := func(at float64) string {
		return v.run.Started.Add(time.Duration(at * 1e9)).Format("2006-01-02T15:04:05.000000")
	}
	events := []rateChange{{ramp.Start, stamp(0)}}
	last := ramp.Start
	for i := range v.run.Records {
		now := int(ramp.rate(i, len(v.run.Records)))
		for last < now {
			last++
			events = append(events, rateChange{last, stamp(v.run.Records[i].Intended)})
		}
	}
	return events
}

// FileName is the name that vLLM gives a result when --result-filename does not
// (compute_result_filename).
func (v *VLLM) FileName() string {
	run := v.run
	label := cmp.Or(run.ResultLabel, run.Backend)
	concurrency := ""
	if v.bounded {
		concurrency = fmt.Sprintf("-concurrency%d", run.MaxConcurrency)
	}
	rate := pyFloat(run.rate()) + "qps"
	if r := run.RampUp; r != nil {
		rate = fmt.Sprintf("ramp-up-%s-%dqps-%dqps", r.Strategy, r.Start, r.End)
	}
	return fmt.Sprintf("%s-%s%s-%s-%s.json", label, rate, concurrency, baseName(run.Model), run.ended().Format(vllmDate))
}
