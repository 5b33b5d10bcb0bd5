package sglang

import (
	"slices"

	"kvferry/bench/report"
	"kvferry/bench/stats"
)

// Figures are a run's, by the names that [Keys] lists. One that the run's report does not have is
// not there.
type Figures map[string]float64

// statistics are the figures of a latency that a published record may have: all but the deviation.
var statistics = stats.Figures[:6]

// latencies by their names in figures, and in report.Metrics.
var latencies = [][2]string{{"e2e", "e2el"}, {"ttft", "ttft"}, {"tpot", "tpot"}, {"itl", "itl"}}

// rates are the figures that are no latencies.
var rates = []struct {
	name string
	of   func(*report.Metrics) float64
}{
	{"duration_s", func(m *report.Metrics) float64 { return m.DurationS }},
	{"request_throughput", func(m *report.Metrics) float64 { return m.RequestThroughput }},
	{"input_token_throughput", func(m *report.Metrics) float64 { return m.TotalThroughput - m.OutputThroughput }},
	{"output_token_throughput", func(m *report.Metrics) float64 { return m.OutputThroughput }},
	{"total_token_throughput", func(m *report.Metrics) float64 { return m.TotalThroughput }},
	{"max_output_tokens_per_s", func(m *report.Metrics) float64 { return m.PeakOutput }},
	{"concurrency", func(m *report.Metrics) float64 { return m.Concurrency }},
}

// Keys are the names of figures, in the order of the tables: mean_e2e_ms, p99_ttft_ms, ...
func Keys() []string {
	var keys []string
	for _, r := range rates {
		keys = append(keys, r.name)
	}
	for _, l := range latencies {
		for _, s := range statistics {
			keys = append(keys, key(s.Name, l[0]))
		}
	}
	return keys
}

func key(statistic, latency string) string { return statistic + "_" + latency + "_ms" }

// Of computes a run's figures.
func Of(m *report.Metrics) Figures {
	f := Figures{}
	for _, r := range rates {
		f[r.name] = stats.Round(r.of(m), 4)
	}
	for _, l := range latencies {
		summary, there := m.Latencies[l[1]]
		for _, s := range statistics {
			if there {
				f[key(s.Name, l[0])] = stats.Round(s.Of(summary), 4)
			}
		}
	}
	return f
}

// RelErr is (f - published) / published of every figure that was published and is not 0.
func (f Figures) RelErr(published Figures) Figures {
	e := Figures{}
	for key, p := range published {
		if v, there := f[key]; there && p != 0 {
			e[key] = stats.Round((v-p)/p, 4)
		}
	}
	return e
}

// Judged are the figures that a run is judged by: those that were published, less what is another
// one's double (throughputs of prompts and of all tokens go with that of outputs).
func Judged(published Figures) []string {
	return slices.DeleteFunc(Keys(), func(key string) bool {
		_, there := published[key]
		return !there || key == "input_token_throughput" || key == "total_token_throughput" || key == "max_output_tokens_per_s"
	})
}

// Within is how many of the judged figures have a relative error of at most limit, and of how many.
func (f Figures) Within(published Figures, limit float64) (n, of int) {
	e := f.RelErr(published)
	for _, key := range Judged(published) {
		of++
		if v, there := e[key]; there && v >= -limit && v <= limit {
			n++
		}
	}
	return n, of
}
