package client

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"

	"kvferry/bench/stats"
)

// Figures are the numbers a run is judged by, in the order of the published
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

// A Figure is one of the Figures with its name in JSON.
type Figure struct {
	Key   string
	Value *float64 // in the Figures
}

// All are the figures in the order of the published tables.
func (f *Figures) All() []Figure {
	return []Figure{
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

// Counts go with Figures in a published table.
type Counts struct {
	Successful      int `json:"successful_requests"`
	InputTokens     int `json:"total_input_tokens"`
	GeneratedTokens int `json:"total_generated_tokens"`
}

// Metrics are what a run's records amount to.
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
	// KVUnknown counts answers whose breakdown does not know how much KV moved.
	KVUnknown int `json:"kv_unknown,omitempty"`
	// Of requests that went on on other nodes: how often, the time without a token then, in all,
	// and the bytes moved for it.
	Migrations       int64 `json:"migrations,omitempty"`
	MigrationPauseUS int64 `json:"migration_pause_us,omitempty"`
	MigratedBytes    int64 `json:"migrated_bytes,omitempty"`
	Retries          int   `json:"retries"`
	// SendDelay is Record.Late: how late the client itself was.
	P99SendDelayMS float64 `json:"p99_send_delay_ms"`
	MaxSendDelayMS float64 `json:"max_send_delay_ms"`
	// ReadDelay is Record.ReadDelay: how late the client was to read, at worst.
	P99ReadDelayMS float64 `json:"p99_read_delay_ms,omitempty"`
	// Faults and Notes count records by what they say.
	Faults map[string]int `json:"faults,omitempty"`
	Notes  map[string]int `json:"notes,omitempty"`
	// Stages is the mean request's time by part, nil where the server gives no
	// breakdown.
	Stages *Stages `json:"mean_breakdown_ms"`
}

// Stages are the parts of a request's life in milliseconds: NaN, in JSON null, where they are not
// known.
type Stages struct {
	Proxy       float64 `json:"proxy"`
	Queue       float64 `json:"queue"`
	Prefill     float64 `json:"prefill"`
	Post        float64 `json:"post"`
	Wire        float64 `json:"wire"`
	Land        float64 `json:"land"`
	FirstDecode float64 `json:"first_decode"`
}

// StageNames are Stages' parts in the order of a request's life, which is the
// order of Parts.
var StageNames = [...]string{"proxy", "queue", "prefill", "post", "wire", "land", "first decode"}

// Parts are the parts in the order of StageNames.
func (s *Stages) Parts() [len(StageNames)]*float64 {
	return [...]*float64{&s.Proxy, &s.Queue, &s.Prefill, &s.Post, &s.Wire, &s.Land, &s.FirstDecode}
}

// MarshalJSON implements [json.Marshaler].
func (s Stages) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, v := range s.Parts() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), strings.ReplaceAll(StageNames[i], " ", "_")...), '"', ':')
		if math.IsNaN(*v) {
			b = append(b, "null"...)
			continue
		}
		number, err := json.Marshal(*v)
		if err != nil {
			return nil, err
		}
		b = append(b, number...)
	}
	return append(b, '}'), nil
}

// Latencies are the latencies of requests without a Failure, in seconds.
type Latencies struct {
	TTFT, TPOT, ITL, E2EL []float64
}

// Add appends a request's latencies: no TPOT of a single token, and as many ITL as there are gaps.
func (l *Latencies) Add(r *Record) {
	l.TTFT, l.E2EL = append(l.TTFT, r.TTFT()), append(l.E2EL, r.E2EL())
	if v, ok := r.TPOT(); ok {
		l.TPOT = append(l.TPOT, v)
	}
	l.ITL = slices.AppendSeq(l.ITL, r.ITL())
}

// A Meter takes records one by one and forgets them; of each it keeps what the exact
// percentiles need, 32 bytes and 8 a token. The zero value is empty. It is for one
// goroutine.
type Meter struct {
	Latencies
	counted            Metrics // but for the figures
	delays, readDelays []float64
	stages             Stages
	withStages         int
	known              [len(StageNames)]int // how many of these know each part
}

// Add counts a record. One without tokens or without usage counts as failed, whatever it
// says of itself.
func (m *Meter) Add(r *Record) {
	m.delays = append(m.delays, r.Late())
	c := &m.counted
	if r.ReadDelay > 0 {
		m.readDelays = append(m.readDelays, r.ReadDelay)
	}
	count(&c.Faults, r.Fault)
	for _, note := range r.Notes {
		count(&c.Notes, note)
	}
	if b := r.Breakdown; b != nil {
		c.KVBytes += b.KVBytes.Sum()
		c.KVBlocksChecked += b.KVBlocksChecked.Sum()
		c.KVBlocksBad += b.KVBlocksBad.Sum()
		if b.KVBytes == Unknown {
			c.KVUnknown++
		}
		c.Migrations += b.Migrations.Sum()
		c.MigrationPauseUS += b.MigrationPauseUS.Sum()
		c.MigratedBytes += b.MigratedBytes.Sum()
		c.Retries += b.Retries
	}
	switch {
	case r.Status == StatusInterrupted:
		c.Interrupted++
		return
	case r.Failure() != "":
		c.Failed++
		return
	}
	c.Successful++
	c.InputTokens += r.Input()
	c.GeneratedTokens += r.Output()
	m.Latencies.Add(r)
	if r.Breakdown != nil {
		m.withStages++
		for i, us := range r.Breakdown.micros() {
			if us != Unknown {
				*m.stages.Parts()[i] += us.MS()
				m.known[i]++
			}
		}
	}
}

// count counts what there is in a map that is made when needed.
func count(in *map[string]int, what string) {
	if what == "" {
		return
	}
	if *in == nil {
		*in = map[string]int{}
	}
	(*in)[what]++
}

// Metrics are those of the records so far. duration is the run's length, as Client.Run
// returns it, in seconds. The Latencies are in ascending order then.
func (m *Meter) Metrics(duration float64) Metrics {
	out := m.counted
	out.Faults, out.Notes = maps.Clone(out.Faults), maps.Clone(out.Notes)
	out.DurationS = stats.Round(duration, 6)
	if duration > 0 {
		out.RequestThroughput = float64(out.Successful) / duration
		out.OutputThroughput = float64(out.GeneratedTokens) / duration
		out.TotalThroughput = float64(out.InputTokens+out.GeneratedTokens) / duration
	}
	brief := func(seconds []float64) (mean, median, p99 float64) { return stats.NewSample(seconds).Summary().Brief() }
	out.MeanTTFTMS, out.MedianTTFTMS, out.P99TTFTMS = brief(m.TTFT)
	out.MeanTPOTMS, out.MedianTPOTMS, out.P99TPOTMS = brief(m.TPOT)
	out.MeanITLMS, out.MedianITLMS, out.P99ITLMS = brief(m.ITL)
	_, _, out.P99ReadDelayMS = brief(m.readDelays)
	delay := stats.NewSample(m.delays).Summary().Rounded()
	out.P99SendDelayMS, out.MaxSendDelayMS = delay.P99, delay.Max
	if m.withStages > 0 {
		stages := m.stages
		for i, p := range stages.Parts() {
			*p /= float64(m.known[i]) // NaN where nobody knows
			if m.known[i] > 0 {
				*p = stats.Round(*p, 4)
			}
		}
		out.Stages = &stages
	}
	return out
}
