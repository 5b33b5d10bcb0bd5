package observe

import (
	"math"
	"slices"
)

// A histogram is the sum of a histogram's series.
type histogram struct {
	count, sum float64
	bounds     []float64 // upper, ascending; the last is infinite
	below      []float64 // how many values are at most bounds[i]
}

// histogram is that of a name.
func (s *Snapshot) histogram(name string, l labels) (h histogram, ok bool) {
	below := map[float64]float64{}
	for _, m := range s.families[name].GetMetric() {
		one := m.GetHistogram()
		if one == nil || !l.pick(m) {
			continue
		}
		ok = true
		h.count += float64(one.GetSampleCount())
		h.sum += one.GetSampleSum()
		for _, b := range one.GetBucket() {
			below[b.GetUpperBound()] += float64(b.GetCumulativeCount())
		}
	}
	for bound := range below {
		if finite(bound) || math.IsInf(bound, 1) {
			h.bounds = append(h.bounds, bound)
		}
	}
	slices.Sort(h.bounds)
	for _, bound := range h.bounds {
		h.below = append(h.below, below[bound])
	}
	return h, ok
}

// since is what came after another state of the same histogram; false if that cannot be,
// as of a server that was restarted.
func (h histogram) since(old histogram) (histogram, bool) {
	d := histogram{count: h.count - old.count, sum: h.sum - old.sum, bounds: h.bounds}
	if d.count < 0 || !finite(d.sum) {
		return d, false
	}
	for i, bound := range h.bounds {
		n := h.below[i]
		if j, ok := slices.BinarySearch(old.bounds, bound); ok {
			n -= old.below[j]
		}
		// A bound that an engine that came later brought has counts for that one only.
		d.below = append(d.below, min(max(n, 0), d.count))
	}
	return d, true
}

// A latency summarizes the values that a server's histogram counted in a run. All fields are 0 if it counted none.
type latency struct {
	Values float64  `json:"values"`
	MeanMS float64  `json:"mean_ms"`
	Median quantile `json:"median"`
	P99    quantile `json:"p99"`
}

// A quantile is known to lie in a bucket, in milliseconds.
type quantile struct {
	FromMS  float64 `json:"from_ms"`
	ToMS    float64 `json:"to_ms"`    // 0 if the bucket has no upper bound
	AboutMS float64 `json:"about_ms"` // if the bucket is filled evenly; its lower bound if it has no upper one
}

// latency is of a histogram in units of so many milliseconds.
func (h histogram) latency(unit float64) latency {
	if h.count == 0 {
		return latency{}
	}
	return latency{Values: h.count, MeanMS: h.sum / h.count * unit, Median: h.quantile(0.5, unit), P99: h.quantile(0.99, unit)}
}

// quantile is where a share of the values is below.
func (h histogram) quantile(share, unit float64) quantile {
	rank := share * h.count
	low, under := 0.0, 0.0
	for i, bound := range h.bounds {
		if h.below[i] >= rank && h.below[i] > under && !math.IsInf(bound, 1) {
			return quantile{low * unit, bound * unit, (low + (bound-low)*(rank-under)/(h.below[i]-under)) * unit}
		}
		if !math.IsInf(bound, 0) {
			low = bound
		}
		under = max(under, h.below[i])
	}
	return quantile{FromMS: low * unit, AboutMS: low * unit} // in the last bucket
}
