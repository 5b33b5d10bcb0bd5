package stats

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

func TestBeyond(t *testing.T) {
	for _, c := range []struct {
		n       int64
		p, want float64
	}{{1000, 99, 10}, {999, 99.9, 0.999}, {10_000, 99.9, 10}, {3, 50, 1.5}, {0, 99, 0}} {
		if got := Beyond(c.n, c.p); got != c.want {
			t.Errorf("beyond p%v of %d: %v, want %v", c.p, c.n, got, c.want)
		}
	}
}
