package stats

import (
	"encoding/json"
	"math"
	"slices"
)

// A Sample holds latencies in seconds, in ascending order. Its figures are milliseconds, and 0 of an empty
// Sample, as vLLM's and SGLang's clients have them (numpy.mean(values or 0) * 1000): this is where the two
// units meet.
type Sample []float64

// NewSample sorts values in place, and keeps them: a run of 30,000 requests has six million gaps.
func NewSample(seconds []float64) Sample {
	slices.Sort(seconds)
	return seconds
}

// Sum returns the sum of the values, in seconds. It adds up pairwise, as numpy does: the error grows with
// the logarithm of the count.
func (s Sample) Sum() float64 {
	if len(s) <= 128 {
		total := 0.0
		for _, v := range s {
			total += v
		}
		return total
	}
	half := len(s) / 2
	return s[:half].Sum() + s[half:].Sum()
}

// Mean returns the mean.
func (s Sample) Mean() float64 { return s.Sum() / float64(max(len(s), 1)) * 1000 }

// Std returns the population's standard deviation: it divides by n and not by n - 1 (ddof 0), as numpy.std does
// unless it is told otherwise.
func (s Sample) Std() float64 {
	mean, squares := s.Sum()/float64(max(len(s), 1)), 0.0
	for _, v := range s {
		squares += (v - mean) * (v - mean)
	}
	return math.Sqrt(squares/float64(max(len(s), 1))) * 1000
}

// Percentile is linear between the two nearest ranks, numpy.percentile's default. Of fewer than
// 100 values P99 lies between the greatest two.
func (s Sample) Percentile(p float64) float64 {
	if len(s) == 0 {
		return 0
	}
	return Percentile(s, p) * 1000
}

// Median returns the 50th percentile.
func (s Sample) Median() float64 { return s.Percentile(50) }

// Max returns the greatest value.
func (s Sample) Max() float64 { return s.Percentile(100) }

// Summary returns all figures of the sample.
func (s Sample) Summary() Summary {
	return Summary{len(s), s.Mean(), s.Std(), s.Median(), s.Percentile(90), s.Percentile(95), s.Percentile(99), s.Max()}
}

// A Summary holds the figures of one latency, in milliseconds. They are rounded once, where they are
// written: 11.74502 that is rounded to 11.7450 first is 11.74 then, and 11.75 in a tool's report.
type Summary struct {
	Values int     `json:"values"`
	Mean   float64 `json:"mean"`
	Std    float64 `json:"std"`
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
	P95    float64 `json:"p95"`
	P99    float64 `json:"p99"`
	Max    float64 `json:"max"`
}

// Rounded returns the figures to a tenth of a microsecond.
func (s Summary) Rounded() Summary {
	for _, v := range []*float64{&s.Mean, &s.Std, &s.Median, &s.P90, &s.P95, &s.P99, &s.Max} {
		*v = Round(*v, 4)
	}
	return s
}

// MarshalJSON writes the figures Rounded.
func (s Summary) MarshalJSON() ([]byte, error) {
	type plain Summary // without this method
	return json.Marshal(plain(s.Rounded()))
}

// Brief returns the three figures that are published of a latency, rounded.
func (s Summary) Brief() (mean, median, p99 float64) {
	s = s.Rounded()
	return s.Mean, s.Median, s.P99
}

// Figures are the figures of a Summary by the names that they have in JSON.
var Figures = []struct {
	Name string
	Of   func(Summary) float64
}{
	{"mean", func(s Summary) float64 { return s.Mean }},
	{"median", func(s Summary) float64 { return s.Median }},
	{"p90", func(s Summary) float64 { return s.P90 }},
	{"p95", func(s Summary) float64 { return s.P95 }},
	{"p99", func(s Summary) float64 { return s.P99 }},
	{"max", func(s Summary) float64 { return s.Max }},
	{"std", func(s Summary) float64 { return s.Std }},
}

// Median returns the median of values in any order, which must not be empty.
func Median(values []float64) float64 {
	return Percentile(slices.Sorted(slices.Values(values)), 50)
}

// TPOT returns the mean time per output token after the first: (last - first) / (tokens - 1), where first and
// last are the times of those tokens in seconds. ok is false for fewer than two tokens.
func TPOT(first, last float64, tokens int) (seconds float64, ok bool) {
	if tokens < 2 {
		return 0, false
	}
	return (last - first) / float64(tokens-1), true
}
