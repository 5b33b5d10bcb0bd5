package report

import (
	"maps"
	"math"
	"slices"
)

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
