package tooldraws

import "testing"

// TestSum: the sum of 300 numbers as numpy.sum rounds it, which a plain loop does not.
func TestSum(t *testing.T) {
	a := make([]float64, 300)
	plain := 0.0
	for i := range a {
		a[i] = 1 / float64(i+1)
		plain += a[i]
	}
	// numpy.sum(1 / numpy.arange(1, 301))
	if got := PairwiseSum(a); got != 6.282663880299504 || got == plain {
		t.Errorf("%.17g, a plain loop %.17g", got, plain)
	}
}
