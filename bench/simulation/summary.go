package simulation

import (
	"time"

	"kvferry/bench/stats"
	"kvferry/sim"
)

// SLO is what a request must keep to count as good. A limit of 0 is none.
type SLO struct {
	TTFT time.Duration `json:"ttft_ns"`
	TPOT time.Duration `json:"tpot_ns"`
	E2EL time.Duration `json:"e2el_ns"`
}

// met reports whether a request kept every limit.
func (s SLO) met(o *sim.Outcome) bool {
	return within(o.TTFT(), s.TTFT) && within(o.TPOT(), s.TPOT) && within(o.E2EL(), s.E2EL)
}

func within(d, limit time.Duration) bool { return limit == 0 || d <= limit }

// A summary is the latencies of any number of requests in 2 MB. Give its methods
// to Config.OnOutcome and Config.OnGap.
type summary struct {
	SLO                   SLO
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
	if s.SLO.met(o) {
		s.Good++
	}
}

// gap counts a time between two tokens.
func (s *summary) gap(d time.Duration) { s.ITL.Add(d) }
