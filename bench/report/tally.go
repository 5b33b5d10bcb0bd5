package report

import (
	"kvferry/bench/client"
	"kvferry/bench/stats"
)

// A tally holds what both tools count of a run's requests. It takes 8 bytes for each gap between tokens.
type tally struct {
	run                   *Run
	requests              []seen
	completed, failed     int
	output                int // tokens of those that succeeded
	ttft, tpot, itl, e2el stats.Sample
	peakTokens            float64
	peakRequests          int
}

// tallied counts the requests of a run as a tool's client sees them. It calls each for every request that
// succeeded.
func tallied(run *Run, as func(*client.Record) seen, each func(*seen)) tally {
	t := tally{run: run, requests: make([]seen, 0, len(run.Records))}
	t.itl = make([]float64, 0, gapCount(run.Records))
	for r := range run.settled() {
		s := as(r)
		t.requests = append(t.requests, s)
		if !s.ok {
			t.failed++
			continue
		}
		t.completed++
		t.output += s.output
		if v, some := s.tpot(); some {
			t.tpot = append(t.tpot, v)
		}
		t.ttft, t.itl, t.e2el = append(t.ttft, s.ttft), append(t.itl, s.itl()...), append(t.e2el, s.latency)
		each(&s)
	}
	for _, sample := range []stats.Sample{t.ttft, t.tpot, t.itl, t.e2el} {
		stats.NewSample(sample) // sorted in place
	}
	t.peakTokens, t.peakRequests = peaks(t.requests)
	return t
}
