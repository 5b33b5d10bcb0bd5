package report

import (
	"iter"
	"slices"

	"kvferry/bench/client"
	"kvferry/bench/stats"
)

// Metrics are what a run came to: those of kvferry reproduce mooncake's rows under the same names, and
// more. What is taken over requests is taken over those without a Failure.
type Metrics struct {
	client.Metrics
	// Latencies by name: ttft, tpot, itl, e2el; ttfc, to the first chunk of whatever kind, where an
	// answer began with one that was no token; itl_token where chunks brought several tokens;
	// queue, from when a request was due until there was room for it, where the requests in
	// flight were bounded; late, Record.Late; and *_due, from when the request was due and not
	// from when it was sent, which is what its user waits. A name is missing where there is no
	// value.
	Latencies map[string]stats.Summary `json:"latency_ms"`

	MeanE2ELMS   float64 `json:"mean_e2el_ms"`
	MedianE2ELMS float64 `json:"median_e2el_ms"`
	P99E2ELMS    float64 `json:"p99_e2el_ms"`

	// Concurrency is the mean number of requests in flight, the sum of their times from Sent to
	// Finish over the duration, and MaxConcurrency the most that were at once. Unlike the
	// tools' peaks it is exact: one that ends as another begins is not at once with it.
	Concurrency    float64 `json:"concurrency"`
	MaxConcurrency int     `json:"max_concurrent_requests"`
	// PeakOutput is the most output tokens in a second that begins with a whole second of
	// the run; a chunk of several tokens counts as these where the server says so.
	PeakOutput float64 `json:"max_output_tokens_per_s"`
	// Goodput is requests a second that kept every SLO, and Attained their share of all; nil
	// without an SLO.
	Goodput  *float64 `json:"request_goodput,omitempty"`
	Attained *float64 `json:"slo_attainment,omitempty"`

	Skipped       int            `json:"skipped_requests,omitempty"` // never sent
	CountedBy     map[string]int `json:"counted_by"`                 // requests, by client.CountUsage ...
	FinishReasons map[string]int `json:"finish_reasons"`             // requests
	Chunks        int            `json:"chunks"`                     // that brought the generated tokens
	CachedTokens  int            `json:"cached_tokens"`              // of the prompts, that the server had in its prefix cache, as it says
}

// Names of latencies in Metrics.Latencies.
const (
	nameTTFT     = "ttft"
	nameTTFC     = "ttfc"
	nameTPOT     = "tpot"
	nameITL      = "itl"
	nameITLToken = "itl_token"
	nameE2EL     = "e2el"
	nameTTFTDue  = "ttft_due"
	nameE2ELDue  = "e2el_due"
	nameQueue    = "queue"
	nameLate     = "late"
)

// severalTokens is whether chunks brought several tokens each: then the gap between chunks is
// not that between tokens.
func (r *Run) severalTokens() bool {
	tokens, chunks := 0, 0
	for i := range r.Records {
		if rec := &r.Records[i]; rec.Failure() == "" && rec.CountedBy != client.CountChunks {
			tokens += rec.Output()
			chunks += len(rec.TokenTimes) - len(rec.NoText)
		}
	}
	return float64(tokens) > severalTokens*float64(chunks)
}

// severalTokens is how many tokens a chunk must bring on average to be said: a first chunk
// with two of a hundred is not worth a word.
const severalTokens = 1.05

// perToken are the gaps between tokens: that between two chunks divided by the tokens that
// the second brought, so many times, as SGLang's client has it on its own API (chunk_gap /
// num_new_tokens). It is the server's pace, and not when a user sees a token.
func perToken(r *client.Record) []float64 {
	var list []float64
	last, owed := -1.0, 0.0
	for at, tokens := range chunks(r) {
		if last < 0 {
			last = at
			continue
		}
		owed += tokens
		n := int(owed + 1e-9)
		if n == 0 {
			continue // its time is that of the next
		}
		list = append(list, slices.Repeat([]float64{(at - last) / float64(n)}, n)...)
		last, owed = at, owed-float64(n)
	}
	return list
}

