package rail

import (
	"math"
	"time"
)

// A Sample is what the rails had done at a moment.
type Sample struct {
	At     time.Duration `json:"at_ns"`        // since the load began to count
	Bytes  []int64       `json:"bytes"`        // completed, by rail, since then
	Resent []int64       `json:"resent_bytes"` // posted again, by rail, since then
}

// A timeline is the samples of a run, in their order, the first at 0.
type timeline []Sample

// at interpolates what a rail had completed.
func (tl timeline) at(rail int, t time.Duration) float64 {
	n := len(tl)
	switch {
	case n == 0:
		return 0
	case t <= tl[0].At:
		return float64(tl[0].Bytes[rail])
	case t >= tl[n-1].At:
		return float64(tl[n-1].Bytes[rail])
	}
	i := tl.index(t)
	a, b := &tl[i-1], &tl[i]
	part := float64(t-a.At) / float64(b.At-a.At)
	return float64(a.Bytes[rail]) + part*float64(b.Bytes[rail]-a.Bytes[rail])
}

// index is the first sample at t or later; len(tl) if there is none.
func (tl timeline) index(t time.Duration) int {
	low, high := 0, len(tl)
	for low < high {
		if mid := (low + high) / 2; tl[mid].At < t {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// Rate is what a rail completed in [from, to), in bytes a second.
func (tl timeline) Rate(rail int, from, to time.Duration) float64 {
	if to <= from {
		return 0
	}
	return (tl.at(rail, to) - tl.at(rail, from)) / (to - from).Seconds()
}

func (tl timeline) End() time.Duration {
	if len(tl) == 0 {
		return 0
	}
	return tl[len(tl)-1].At
}

// gap is the longest time in [from, to) in which nothing completed on any rail.
func (tl timeline) gap(from, to time.Duration) (longest time.Duration) {
	began, last := from, int64(-1)
	for i := range tl {
		s := &tl[i]
		sum := int64(0)
		for _, n := range s.Bytes {
			sum += n
		}
		if s.At <= from {
			last = sum
			continue
		}
		if s.At > to {
			break
		}
		if sum != last {
			began, last = s.At, sum
			continue
		}
		longest = max(longest, s.At-began)
	}
	return longest
}

// dip is over how long a rate is called a dip.
const dip = 100 * time.Millisecond

// worst is the lowest rate of all rails over a [dip] within [from, to), in bytes a
// second.
func (tl timeline) worst(rails int, from, to time.Duration) float64 {
	lowest := math.Inf(1)
	for i := tl.index(from); i < len(tl) && tl[i].At+dip <= to; i++ {
		sum := 0.0
		for r := range rails {
			sum += tl.Rate(r, tl[i].At, tl[i].At+dip)
		}
		lowest = min(lowest, sum)
	}
	if math.IsInf(lowest, 1) {
		return 0
	}
	return lowest
}

// resent is how many bytes were posted again in [from, to).
func (tl timeline) resent(from, to time.Duration) (sum int64) {
	count := func(t time.Duration) (n int64) {
		if i := min(tl.index(t), len(tl)-1); i >= 0 {
			for _, v := range tl[i].Resent {
				n += v
			}
		}
		return n
	}
	return count(to) - count(from)
}

const (
	// steadyFor is over how long a rate must hold to be called recovered.
	steadyFor = 500 * time.Millisecond
	// recoveredAt is that rate, as a share of what the rails should do.
	recoveredAt = 0.95
	// returnedAt is that of a rail that has come back: its share is small, and moves
	// more.
	returnedAt = 0.90
	// followsAt is that of a rail that has become slow: half a second of it is some
	// ten slices.
	followsAt = 0.80
)

// since is the first moment from start on at which the rails' summed rate over
// the next [steadyFor] is at least want, and is not in a hole: within a sample that has
// less than half of it. ok is false if there is none before end.
//
// The mean over half a second forgives 25 ms of silence at 95 %; a longer one is
// seen, to its last sample.
func (tl timeline) since(rails []int, want float64, start, end time.Duration) (at time.Duration, ok bool) {
	sum := func(from, to time.Duration) (v float64) {
		for _, r := range rails {
			v += tl.Rate(r, from, to)
		}
		return v
	}
	next := func(t time.Duration) time.Duration {
		if i := tl.index(t + 1); i < len(tl) {
			return tl[i].At
		}
		return math.MaxInt64
	}
	for t := start; t+steadyFor <= end; t = next(t) {
		n := next(t)
		if n == math.MaxInt64 {
			break
		}
		if sum(t, t+steadyFor) >= want && sum(t, n) >= want/2 {
			return t, true
		}
	}
	return 0, false
}
