package selection

import "time"

// A Record says how far a path is to be trusted to deliver the bytes that it was given,
// by what the owners of batches found. It is a pure function of what it is told.
//
//	              strikesOut strikes within strikeSpan
//	trusted ─────────────────────────────────────────────► resting
//	   ▲                                                    │   ▲
//	   │                        the rest is over: tried again   │ one strike: rests
//	   │                                                    ▼   │ twice as long
//	   └──────────── goodRun batches found right ────────── on trial
//
// A path that rests is not chosen while another to its peer is usable. What is wrong
// need not be the path: it may be the memory at either end, or another path that
// carried a part of the same batch. So it takes several strikes. Of the paths that
// carried a part those take one that had a rest before, if any had, and otherwise all.
// Where all paths to a peer rest the one with the fewest strikes goes on, by itself:
// that tells a bad path from one that kept it company.
type Record struct {
	strikes int             // since the record was clear
	recent  []time.Duration // of them the latest, within strikeSpan
	rest    time.Duration   // length of the last one; 0 if there was none
	until   time.Duration   // its end
	good    int             // batches found right since the last strike
	last    time.Duration   // strike
}

const (
	// strikesOut within strikeSpan are no accident: a bit flips in memory once in
	// days, and a path that spoils one batch in twenty has as many in seconds at a
	// few requests a second.
	strikesOut = 3
	strikeSpan = time.Minute
	// The first rest is about what a failed request takes to be placed again; the
	// longest keeps what is spoilt for good to a batch or two a minute, and has a
	// path that was mended back within one.
	firstRest = time.Second
	mostRest  = time.Minute
	// goodRun batches in a row clear a record: a path that spoils one in ten gets there
	// once in thirty times. A batch that it carried alone, where there are others, says
	// more of it, and counts as goodAlone.
	goodRun   = 32
	goodAlone = 4
	// longAgo is when strikes do not count any more although nobody said that
	// batches were right.
	longAgo = 10 * mostRest
)

// Strike takes a batch that was wrong, and ended at a time. It reports whether the path
// rests from now on.
func (r *Record) Strike(now, ended time.Duration) bool {
	if r.strikes > 0 && now-r.last > longAgo {
		*r = Record{}
	}
	r.strikes++
	r.good, r.last = 0, now
	for len(r.recent) > 0 && now-r.recent[0] > strikeSpan {
		r.recent = r.recent[1:]
	}
	r.recent = append(r.recent, now)
	r.recent = r.recent[max(0, len(r.recent)-strikesOut):]
	switch {
	case now < r.until, r.rest > 0 && ended < r.until:
		return false // it was on its way when the path was put to rest, or nothing else was usable
	case r.rest == 0 && len(r.recent) < strikesOut:
		return false
	}
	r.rest = min(max(2*r.rest, firstRest), mostRest)
	r.until = now + r.rest
	return true
}

// Vouch takes a batch that was right; alone says that the path carried all of it, where
// there are others.
func (r *Record) Vouch(alone bool) {
	n := 1
	if alone {
		n = goodAlone
	}
	if r.good += n; r.good >= goodRun {
		*r = Record{}
	}
}

// Resting says that it is to be left alone for now.
func (r *Record) Resting(now time.Duration) bool { return now < r.until }

// Clear says that there is nothing to remember.
func (r *Record) Clear() bool { return r.strikes == 0 }

// Strikes are how many batches were wrong since the record was clear.
func (r *Record) Strikes() int { return r.strikes }

// Rest is how long the last rest is or was, 0 if there was none: a path that had one is
// the first to be suspected.
func (r *Record) Rest() time.Duration { return r.rest }
