package tooldraws

import "sort"

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
