package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestHistogramPercentiles compares with all values sorted.
func TestHistogramPercentiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for name, draw := range map[string]func() float64{
		"few nanoseconds": func() float64 { return float64(rng.IntN(3000)) },
		"log-normal":      func() float64 { return 1e7 * math.Exp(2*rng.NormFloat64()) },
		"hours":           func() float64 { return 3.6e12 * (1 + rng.Float64()) },
		"constant":        func() float64 { return 11411234 },
	} {
		for _, n := range []int{1, 2, 17, 20000} {
			var h Histogram
			var all []time.Duration
			sum := 0.0
			for range n {
				d := time.Duration(draw())
				h.Add(d)
				all = append(all, d)
				sum += float64(d)
			}
			slices.Sort(all)
			for _, p := range []float64{0, 1, 25, 50, 90, 99, 99.9, 100} {
				rank := p / 100 * float64(n-1)
				lo := int(rank)
				hi := min(lo+1, n-1)
				want := float64(all[lo]) + (rank-float64(lo))*float64(all[hi]-all[lo])
				if got := float64(h.Percentile(p)); math.Abs(got-want) > 0.0005*want+1 {
					t.Errorf("%s, %d values: P%v is %v, want %v: off by more than 0.05 %%", name, n, p, got, want)
				}
			}
			if got := float64(h.Mean()); math.Abs(got-sum/float64(n)) > 1 || h.Count() != uint64(n) || h.Max() != all[n-1] {
				t.Errorf("%s, %d values: mean %v, count %d, max %v", name, n, got, h.Count(), h.Max())
			}
		}
	}
}

func TestHistogramBounds(t *testing.T) {
	var h Histogram
	if h.Mean() != 0 || h.Percentile(50) != 0 || h.Max() != 0 {
		t.Error("an empty histogram is not 0")
	}
	h.Add(-5)
	h.Add(math.MaxInt64)
	if h.Percentile(0) != 0 || h.Percentile(100) != math.MaxInt64 {
		t.Errorf("from %v to %v", h.Percentile(0), h.Percentile(100))
	}
	// Buckets are in order and each holds its middle.
	last := -1.0
	for i := range buckets {
		m := middle(i)
		if m <= last {
			t.Fatalf("bucket %d: middle %v after %v", i, m, last)
		}
		last = m
		if m < math.MaxInt64 && bucket(time.Duration(m)) != i {
			t.Fatalf("middle %v of bucket %d is in %d", m, i, bucket(time.Duration(m)))
		}
	}
}

func BenchmarkHistogram(b *testing.B) {
	var h Histogram
	for i := range b.N {
		h.Add(time.Duration(i) << 8)
	}
}

// TestHistogramMerge: of two histograms as of all their values in one.
func TestHistogramMerge(t *testing.T) {
	var all, a, b, none Histogram
	for i := range 3000 {
		d := time.Duration(i*i) * time.Nanosecond
		all.Add(d + 7)
		if i%3 == 0 {
			a.Add(d + 7)
		} else {
			b.Add(d + 7)
		}
	}
	none.Merge(&a)
	none.Merge(&b)
	none.Merge(&Histogram{})
	for _, p := range []float64{0, 1, 50, 99.9, 100} {
		if none.Percentile(p) != all.Percentile(p) {
			t.Errorf("P%v is %v, want %v", p, none.Percentile(p), all.Percentile(p))
		}
	}
	if none.Count() != all.Count() || none.Mean() != all.Mean() || none.Min() != 7 || none.Max() != all.Max() {
		t.Errorf("%d values from %v to %v, mean %v", none.Count(), none.Min(), none.Max(), none.Mean())
	}
}
