package tooldraws

import (
	"math"
	"math/bits"
)

// A RandomState is numpy's legacy generator. It is for one goroutine.
type RandomState struct {
	source *mersenneTwister
	// gauss is the second of the last pair of normal numbers, if it is still to come.
	gauss    float64
	hasGauss bool
}

// NewRandomState is numpy.random.RandomState(seed), and what numpy.random.seed(seed) leaves.
func NewRandomState(seed uint32) *RandomState {
	return &RandomState{source: newMersenneTwister(seed)}
}

// RandomSample is random_sample(): uniform on [0, 1).
func (r *RandomState) RandomSample() float64 { return r.source.Float64() }

// Randint is randint(low, high): uniform on [low, high). high is above low.
func (r *RandomState) Randint(low, high int64) int64 {
	return low + int64(r.interval(uint64(high-low)-1))
}

// interval is uniform on [0, top], by masked rejection: bits of as many as top has, until
// they are not above it. Of a top of 0 nothing is drawn; one of more than 32 bits takes two
// words, the high one first.
func (r *RandomState) interval(top uint64) uint64 {
	if top == 0 {
		return 0
	}
	mask := uint64(1)<<bits.Len64(top) - 1
	for {
		v := uint64(r.source.Uint32())
		if top > math.MaxUint32 {
			v = v<<32 | uint64(r.source.Uint32())
		}
		if v &= mask; v <= top {
			return v
		}
	}
}

// Exponential is exponential(scale), of that mean.
func (r *RandomState) Exponential(scale float64) float64 {
	return scale * -math.Log(1-r.source.Float64())
}

// StandardNormal is standard_normal(): Marsaglia's polar method, which makes two at a time.
// The second is kept for the next call.
func (r *RandomState) StandardNormal() float64 {
	if r.hasGauss {
		r.hasGauss = false
		return r.gauss
	}
	for {
		x := 2*r.source.Float64() - 1
		y := 2*r.source.Float64() - 1
		if square := x*x + y*y; square < 1 && square != 0 {
			f := math.Sqrt(-2 * math.Log(square) / square)
			r.gauss, r.hasGauss = f*x, true
			return f * y
		}
	}
}

// Gamma is gamma(shape, scale).
func (r *RandomState) Gamma(shape, scale float64) float64 {
	return scale * r.StandardGamma(shape)
}

// StandardGamma is standard_gamma(shape), of shape 0 or more. Above 1 it is the method of
// Marsaglia and Tsang (2000), at 1 the exponential distribution, and below 1 the method of
// Ahrens and Dieter (1974).
func (r *RandomState) StandardGamma(shape float64) float64 {
	switch {
	case shape == 1:
		return r.Exponential(1)
	case shape == 0:
		return 0
	case shape < 1:
		return r.smallGamma(shape)
	}
	b := shape - 1./3
	c := 1 / math.Sqrt(9*b)
	for {
		x := r.StandardNormal()
		v := 1 + c*x
		for v <= 0 {
			x = r.StandardNormal()
			v = 1 + c*x
		}
		v = v * v * v
		u := r.source.Float64()
		if u < 1-0.0331*(x*x)*(x*x) || math.Log(u) < 0.5*x*x+b*(1-v+math.Log(v)) {
			return b * v
		}
	}
}

func (r *RandomState) smallGamma(shape float64) float64 {
	for {
		u := r.source.Float64()
		v := r.Exponential(1)
		if u <= 1-shape {
			if x := math.Pow(u, 1/shape); x <= v {
				return x
			}
			continue
		}
		y := -math.Log((1 - u) / shape)
		if x := math.Pow(1-shape+shape*y, 1/shape); x <= v+y {
			return x
		}
	}
}

// Choice is choice(len(p), p=p): an index drawn by those probabilities, or by weights in
// proportion to them.
func (r *RandomState) Choice(p []float64) int {
	return search(cumulated(p), r.source.Float64())
}

// Sample is choice(n, k, replace=False), and which rows pandas' df.sample(k,
// random_state=seed) takes of n: the first k of a permutation. k is n at most.
func (r *RandomState) Sample(n, k int) []int { return r.Permutation(n)[:k] }

// Permutation is permutation(n): 0 to n-1, shuffled.
func (r *RandomState) Permutation(n int) []int {
	p := make([]int, n)
	for i := range p {
		p[i] = i
	}
	r.Shuffle(n, func(i, j int) { p[i], p[j] = p[j], p[i] })
	return p
}

// Shuffle is shuffle(x) of n elements: Fisher and Yates from the end. swap exchanges two.
func (r *RandomState) Shuffle(n int, swap func(i, j int)) {
	for i := n - 1; i > 0; i-- {
		swap(i, int(r.interval(uint64(i))))
	}
}

// Clone is a generator that draws the same from here on, by itself.
func (r *RandomState) Clone() *RandomState {
	source := *r.source
	return &RandomState{source: &source, gauss: r.gauss, hasGauss: r.hasGauss}
}
