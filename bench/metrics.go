package bench

import (
	"math"
	"slices"
)

// Figures are the numbers a cell is judged by, in the order of the published
// tables. Means, medians and percentiles are taken over successful requests.
//
//   - TTFT: sending to the first chunk with choices.
//   - ITL: the gaps between consecutive chunks with choices, of all requests in
//     one list.
//   - TPOT: (last chunk - first chunk) / (output tokens - 1), for requests of
//     more than one token.
//   - Duration: the run's start to the last answer, and at least to the end of
//     the gap drawn after the last request.
//
// Formulas: vLLM benchmark_serving.py, November 2024; percentiles are
// numpy.percentile's linear kind. An empty list counts as 0.
type Figures struct {
	DurationS         float64 `json:"duration_s"`
	RequestThroughput float64 `json:"request_throughput"`      // requests/s
	OutputThroughput  float64 `json:"output_token_throughput"` // tokens/s
	TotalThroughput   float64 `json:"total_token_throughput"`  // prompt and output tokens/s
	MeanTTFTMS        float64 `json:"mean_ttft_ms"`
	MedianTTFTMS      float64 `json:"median_ttft_ms"`
	P99TTFTMS         float64 `json:"p99_ttft_ms"`
	MeanTPOTMS        float64 `json:"mean_tpot_ms"`
	MedianTPOTMS      float64 `json:"median_tpot_ms"`
	P99TPOTMS         float64 `json:"p99_tpot_ms"`
	MeanITLMS         float64 `json:"mean_itl_ms"`
	MedianITLMS       float64 `json:"median_itl_ms"`
	P99ITLMS          float64 `json:"p99_itl_ms"`
}

// figure is one of the Figures with its name in JSON and in the CSV.
type figure struct {
	key   string
	value *float64
}

func (f *Figures) all() []figure {
	return []figure{
		{"duration_s", &f.DurationS},
		{"request_throughput", &f.RequestThroughput},
		{"output_token_throughput", &f.OutputThroughput},
		{"total_token_throughput", &f.TotalThroughput},
		{"mean_ttft_ms", &f.MeanTTFTMS},
		{"median_ttft_ms", &f.MedianTTFTMS},
		{"p99_ttft_ms", &f.P99TTFTMS},
		{"mean_tpot_ms", &f.MeanTPOTMS},
		{"median_tpot_ms", &f.MedianTPOTMS},
		{"p99_tpot_ms", &f.P99TPOTMS},
		{"mean_itl_ms", &f.MeanITLMS},
		{"median_itl_ms", &f.MedianITLMS},
		{"p99_itl_ms", &f.P99ITLMS},
	}
}

// relErr is (measured-published)/published of every figure.
func relErr(measured, published Figures) *Figures {
	var out Figures
	m, p, o := measured.all(), published.all(), out.all()
	for i := range o {
		if *p[i].value != 0 {
			*o[i].value = round((*m[i].value-*p[i].value) / *p[i].value, 4)
		}
	}
	return &out
}

// Counts go with Figures in a published table.
type Counts struct {
	Successful      int `json:"successful_requests"`
	InputTokens     int `json:"total_input_tokens"`
	GeneratedTokens int `json:"total_generated_tokens"`
}

// Published is one cell of the published tables.
type Published struct {
	Figures
	Counts
}

// Metrics are what a cell's records amount to.
type Metrics struct {
	Figures
	Counts
	Failed int `json:"failed_requests"`
	// Interrupted requests were in flight when the run was.
	Interrupted int `json:"interrupted_requests,omitempty"`
	// KV bytes moved between nodes and blocks re-derived and compared by the
	// consumer, as the answers' breakdowns say; 0 where no KV moved.
	KVBytes         int64 `json:"kv_bytes"`
	KVBlocksChecked int64 `json:"kv_blocks_checked"`
	KVBlocksBad     int64 `json:"kv_blocks_bad"`
	Retries         int   `json:"retries"`
	// SendDelay is sent - intended: how late the client itself was.
	P99SendDelayMS float64 `json:"p99_send_delay_ms"`
	MaxSendDelayMS float64 `json:"max_send_delay_ms"`
	// Stages is the mean request's time by part, nil where the server gives no
	// breakdown.
	Stages *Stages `json:"mean_breakdown_ms"`
}

