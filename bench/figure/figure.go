// Package figure is what the benches' figures are made of: percentiles, exact ones of a
// list, and those of any number of durations in a fixed amount of memory; and the
// rounding of what goes into files. It needs the standard library only.
package figure

import (
	"math"
	"time"
)

// Percentile is numpy.percentile(sorted, p) with linear interpolation; sorted must not
// be empty. p is from 0 to 100.
func Percentile(sorted []float64, p float64) float64 {
	rank := p / 100 * float64(len(sorted)-1)
	low := int(math.Floor(rank))
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (rank-float64(low))*(sorted[high]-sorted[low])
}

// Round keeps n decimals, so that files of results stay readable; a microsecond is the
// finest thing that any bench resolves.
func Round(v float64, n int) float64 {
	scale := math.Pow10(n)
	return math.Round(v*scale) / scale
}

// Seconds is d in seconds, rounded to the microsecond.
func Seconds(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond).Microseconds()) / 1e6
}
