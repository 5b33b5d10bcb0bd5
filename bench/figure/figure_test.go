package figure

import (
	"math"
	"testing"
)

func TestPercentileIsNumpys(t *testing.T) {
	// numpy.Percentile([1, 2, 4, 8], p).
	x := []float64{1, 2, 4, 8}
	for p, want := range map[float64]float64{0: 1, 25: 1.75, 50: 3, 75: 5, 99: 7.88, 100: 8} {
		if got := Percentile(x, p); math.Abs(got-want) > 1e-12 {
			t.Errorf("percentile %v = %v, want %v", p, got, want)
		}
	}
	if got := Percentile([]float64{5}, 99); got != 5 {
		t.Errorf("percentile of one value = %v", got)
	}
}