// Stages are the parts of a request's life in milliseconds.
type Stages struct {
	Proxy       float64 `json:"proxy"`
	Queue       float64 `json:"queue"`
	Prefill     float64 `json:"prefill"`
	Post        float64 `json:"post"`
	Wire        float64 `json:"wire"`
	Land        float64 `json:"land"`
	FirstDecode float64 `json:"first_decode"`
}

// stageNames are Stages' parts in the order of a request's life, which is the
// order of parts.
var stageNames = [...]string{"proxy", "queue", "prefill", "post", "wire", "land", "first decode"}

func (s *Stages) parts() [len(stageNames)]*float64 {
	return [...]*float64{&s.Proxy, &s.Queue, &s.Prefill, &s.Post, &s.Wire, &s.Land, &s.FirstDecode}
}

// Measure computes a cell's metrics from its records. duration is the run's
// length in seconds, as Client.Run returns it. A record without tokens or without
// usage counts as failed, whatever it says of itself.
func Measure(records []Record, duration float64) Metrics {
	var (
		m                       Metrics
		ttft, tpot, itl, delays []float64
		stages                  Stages
		withStages              int
	)
	for i := range records {
		r := &records[i]
		delays = append(delays, r.Sent-r.Intended)
		if b := r.Breakdown; b != nil {
			m.KVBytes += b.KVBytes
			m.KVBlocksChecked += b.KVBlocksChecked
			m.KVBlocksBad += b.KVBlocksBad
			m.Retries += b.Retries
		}
		switch {
		case r.Status == StatusInterrupted:
			m.Interrupted++
			continue
		case r.failure() != "":
			m.Failed++
			continue
		}
		m.Successful++
		m.InputTokens += r.Usage.PromptTokens
		m.GeneratedTokens += r.Usage.CompletionTokens
		ttft = append(ttft, r.FirstToken-r.Sent)
		last := r.TokenTimes[len(r.TokenTimes)-1]
		if n := r.Usage.CompletionTokens; n > 1 {
			tpot = append(tpot, (last-r.FirstToken)/float64(n-1))
		}
		for j := 1; j < len(r.TokenTimes); j++ {
			itl = append(itl, r.TokenTimes[j]-r.TokenTimes[j-1])
		}
		if r.Breakdown != nil {
			withStages++
			for j, us := range r.Breakdown.stageMicros() {
				*stages.parts()[j] += float64(us) / 1e3
			}
		}
	}
	m.DurationS = round(duration, 6)
	if duration > 0 {
		m.RequestThroughput = float64(m.Successful) / duration
		m.OutputThroughput = float64(m.GeneratedTokens) / duration
		m.TotalThroughput = float64(m.InputTokens+m.GeneratedTokens) / duration
	}
	m.MeanTTFTMS, m.MedianTTFTMS, m.P99TTFTMS = spread(ttft)
	m.MeanTPOTMS, m.MedianTPOTMS, m.P99TPOTMS = spread(tpot)
	m.MeanITLMS, m.MedianITLMS, m.P99ITLMS = spread(itl)
	_, _, m.P99SendDelayMS = spread(delays)
	for _, d := range delays {
		m.MaxSendDelayMS = max(m.MaxSendDelayMS, round(d*1e3, 4))
	}
	if withStages > 0 {
		for _, p := range stages.parts() {
			*p = round(*p/float64(withStages), 4)
		}
		m.Stages = &stages
	}
	return m
}

// spread is the mean, the median and the 99th percentile of seconds, in
// milliseconds.
func spread(seconds []float64) (mean, median, p99 float64) {
	if len(seconds) == 0 {
		return 0, 0, 0
	}
	sorted := slices.Clone(seconds)
	slices.Sort(sorted)
	var sum float64
	for _, v := range sorted {
		sum += v
	}
	return round(sum/float64(len(sorted))*1e3, 4), round(percentile(sorted, 50)*1e3, 4), round(percentile(sorted, 99)*1e3, 4)
}

// percentile is numpy.percentile(sorted, p) with linear interpolation; sorted
// must not be empty.
func percentile(sorted []float64, p float64) float64 {
	rank := p / 100 * float64(len(sorted)-1)
	low := int(math.Floor(rank))
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (rank-float64(low))*(sorted[high]-sorted[low])
}

// round keeps n decimals, so that results.jsonl and summary.json stay readable;
// a microsecond is the finest thing anything here resolves.
func round(v float64, n int) float64 {
	scale := math.Pow10(n)
	return math.Round(v*scale) / scale
}
