package simulation

import (
	"time"

	"kvferry/bench/stats"
	"kvferry/sim"
)

// met reports whether a request kept every bound of slo. The TPOT of a single token is 0.
func met(slo stats.SLO, o *sim.Outcome) bool {
	return slo.Kept(func(metric string) float64 {
		d := o.E2EL()
		switch metric {
		case "ttft":
			d = o.TTFT()
		case "tpot":
			d = o.TPOT() // 0 of a single token
		}
		return float64(d) / 1e6
	})
}

// A summary is the latencies of any number of requests in 2 MB. Give its methods
// to Config.OnOutcome and Config.OnGap.
type summary struct {
	SLO                   stats.SLO
	TTFT, TPOT, ITL, E2EL stats.Histogram

	Good         int // requests that kept the SLO
	Failed       int
	PromptTokens int64
	OutputTokens int64
	CachedTokens int64
	FirstFailure error
	ModelLen     int           // of the profile, in tokens
	Beyond       int           // requests that are longer
	Paused       time.Duration // of requests that went on on other nodes, in all,
	PausedMax    time.Duration // and of one request the most
	Growth       growth
}

// outcome counts a request.
func (s *summary) outcome(o *sim.Outcome) {
	if o.PromptTokens+o.MaxTokens > s.ModelLen {
		s.Beyond++
	}
	if o.Err != nil {
		if s.Failed == 0 {
			s.FirstFailure = o.Err
		}
		s.Failed++
		return
	}
	s.TTFT.Add(o.TTFT())
	s.Growth.add(o)
	if o.Tokens > 1 {
		s.TPOT.Add(o.TPOT())
	}
	s.E2EL.Add(o.E2EL())
	s.PromptTokens += int64(o.PromptTokens)
	s.OutputTokens += int64(o.Tokens)
	s.CachedTokens += int64(o.Cached)
	s.Paused += o.Paused
	s.PausedMax = max(s.PausedMax, o.Paused)
	if met(s.SLO, o) {
		s.Good++
	}
}

// gap counts a time between two tokens.
func (s *summary) gap(d time.Duration) { s.ITL.Add(d) }
