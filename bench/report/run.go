package report

import (
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/bench/stats"
)

// A Run is a run that is over, or was interrupted.
type Run struct {
	Setup
	// Records are those of all requests that were sent or skipped, in the order of the load
	// (client.Record.Index). A load's order is the order that both tools list requests in.
	Records []client.Record
	// Duration is the run's length in seconds, as Client.Run returns it.
	Duration float64
	// Interrupted is a run that was stopped before its load was over.
	Interrupted bool
	// Point is the value of a search that this is a run of: the rate, or the requests in flight; 0 of
	// other runs. Repeat is how many runs of that value were before it.
	Point  float64
	Repeat int

	// What is known beside the records. All of these may be empty.

	Disturbance *observe.Disturbance // of the client's machine; nil in virtual time
	Steady      *Steady              // the part of the run in which the load was steady
	ServerInfo  json.RawMessage      // what GET /server_info said, for SGLang's result
	Faults      []string             // what makes the run's figures unusable
	Notes       []string             // what qualifies them, beside what the report sees itself
	Tables      []document.Table     // more figures: the server's own beside the client's
	Plots       []document.Plot      // and curves, for report.html
	Server      any                  // the same for summary.json
}

// ended is when the run was over, which both tools put into names and dates.
func (r *Run) ended() time.Time { return r.Started.Add(time.Duration(r.Duration * 1e9)) }

// settled are the records of which the server could have the last word. Those that were in
// flight when the run was interrupted are none of its failures, and no tool has them in its
// result.
func (r *Run) settled() iter.Seq[*client.Record] {
	return func(yield func(*client.Record) bool) {
		for i := range r.Records {
			if rec := &r.Records[i]; rec.Status != client.StatusInterrupted && !yield(rec) {
				return
			}
		}
	}
}

// A Steady is the part of a run in which the load was steady, as package serve finds it.
type Steady struct {
	From    float64        `json:"from"` // seconds since the run's start
	To      float64        `json:"to"`
	Table   document.Table `json:"-"` // its figures beside those of the whole run
	Figures any            `json:"figures"`
}

// Clocks of a run.
const (
	ClockReal    = "real"
	ClockVirtual = "virtual"
)

// A Setup is what was run: what the tools write into their results, and what a reader must
// know to run it again. The zero value of an option is that it was not given.
type Setup struct {
	Started time.Time `json:"started"`
	Command []string  `json:"command"`
	Clock   string    `json:"clock"`             // ClockReal or ClockVirtual
	Label   string    `json:"label"`             // what was measured and what was modelled, in a sentence
	Compat  string    `json:"compat,omitempty"`  // whose defaults and draws: vllm, sglang or empty
	Config  any       `json:"config"`            // all options as they were resolved
	Worker  []string  `json:"workers,omitempty"` // URLs, where there are several servers
	Machine any       `json:"machine,omitempty"` // where the client ran
	System  any       `json:"system,omitempty"`  // the cluster that was started for the run
	Cluster string    `json:"cluster,omitempty"` // in words: nodes, what joins them, scheduler, placement, KV pool

	Backend   string `json:"backend"`           // vllm, openai, openai-chat, sglang, sglang-oai, sglang-oai-chat
	Endpoint  string `json:"endpoint"`          // /v1/completions
	BaseURL   string `json:"base_url"`          //
	Model     string `json:"model_id"`          //
	Accepts   any    `json:"accepts,omitempty"` // what the server was found to take and to tell
	Tokenizer string `json:"tokenizer_id"`      // empty: the client has none

	Dataset     string `json:"dataset_name"`
	DatasetPath string `json:"dataset_path,omitempty"`
	NumPrompts  int    `json:"num_prompts"`
	Seed        uint64 `json:"seed"`
	// Lengths that were asked for; SGLang writes them into the result of every data set.
	InputLen          int     `json:"random_input_len"`
	OutputLen         int     `json:"random_output_len"`
	RangeRatio        float64 `json:"random_range_ratio"`
	ShareGPTOutputLen int     `json:"sharegpt_output_len,omitempty"` // 0: as long as the recorded answer

	RequestRate     float64   `json:"-"` // requests/s, or +Inf
	Burstiness      float64   `json:"-"`
	RampUp          *RampUp   `json:"ramp_up,omitempty"`
	TraceTimestamps bool      `json:"trace_timestamps,omitempty"` // requests are sent when the trace says
	MaxConcurrency  int       `json:"max_concurrency,omitempty"`  // 0: no bound
	Goodput         stats.SLO `json:"goodput,omitempty"`

	LoRA     []string `json:"lora,omitempty"`
	LoRAPick string   `json:"lora_assignment,omitempty"` // how a request gets its adapter

	ResultLabel       string    `json:"result_label,omitempty"`       // --label: vLLM's
	Metadata          []Pair    `json:"metadata,omitempty"`           // --metadata
	Tag               string    `json:"tag,omitempty"`                // --tag: SGLang's
	PercentileMetrics []string  `json:"percentile_metrics,omitempty"` // --percentile-metrics; nil: ttft, tpot, itl
	Percentiles       []float64 `json:"metric_percentiles,omitempty"` // --metric-percentiles; nil: 99
}

