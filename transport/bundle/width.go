package bundle

import "time"

// A Width decides how many connections an endpoint has, by looking at it every Often. What one core
// carries is not asked, it is tried: a path that is fast and always has something under way gets one more
// connection, and keeps it if that has made it faster.
//
//	     leastRate for two spans, all the time busy            gain, in the second span with it
//	steady ───────────────────────────────────────────► trial ─────────────────────────────────► steady, one more
//	  ▲                                                   │
//	  └─── no gain, it cannot be made, or the load ends: ─┘
//	       it is taken back, and the next trial is after
//	       a pause, twice as long each time
//
// A path below leastRate, which every core carries, has one: so has a link of 8 Gbit/s and less. A span in
// which packets were lost counts for nothing, as the path is full. At rest connections go, one by one.
//
// It is a pure function of what it sees.
type Width struct {
	seen         bool          // a span is under way
	start        time.Duration // of the span
	first        Look          // of the span
	before, rate float64       // bytes/s in the last two spans, of as many connections; 0: there was none
	trial        float64       // the rate to beat; 0: there is no trial
	want         int           // connections in the trial
	since        time.Duration // of the trial
	again        time.Duration // the next trial, not sooner
	pause        time.Duration // before it
	idle         time.Duration // since when nothing is under way; 0: something is
}

const (
	// Often is the time between two steps.
	Often = 50 * time.Millisecond

	span       = time.Second
	leastRate  = 1e9 // bytes/s
	gain       = 1.05
	packet     = 1448 // bytes
	lossMost   = 1e-4 // packets of those in a span
	trialMost  = 6 * time.Second
	firstPause = 10 * time.Second
	mostPause  = 10 * time.Minute
	restful    = 10 * time.Second
)

// Step says how many connections more there are to be: 1, 0 or -1.
func (w *Width) Step(now time.Duration, l Look) (more int) {
	if !l.Busy {
		return w.rest(now, l)
	}
	w.idle = 0
	if w.trial > 0 && now-w.since > trialMost {
		return w.fail(now, l)
	}
	lost := float64(int64(l.Resent-w.first.Resent))*packet > lossMost*float64(l.Moved-w.first.Moved)
	if !w.seen || l.Conns != w.first.Conns || l.Moved < w.first.Moved || lost {
		w.before, w.rate = 0, 0
		w.seen, w.start, w.first = true, now, l
		return 0
	}
	took := now - w.start
	if took < span {
		return 0
	}
	w.before, w.rate = w.rate, float64(l.Moved-w.first.Moved)/took.Seconds()
	w.start, w.first = now, l
	switch {
	case w.before == 0: // connections begin slowly
	case w.trial == 0:
		if min(w.before, w.rate) >= leastRate && l.Conns < Most && now >= w.again {
			w.trial, w.want, w.since = max(w.before, w.rate), l.Conns+1, now
			return 1
		}
	case l.Conns == w.want && w.rate < gain*w.trial:
		return w.fail(now, l)
	case l.Conns == w.want:
		w.trial, w.pause = 0, 0
	}
	return 0
}

// fail ends a trial.
func (w *Width) fail(now time.Duration, l Look) (more int) {
	w.pause = min(max(2*w.pause, firstPause), mostPause)
	w.again = now + w.pause
	w.trial, w.seen = 0, false
	if l.Conns == w.want {
		return -1
	}
	return 0
}

// rest is a step of an endpoint that has nothing under way.
func (w *Width) rest(now time.Duration, l Look) (more int) {
	w.seen = false
	if w.trial > 0 {
		return w.fail(now, l)
	}
	if w.idle == 0 {
		w.idle = now
	}
	if l.Conns == 1 || now-w.idle < restful {
		return 0
	}
	w.idle = now
	return -1
}
