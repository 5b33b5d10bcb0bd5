package report

import (
	"kvferry/bench/client"
	"kvferry/bench/stats"
)

// Keeps reports whether a request was answered, and kept all bounds of Goodput: what vLLM's
// --goodput counts.
func (s *Setup) Keeps(r *client.Record) bool {
	if r.Failure() != "" {
		return false
	}
	q := vllmSeen(r, s.Tokenizer != "")
	return q.keeps(s.Goodput)
}

// Late is how late the client itself was with a share of its requests, in milliseconds: the
// percentile p of client.Record.Late.
func (r *Run) Late(p float64) float64 {
	late := make([]float64, 0, len(r.Records))
	for i := range r.Records {
		if !r.Records[i].Skipped {
			late = append(late, r.Records[i].Late())
		}
	}
	return stats.Round(stats.NewSample(late).Percentile(p), 4)
}
