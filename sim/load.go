package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"kvferry/config"
	"kvferry/kvcache"
)

// List is a load that is known beforehand, in order of time.
type List []Request

// Next takes the first request off the list.
func (l *List) Next() (Request, bool, error) {
	if len(*l) == 0 {
		return Request{}, false, nil
	}
	r := (*l)[0]
	*l = (*l)[1:]
	return r, true, nil
}

// Random describes a load of requests that have nothing in common, as vLLM's
// random dataset has them: lengths are uniform in
// [length x (1 - RangeRatio), length x (1 + RangeRatio)], gaps between arrivals
// are drawn from a gamma distribution of mean 1/Rate and shape Burstiness.
type Random struct {
	Requests   int
	Rate       float64 // requests a second; +Inf: all at once
	Burstiness float64 // 1 is a Poisson process, below 1 is burstier, above more regular
	InputLen   int     // prompt tokens
	OutputLen  int
	RangeRatio float64 // from 0 to below 1
	PrefixLen  int     // tokens that all prompts begin with, before InputLen others
	Seed       uint64
	Vocab      int
}

// maxLen bounds a request's lengths: ten times what any model takes. A prompt is in
// memory, 4 bytes a token, also if it is refused.
const maxLen = 1 << 24

// Validate lists every fault by its field, as a [config.Invalid].
func (r Random) Validate() error {
	var bad config.Faults
	if r.Requests < 1 {
		bad.Add("Requests", r.Requests, "use 1 or more")
	}
	if !(r.Rate > 0) {
		bad.Add("Rate", r.Rate, "use more than 0 requests a second, inf for all at once")
	}
	if !(r.Burstiness > 0 && r.Burstiness <= 1e6) {
		bad.Add("Burstiness", r.Burstiness, "use more than 0, up to 1e6; 1 is Poisson")
	}
	if !(r.RangeRatio >= 0 && r.RangeRatio < 1) {
		bad.Add("RangeRatio", r.RangeRatio, "use 0 to below 1")
	}
	config.Between(&bad, "InputLen", r.InputLen, 1, maxLen)
	config.Between(&bad, "OutputLen", r.OutputLen, 1, maxLen)
	config.Between(&bad, "PrefixLen", r.PrefixLen, 0, maxLen)
	config.Between(&bad, "Vocab", r.Vocab, 1, 1<<30)
	return bad.Err("sim.Random")
}

// Load returns the requests, drawn one by one as they are asked for.
func (r Random) Load() Load {
	return &random{Random: r, rng: rand.New(rand.NewPCG(r.Seed, 0x6b76666572727921))}
}

type random struct {
	Random
	rng    *rand.Rand
	at     float64 // s
	n      int
	prefix []kvcache.Token
}

func (r *random) Next() (Request, bool, error) {
	if r.n >= r.Requests {
		return Request{}, false, nil
	}
	if r.n > 0 && !math.IsInf(r.Rate, 1) {
		r.at += gamma(r.rng, r.Burstiness) / (r.Burstiness * r.Rate)
	}
	r.n++
	if r.at > never.Seconds() {
		return Request{}, false, fmt.Errorf("request %d would arrive after %.3g s: raise the rate", r.n, r.at)
	}
	if r.prefix == nil && r.PrefixLen > 0 {
		r.prefix = fill(nil, r.PrefixLen, r.rng.Uint64(), r.Vocab)
	}
	prompt := make([]kvcache.Token, 0, r.PrefixLen+int(float64(r.InputLen)*(1+r.RangeRatio)))
	prompt = append(prompt, r.prefix...)
	prompt = fill(prompt, r.length(r.InputLen), r.rng.Uint64(), r.Vocab)
	return Request{At: time.Duration(r.at * 1e9), Prompt: prompt, MaxTokens: r.length(r.OutputLen)}, true, nil
}

func (r *random) length(mean int) int {
	low, high := int(math.Ceil(float64(mean)*(1-r.RangeRatio))), int(float64(mean)*(1+r.RangeRatio))
	return max(low+r.rng.IntN(high-low+1), 1)
}

// fill appends n tokens that follow from the seed: splitmix64, at a nanosecond
// each where math/rand takes four.
func fill(tokens []kvcache.Token, n int, seed uint64, vocab int) []kvcache.Token {
	for range n {
		seed += 0x9e3779b97f4a7c15
		z := (seed ^ seed>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		tokens = append(tokens, kvcache.Token((z>>32)*uint64(vocab)>>32))
	}
	return tokens
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
