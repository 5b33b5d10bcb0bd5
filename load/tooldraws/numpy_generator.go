package tooldraws

import (
	"math"
	"math/bits"
)

// A NumpyGenerator is numpy.random.default_rng(seed): PCG64 (O'Neill, "PCG: a family of simple
// fast space-efficient statistically good algorithms", 2014; the variant XSL RR 128/64),
// seeded by a SeedSequence. math/rand/v2 has the variant DXSM, another stream. It is for one
// goroutine.
type NumpyGenerator struct {
	high, low       uint64 // the state
	incHigh, incLow uint64
	// half is the high half of the last output, if its low half alone was taken.
	half    uint32
	hasHalf bool
}

// DefaultRNG is default_rng(seed).
func DefaultRNG(seed uint64) *NumpyGenerator {
	words := seedSequence(seed)
	g := &NumpyGenerator{}
	// The stream is 2 x sequence + 1; the state begins at 0, and is stepped around the seed.
	g.incHigh = words[2]<<1 | words[3]>>63
	g.incLow = words[3]<<1 | 1
	g.step()
	var carry uint64
	g.low, carry = bits.Add64(g.low, words[1], 0)
	g.high, _ = bits.Add64(g.high, words[0], carry)
	g.step()
	return g
}

// step is state x multiplier + increment, modulo 2^128.
func (g *NumpyGenerator) step() {
	const multiplierHigh, multiplierLow = 2549297995355413924, 4865540595714422341
	high, low := bits.Mul64(g.low, multiplierLow)
	high += g.high*multiplierLow + g.low*multiplierHigh
	var carry uint64
	g.low, carry = bits.Add64(low, g.incLow, 0)
	g.high, _ = bits.Add64(high, g.incHigh, carry)
}

func (g *NumpyGenerator) uint64() uint64 {
	g.step()
	return bits.RotateLeft64(g.high^g.low, -int(g.high>>58))
}

// uint32 is half an output: the low half, and the high half the next time, whatever was
// drawn in between.
func (g *NumpyGenerator) uint32() uint32 {
	if g.hasHalf {
		g.hasHalf = false
		return g.half
	}
	v := g.uint64()
	g.half, g.hasHalf = uint32(v>>32), true
	return uint32(v)
}

// Random is random(): uniform on [0, 1).
func (g *NumpyGenerator) Random() float64 { return float64(g.uint64()>>11) / (1 << 53) }

// Integers is integers(low, high): uniform on [low, high), by the method of Lemire ("Fast
// random integer generation in an interval", 2019), on halves of outputs where 32 bits are
// enough. high is above low. Of one value nothing is drawn.
func (g *NumpyGenerator) Integers(low, high int64) int64 {
	top := uint64(high-low) - 1
	switch {
	case top == 0:
		return low
	case top == math.MaxUint32:
		return low + int64(g.uint32())
	case top < math.MaxUint32:
		return low + int64(g.below32(uint32(top)+1))
	case top == math.MaxUint64:
		return low + int64(g.uint64())
	}
	return low + int64(g.below64(top+1))
}

func (g *NumpyGenerator) below32(n uint32) uint32 {
	m := uint64(g.uint32()) * uint64(n)
	if uint32(m) < n {
		for threshold := -n % n; uint32(m) < threshold; {
			m = uint64(g.uint32()) * uint64(n)
		}
	}
	return uint32(m >> 32)
}

func (g *NumpyGenerator) below64(n uint64) uint64 {
	high, low := bits.Mul64(g.uint64(), n)
	if low < n {
		for threshold := -n % n; low < threshold; {
			high, low = bits.Mul64(g.uint64(), n)
		}
	}
	return high
}

// Choice is choice(len(p), n, p=p): n indices drawn by those probabilities, or
// by weights in proportion to them.
func (g *NumpyGenerator) Choice(p []float64, n int) []int {
	sums, chosen := cumulated(p), make([]int, n)
	for i := range chosen {
		chosen[i] = search(sums, g.Random())
	}
	return chosen
}
