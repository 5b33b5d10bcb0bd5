package report

import (
	"cmp"
	"math"
	"slices"
)

// Timelines are for the eye: whether the load was what was asked for, and whether the server kept
// up with it. Their bins are as wide as a plot can show, and nothing is computed from them but
// the peak of output tokens, whose bins are whole seconds.

// A flight is how many requests were in flight, and when.
type flight struct {
	steps []step
	peak  int
	area  float64 // request-seconds
}

// A step is a moment, in seconds since the run's start, from which on so many requests are in flight.
type step struct {
	at       float64
	requests int
}

// inFlight sweeps over the moments at which requests were sent and over. Of two at one
// moment the end comes first: a request that takes the place of another is not at once with it.
func (r *Run) inFlight() flight {
	type edge struct {
		at    float64
		delta int
	}
	var edges []edge
	var f flight
	for i := range r.Records {
		rec := &r.Records[i]
		if rec.Skipped || rec.Finish <= rec.Sent {
			continue
		}
		edges = append(edges, edge{rec.Sent, 1}, edge{rec.Finish, -1})
		f.area += rec.Finish - rec.Sent
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.delta, b.delta)) })
	n := 0
	for i, e := range edges {
		n += e.delta
		f.peak = max(f.peak, n)
		if i+1 == len(edges) || edges[i+1].at > e.at {
			f.steps = append(f.steps, step{e.at, n})
		}
	}
	return f
}

// binsWanted is how many points a timeline has at most: more show noise, a
// few requests each.
const binsWanted = 60

// bin is the width of a timeline's bins, in seconds: a round one.
func (r *Run) bin() float64 {
	least := r.Duration / binsWanted
	if least <= 0 {
		return 1
	}
	decade := math.Pow10(int(math.Floor(math.Log10(least))))
	for _, m := range []float64{1, 2, 5} {
		if m*decade >= least {
			return m * decade
		}
	}
	return 10 * decade
}

// bins counts into bins of a width in seconds, from the run's start to the last moment that counts.
type bins struct {
	width  float64
	counts []float64
}

func (b *bins) add(at, n float64) {
	i := int(at / b.width)
	if i < 0 || n == 0 {
		return
	}
	for len(b.counts) <= i {
		b.counts = append(b.counts, 0)
	}
	b.counts[i] += n
}

// rates are the counts a second.
func (b *bins) rates() []float64 {
	for i := range b.counts {
		b.counts[i] /= b.width
	}
	return b.counts
}

// peakOutput is the most output tokens in a second that begins with a whole second of the run.
// Only seconds in which a token came are kept: a run may last for years of virtual time.
func (r *Run) peakOutput() (most float64) {
	seconds := map[int]float64{}
	for i := range r.Records {
		for at, tokens := range chunks(&r.Records[i]) {
			if at >= 0 {
				seconds[int(at)] += tokens
			}
		}
	}
	for _, tokens := range seconds {
		most = max(most, tokens)
	}
	return most
}

// tokenRate is output tokens a second, by bins: those of each chunk at its time.
func (r *Run) tokenRate(width float64) []float64 {
	b := bins{width: width}
	for i := range r.Records {
		for at, tokens := range chunks(&r.Records[i]) {
			b.add(at, tokens)
		}
	}
	return b.rates()
}

// requestRates are requests sent, and requests that failed, a second by bins. A request counts as
// sent in the bin of its sending and as failed in that of its end, so the second curve trails
// the first by what a failure takes: nothing of a refused connection, the timeout of a server
// that hangs.
func (r *Run) requestRates(width float64) (sent, failed []float64) {
	all, bad := bins{width: width}, bins{width: width}
	for i := range r.Records {
		rec := &r.Records[i]
		if rec.Skipped {
			continue
		}
		all.add(rec.Sent, 1)
		if rec.Failure() != "" {
			bad.add(rec.Finish, 1)
		}
	}
	return all.rates(), bad.rates()
}