// chunks are the times of a request's chunks with text, and the tokens of each: as the server
// says, else all alike.
func chunks(r *client.Record) iter.Seq2[float64, float64] {
	return func(yield func(at, tokens float64) bool) {
		alike := 1.0
		if n := r.Output(); n > 0 && r.Failure() == "" {
			alike = float64(n) / float64(max(len(r.TokenTimes)-len(r.NoText), 1))
		}
		silent := r.NoText
		for i, at := range r.TokenTimes {
			if len(silent) > 0 && silent[0] == i {
				silent = silent[1:]
				continue
			}
			tokens := alike
			if i < len(r.ChunkTokens) {
				tokens = float64(r.ChunkTokens[i])
			}
			if !yield(at, tokens) {
				return
			}
		}
	}
}

// Metrics computes the run's.
func (r *Run) Metrics() *Metrics {
	m, _ := r.metrics()
	return m
}

// metrics computes the run's, and returns its latencies by name. What they are taken over:
//
//   - late: every request that was sent, whatever became of it; the client was late all the same.
//   - queue: the same, where the requests in flight were bounded.
//   - the others: requests without a Failure. One that failed early has a short latency, and
//     would make a server that fails look fast.
//
// What mooncake's rows have comes from the same meter, so that one name is one formula.
func (r *Run) metrics() (*Metrics, map[string]stats.Sample) {
	var meter client.Meter
	meter.ITL = make([]float64, 0, gapCount(r.Records))
	m := &Metrics{Latencies: map[string]stats.Summary{}, CountedBy: map[string]int{}, FinishReasons: map[string]int{}}
	lists := map[string][]float64{}
	add := func(name string, v ...float64) { lists[name] = append(lists[name], v...) }
	several, kept := r.severalTokens(), 0
	var firstChunks []float64
	early := false // a chunk that was no token came first
	for i := range r.Records {
		rec := &r.Records[i]
		if rec.Skipped {
			m.Skipped++
			continue
		}
		meter.Add(rec)
		add(nameLate, rec.Late())
		if r.bounded() {
			add(nameQueue, max(rec.Room-rec.Intended, 0))
		}
		if rec.Failure() != "" {
			continue
		}
		add(nameTTFTDue, rec.TTFT()+rec.Sent-rec.Intended)
		add(nameE2ELDue, rec.E2EL()+rec.Sent-rec.Intended)
		firstChunks = append(firstChunks, rec.TTFC())
		early = early || rec.TokenTimes[0] < rec.FirstToken
		if several {
			add(nameITLToken, perToken(rec)...)
		}
		if rec.Usage != nil {
			m.CachedTokens += rec.Usage.CachedTokens
		}
		m.Chunks += len(rec.TokenTimes) - len(rec.NoText)
		if rec.CountedBy != "" {
			m.CountedBy[rec.CountedBy]++
		}
		if rec.FinishReason != "" {
			m.FinishReasons[rec.FinishReason]++
		}
		if r.Keeps(rec) {
			kept++
		}
	}
	m.Metrics = meter.Metrics(r.Duration)
	lists[nameTTFT], lists[nameTPOT], lists[nameITL], lists[nameE2EL] = meter.TTFT, meter.TPOT, meter.ITL, meter.E2EL
	if early {
		lists[nameTTFC] = firstChunks
	}
	samples := map[string]stats.Sample{}
	for name, values := range lists {
		if len(values) > 0 {
			samples[name] = stats.NewSample(values)
			m.Latencies[name] = samples[name].Summary()
		}
	}
	m.MeanE2ELMS, m.MedianE2ELMS, m.P99E2ELMS = m.Latencies[nameE2EL].Brief()
	// Little's law would give the same mean from latencies; this one counts the time of failed
	// requests, too, which the server had to bear.
	flight := r.inFlight()
	m.Concurrency = stats.Round(per(flight.Area, r.Duration), 4)
	m.MaxConcurrency = flight.Peak
	m.PeakOutput = r.peakOutput()
	if len(r.Goodput) > 0 {
		rate, share := per(float64(kept), r.Duration), per(float64(kept), float64(len(r.Records)-m.Interrupted))
		m.Goodput, m.Attained = &rate, &share
	}
	return m, samples
}
