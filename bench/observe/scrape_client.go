package observe

import (
	"cmp"
	"iter"

	"kvferry/bench/client"
	"kvferry/bench/stats"
)

// A ClientFigures is the client's account of a run, for the rules.
type ClientFigures struct {
	Sent     int `json:"sent"`     // requests that were written, with those that failed
	Answered int `json:"answered"` // of these, answered to the end
	// Choices are the answers that the sent requests asked for: Sent, but more with n.
	Choices      int `json:"choices"`
	InputTokens  int `json:"input_tokens"`
	OutputTokens int `json:"output_tokens"`
	// CountedBy says who counted the tokens: client.CountUsage if it was the server itself.
	CountedBy string `json:"counted_by"`
	// Means over the answered requests, in milliseconds. Whole is to the stream's end, which
	// E2EL does not wait for.
	TTFTMS  float64 `json:"mean_ttft_ms"`
	ITLMS   float64 `json:"mean_itl_ms"`
	TPOTMS  float64 `json:"mean_tpot_ms"`
	E2ELMS  float64 `json:"mean_e2el_ms"`
	WholeMS float64 `json:"mean_whole_ms"`
	KVBytes int64   `json:"kv_bytes"` // as answers' breakdowns say
	Timed   timed   `json:"timed"`    // what answers say of their time

	// The rest is for the caller to set.

	WantedHitRate float64    `json:"wanted_prefix_hit_rate"` // the load's; 0 is none
	NICs          nicTraffic `json:"nics,omitempty"`         // what this machine carried in the run
	// Here says that all transfers of KV begin or end on this machine, so that they are in NICs.
	Here bool `json:"server_is_here"`
}

// A timed summarizes the answers that say how long the server worked on them (client.Timings).
type timed struct {
	Answers   int     `json:"answers"`
	BusyMS    float64 `json:"mean_busy_ms"`    // by what they say
	PrefillMS float64 `json:"mean_prefill_ms"` // 0 where they do not
	DecodeMS  float64 `json:"mean_decode_ms"`
	// Longer are those that say a longer time than the client waited.
	Longer int `json:"longer_than_waited"`
}

// ClientFiguresOf returns the client's account of a run, from its records.
func ClientFiguresOf(records iter.Seq[*client.Record]) ClientFigures {
	var c ClientFigures
	var all client.Latencies
	for r := range records {
		if r.Skipped {
			continue
		}
		c.Sent++
		c.Choices += max(r.Answers, 1)
		if r.Breakdown != nil {
			c.KVBytes += r.Breakdown.KVBytes.Sum()
		}
		if r.Status != client.StatusOK || r.Failure() != "" {
			continue
		}
		c.Answered++
		c.InputTokens += r.Input()
		c.OutputTokens += cmp.Or(r.Output(), len(r.TokenTimes))
		by := cmp.Or(r.CountedBy, client.CountUsage)
		if c.CountedBy == "" || by != client.CountUsage { // one count that is not the server's spoils all
			c.CountedBy = by
		}
		if t := r.Timings; t != nil {
			c.Timed.Answers++
			c.Timed.BusyMS += t.Busy() * 1e3
			c.Timed.PrefillMS += t.Prefill * 1e3
			c.Timed.DecodeMS += t.Decode * 1e3
			if longer(t.Busy()*1e3, (r.Finish-r.Sent)*1e3) {
				c.Timed.Longer++
			}
		}
		all.Add(r)
		c.WholeMS += (r.Finish - r.Sent) * 1e3
	}
	mean := func(seconds []float64) float64 { return stats.NewSample(seconds).Mean() }
	c.TTFTMS, c.ITLMS, c.TPOTMS, c.E2ELMS = mean(all.TTFT), mean(all.ITL), mean(all.TPOT), mean(all.E2EL)
	c.WholeMS /= float64(max(c.Answered, 1))
	for _, mean := range []*float64{&c.Timed.BusyMS, &c.Timed.PrefillMS, &c.Timed.DecodeMS} {
		*mean /= float64(max(c.Timed.Answers, 1))
	}
	return c
}
