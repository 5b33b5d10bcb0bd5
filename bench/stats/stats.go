// Package stats computes the numbers that the benches report: percentiles, exact ones of a
// list, and those of any number of durations in a fixed amount of memory; and the
// rounding of what goes into files. It needs the standard library only.
package stats

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

// Few is how many samples beyond a percentile are too few to trust it: the count of those
// beyond varies by its root, a third of ten.
const Few = 10

// Beyond is how many of n samples lie beyond their percentile p: of 1000, ten beyond the
// 99th. With less than one the percentile is no more than the greatest sample; with less
// than Few it is uncertain.
func Beyond(n int64, p float64) float64 {
	return float64(n) * (1000 - 10*p) / 1000 // whole numbers for 99.9, which has no float of its own
}
