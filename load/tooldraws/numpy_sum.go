package tooldraws

// PairwiseSum is numpy.sum of a list: eight sums at a time, and halves of what has more than
// 128 elements. Another order would round the last bit differently.
func PairwiseSum(a []float64) float64 {
	n := len(a)
	switch {
	case n < 8:
		sum := 0.0
		for _, v := range a {
			sum += v
		}
		return sum
	case n > 128:
		half := n / 2
		half -= half % 8
		return PairwiseSum(a[:half]) + PairwiseSum(a[half:])
	}
	var r [8]float64
	copy(r[:], a)
	i := 8
	for ; i < n-n%8; i += 8 {
		for j := range r {
			r[j] += a[i+j]
		}
	}
	sum := (r[0] + r[1] + (r[2] + r[3])) + (r[4] + r[5] + (r[6] + r[7]))
	for ; i < n; i++ {
		sum += a[i]
	}
	return sum
}