// A RampUp is vLLM's --ramp-up-strategy: the rate goes from Start to End over the requests.
type RampUp struct {
	Strategy string `json:"strategy"` // linear or exponential
	Start    int    `json:"start_rps"`
	End      int    `json:"end_rps"`
}

// rate is the rate at request i of n: a + (b-a)p or a (b/a)^p with p = i/max(n-1, 1)
// (_get_current_request_rate of vllm/benchmarks/serve.py).
func (r *RampUp) rate(i, n int) float64 {
	p := float64(i) / float64(max(n-1, 1))
	a, b := float64(r.Start), float64(r.End)
	if r.Strategy == "exponential" {
		return a * math.Pow(b/a, p)
	}
	return a + (b-a)*p
}

// A Pair is a key of --metadata with its value.
type Pair struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// ParseMetadata reads KEY=VALUE.
func ParseMetadata(text string) (Pair, error) {
	key, value, ok := strings.Cut(text, "=")
	if key = strings.TrimSpace(key); !ok || key == "" {
		return Pair{}, fmt.Errorf("%q: write KEY=VALUE", text)
	}
	return Pair{key, strings.TrimSpace(value)}, nil
}

// percentileMetrics are what --percentile-metrics may name, in the order in which vLLM
// prints them.
var percentileMetrics = []string{"ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue"}

// ParsePercentileMetrics reads --percentile-metrics: names with commas between them.
func ParsePercentileMetrics(text string) ([]string, error) {
	names := strings.Split(text, ",")
	for i, name := range names {
		names[i] = strings.TrimSpace(name)
		if !slices.Contains(percentileMetrics, names[i]) {
			return nil, fmt.Errorf("%q: use %s", name, strings.Join(percentileMetrics, ", "))
		}
	}
	return names, nil
}

// ParsePercentiles reads --metric-percentiles: numbers from 0 to 100 with commas between
// them.
func ParsePercentiles(text string) ([]float64, error) {
	var all []float64
	for _, item := range strings.Split(text, ",") {
		p, err := strconv.ParseFloat(strings.TrimSpace(item), 64)
		if err != nil || !(p >= 0 && p <= 100) {
			return nil, fmt.Errorf("%q: write percentiles from 0 to 100, like 50,99,99.9", item)
		}
		all = append(all, p)
	}
	return all, nil
}

// shown is whether vLLM's report has a block for the metric.
func (s *Setup) shown(metric string) bool {
	if s.PercentileMetrics == nil {
		return slices.Contains([]string{"ttft", "tpot", "itl"}, metric)
	}
	return slices.Contains(s.PercentileMetrics, metric)
}

// percentiles are those of vLLM's report.
func (s *Setup) percentiles() []float64 {
	if s.Percentiles == nil {
		return []float64{99}
	}
	return s.Percentiles
}

// bounded is whether there was a bound on the requests in flight.
func (s *Setup) bounded() bool { return s.MaxConcurrency > 0 }
