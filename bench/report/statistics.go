package report

import (
	"maps"
	"math"
	"slices"

	"kvferry/bench/stats"
)

// A sample is values in ascending order, in seconds. Whoever asks for its figures gets
// milliseconds: that is where the two units meet, and nowhere else.
type sample []float64

// newSample sorts values in place, and keeps them: a run of 30,000 requests has six million gaps.
func newSample(values []float64) sample {
	slices.Sort(values)
	return values
}

// The figures of a sample are milliseconds, and 0 of an empty one, as both tools have them
// (numpy.mean(values or 0) * 1000). std is the population's, numpy's default.

func (s sample) mean() float64 {
	if len(s) == 0 {
		return 0
	}
	return sum(s) / float64(len(s)) * 1000
}

// std divides by n and not by n - 1 (ddof 0), as numpy.std does unless it is told otherwise.
func (s sample) std() float64 {
	if len(s) == 0 {
		return 0
	}
	mean, squares := sum(s)/float64(len(s)), 0.0
	for _, v := range s {
		squares += (v - mean) * (v - mean)
	}
	return math.Sqrt(squares/float64(len(s))) * 1000
}

// percentile is linear between the two nearest ranks, numpy.percentile's default. Of fewer than
// 100 values P99 lies between the greatest two.
func (s sample) percentile(p float64) float64 {
	if len(s) == 0 {
		return 0
	}
	return stats.Percentile(s, p) * 1000
}

func (s sample) median() float64 { return s.percentile(50) }

func (s sample) max() float64 { return s.percentile(100) }

// sum adds up pairwise, as numpy does: the error grows with the logarithm of the count.
func sum(values []float64) float64 {
	if len(values) <= 128 {
		total := 0.0
		for _, v := range values {
			total += v
		}
		return total
	}
	half := len(values) / 2
	return sum(values[:half]) + sum(values[half:])
}

// per is n a second; 0 in no time, which is the duration of a run that did not begin, and where
// the tools would divide by 0.
func per(n, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return n / seconds
}

// peaks are the most tokens in a second and the most requests in one, as both tools count
// them: seconds begin with the first request that succeeded; a token is one at the time of
// its chunk, however many the chunk brought; a request counts in each second that it touches,
// so the peak may be above what was ever at once (calculate_metrics in both serving files).
func peaks(all []seen) (tokens float64, requests int) {
	first, last := math.Inf(1), 0.0
	for i := range all {
		if s := &all[i]; s.ok {
			first, last = min(first, s.start), max(last, s.start+s.latency)
		}
	}
	if math.IsInf(first, 1) {
		return 0, 0
	}
	// Seconds in which something was are kept, and no others: a run may last for years of
	// virtual time.
	n := int(math.Ceil(last-first)) + 1
	perSecond, change := map[int]int{}, map[int]int{}
	for i := range all {
		s := &all[i]
		if !s.ok {
			continue
		}
		at := s.start + s.ttft
		count := func() {
			if second := int(at - first); second >= 0 && second < n {
				perSecond[second]++
			}
		}
		count()
		for _, gap := range s.itl() {
			at += gap
			count()
		}
		change[int(s.start-first)]++
		change[min(int(s.start+s.latency-first), n-1)+1]--
	}
	most, now := 0, 0
	for _, second := range slices.Sorted(maps.Keys(change)) {
		now += change[second]
		most = max(most, now)
	}
	for _, k := range perSecond {
		tokens = max(tokens, float64(k))
	}
	return tokens, most
}
