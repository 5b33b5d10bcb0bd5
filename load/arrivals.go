package load

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// never is when nothing happens any more: 146 years.
const never = time.Duration(math.MaxInt64 / 2)

// Arrivals say when requests are due, apart from what they ask. There is always a next
// one; how many requests there are the source says.
type Arrivals interface {
	// Next is when the next request is due, not before the one before it.
	Next() (time.Duration, error)
}

// Paced are the source's requests at the times of the arrivals, whatever times of its
// own it has. When is drawn before what, so that the two may share a generator.
func Paced(s Source, a Arrivals) Source { return &paced{source: s, arrivals: a} }

type paced struct {
	source   Source
	arrivals Arrivals
	err      error // the first
}

func (p *paced) Next() (Request, bool, error) {
	if p.err != nil {
		return Request{}, false, p.err
	}
	at, late := p.arrivals.Next()
	r, ok, err := p.source.Next()
	switch {
	case err != nil:
		p.err = err
		return Request{}, false, err
	case !ok:
		return Request{}, false, nil
	case late != nil:
		p.err = late
		return Request{}, false, late
	}
	r.At = at
	return r, true, nil
}

// Close closes the source.
func (p *paced) Close() error { return Close(p.source) }

// gammaGaps are arrivals whose gaps are gamma distributed, of mean 1/rate and shape
// burstiness: 1 is a Poisson process. The first is at 0. At an infinite rate all are,
// and nothing is drawn.
type gammaGaps struct {
	rate, burstiness float64
	rng              *rand.Rand
	at               float64 // s
	n                int
}

func (g *gammaGaps) Next() (time.Duration, error) {
	if g.n > 0 && !math.IsInf(g.rate, 1) {
		if math.IsInf(g.burstiness, 1) { // equal gaps
			g.at += 1 / g.rate
		} else {
			g.at += gamma(g.rng, g.burstiness) / (g.burstiness * g.rate)
		}
	}
	g.n++
	return due(g.n, g.at)
}

// due is when the n-th request, from 1, is due, in seconds.
func due(n int, seconds float64) (time.Duration, error) {
	if !(seconds <= never.Seconds()) { // or not a number: 0/0 of a rate and a burstiness next to 0
		return 0, fmt.Errorf("request %d would arrive after %.3g s: raise the rate (--request-rate)", n, seconds)
	}
	return time.Duration(seconds * 1e9), nil
}

// gamma draws from the gamma distribution of that shape and scale 1: Marsaglia
// and Tsang, "A simple method for generating gamma variables", 2000. Shape 1 is
// the exponential distribution.
func gamma(rng *rand.Rand, shape float64) float64 {
	if shape == 1 {
		return rng.ExpFloat64()
	}
	boost := 1.0
	if shape < 1 {
		boost = math.Pow(rng.Float64(), 1/shape)
		shape++
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if u := rng.Float64(); math.Log(u) < x*x/2+d-d*v+d*math.Log(v) {
			return boost * d * v
		}
	}
}
