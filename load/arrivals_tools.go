package load

import (
	"math"
	"time"

	"kvferry/load/tooldraws"
)

// gaps between requests as vLLM and SGLang draw them, in seconds.
type gaps struct {
	from             *tooldraws.RandomState
	rate, burstiness float64
}

// next is the gap at a rate: gamma distributed with mean 1/rate. At an infinite rate there
// is none, and nothing is drawn; at an infinite burstiness all are equal. The exponential
// distribution, which the older clients and SGLang draw from, is burstiness 1 to the bit.
func (g *gaps) next(rate float64) float64 {
	switch {
	case math.IsInf(rate, 1):
		return 0
	case math.IsInf(g.burstiness, 1):
		return 1 / rate
	}
	return g.from.Gamma(g.burstiness, 1/(rate*g.burstiness))
}

// normalized are the arrivals of vllm bench serve at one rate (get_request of its
// serve.py): request i comes after the sum of the gaps 0 to i, all scaled so that the last
// of n comes at n/rate. The sum of all is known only when all are drawn, so they are drawn
// twice, and none is kept.
type normalized struct {
	gaps
	factor float64
	at     float64 // s, not scaled
	n      int
}

// newNormalized draws the gaps of n requests once, on a copy of the generator, for their sum.
// The client draws them all before it sends one; here 2.5 kB of generator stand for them.
func newNormalized(n int, g gaps) *normalized {
	first := g
	first.from = g.from.Clone()
	sum := 0.0
	for range n {
		sum += first.next(g.rate)
	}
	a := &normalized{gaps: g, factor: 1}
	if sum != 0 {
		a.factor = float64(n) / g.rate / sum
	}
	return a
}

// Next scales as the client does: the sum first, then the product. The other order would round
// differently.
func (a *normalized) Next() (time.Duration, error) {
	a.at += a.next(a.rate)
	a.n++
	return due(a.n, a.at*a.factor)
}

// ramp are the arrivals of vllm bench serve whose rate grows with each of n requests. They
// are not scaled.
type ramp struct {
	RampUp
	gaps
	last float64 // n - 1
	at   float64
	n    int
}

// newRamp begins a ramp over n requests; a single one has the rate of the start.
func newRamp(r RampUp, n int, g gaps) *ramp {
	return &ramp{RampUp: r, gaps: g, last: float64(max(n-1, 1))}
}

// Next draws a gap at the rate of this request: of the share of requests that have gone, not of
// the time.
func (a *ramp) Next() (time.Duration, error) {
	progress := float64(a.n) / a.last
	rate := a.Start + (a.End-a.Start)*progress
	if a.Strategy == RampExponential {
		rate = a.Start * math.Pow(a.End/a.Start, progress)
	}
	a.at += a.next(rate)
	a.n++
	return due(a.n, a.at)
}

// legacy are the arrivals of a client that sends a request and then sleeps a gap:
// sglang.bench_serving, and vLLM's of 2024. Each gap is cut to the nanosecond; drift is
// how much longer each sleep takes on the client's machine.
type legacy struct {
	gaps
	drift time.Duration
	at    time.Duration // of the next
	gap   bool          // still to be drawn
	n     int
	err   error
}

// Next draws the gap before the request, and not the one after it: between the two SGLang
// draws the request's adapter.
func (a *legacy) Next() (time.Duration, error) {
	if a.gap {
		a.sleep()
	}
	a.gap = true
	return a.at, a.err
}

// sleep adds a gap.
func (a *legacy) sleep() {
	a.n++
	gap, err := due(a.n, a.next(a.rate))
	if a.at += gap + a.drift; err == nil && a.at > never {
		_, err = due(a.n, math.Inf(1))
	}
	if a.err == nil && err != nil {
		a.err, a.at = err, 0
	}
}

// legacyEnd is when the gap after the last of n requests has passed.
func legacyEnd(n int, g gaps, adapter chooser, from *Generators) time.Duration {
	g.from = from.Numpy
	a := &legacy{gaps: g}
	for range n {
		if adapter != nil {
			adapter(from)
		}
		a.sleep()
	}
	return a.at
}
