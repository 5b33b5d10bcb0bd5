package numpy

import "sort"

// Sum is numpy.sum(x) of float64 in one piece of memory: eight sums side by side in runs of
// up to 128 numbers, and longer runs by halves. So its last bits differ from those of a sum
// from left to right.
func Sum(x []float64) float64 {
	const run = 128
	switch n := len(x); {
	case n < 8:
		sum := 0.0
		for _, v := range x {
			sum += v
		}
		return sum
	case n <= run:
		var r [8]float64
		copy(r[:], x)
		i := 8
		for ; i < n-n%8; i += 8 {
			for j := range r {
				r[j] += x[i+j]
			}
		}
		sum := ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]))
		for ; i < n; i++ {
			sum += x[i]
		}
		return sum
	default:
		half := n / 2
		half -= half % 8
		return Sum(x[:half]) + Sum(x[half:])
	}
}

// cumulated are the sums of the first, the first two ... of p, scaled so that the last is 1,
// as choice draws by.
func cumulated(p []float64) []float64 {
	sums := make([]float64, len(p))
	sum := 0.0
	for i, v := range p {
		sum += v
		sums[i] = sum
	}
	for i := range sums {
		sums[i] /= sum
	}
	return sums
}

// search is searchsorted(sums, u, side="right"): the first place whose sum is above u.
func search(sums []float64, u float64) int {
	return sort.Search(len(sums), func(i int) bool { return sums[i] > u })
}
