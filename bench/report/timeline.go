package report

import (
	"math"

	"kvferry/bench/client"
)

// Timelines are for the eye: whether the load was what was asked for, and whether the server kept
// up with it. Their bins are as wide as a plot can show, and nothing is computed from them but
// the peak of output tokens, whose bins are whole seconds.

// inFlight returns the requests in flight over time. Failed requests count too.
func (r *Run) inFlight() client.Flight {
	return client.InFlight(func(yield func(*client.Record) bool) {
		for i := range r.Records {
			if !yield(&r.Records[i]) {
				return
			}
		}
	})
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
