package selection

import "time"

// A Latency learns how long a path takes at least from posting a slice to its completion: the
// path's own time, without what waits on it. It is a pure function of what it is told.
//
// The least of latencySpan is taken for it. On a path that is never idle every completion waits
// behind others, so once that is old, or all completions of latencyLate take longer than what
// is under way explains, it is measured anew: Probing is true until something has completed that
// was posted since, and meanwhile the path is to have little under way. The idea is BBR's
// (draft-cardwell-iccrg-bbr-congestion-control, 4.3.4).
type Latency struct {
	least time.Duration // 0 before the first completion
	seen  time.Duration // when it was last as short

	recent time.Duration // least since from
	from   time.Duration

	probe time.Duration // since when it is measured anew; 0: it is not
}

const (
	latencySpan = 5 * time.Second // a probe costs half of a completion time: 1 % at 100 ms
	latencyLate = time.Second
	// lateness is how much more than its explanation a completion time is no noise.
	lateness = 2
)

// Start takes what the rail knows of a new connection's round trip, which is less than any
// completion takes, or 0.
func (l *Latency) Start(now, roundTrip time.Duration) { l.settle(now, roundTrip) }

// Completed takes a slice that was posted at a time. explained is how long it may have taken by
// what the path may have under way and delivers. 0 is of a path that takes all it gets: the
// latency of such a one cannot be measured anew. roundTrip is what the rail knows, 0 if nothing:
// a completion may take several of them, as in TCP's slow start.
func (l *Latency) Completed(now, posted, explained, roundTrip time.Duration) {
	took := now - posted
	if roundTrip > 0 {
		took = min(took, roundTrip)
	}
	switch {
	case took <= 0:
		return
	case l.least == 0, took <= l.least:
		l.settle(now, took)
		return
	case l.probe > 0:
		if posted >= l.probe {
			l.settle(now, took)
		}
		return
	}
	if l.recent == 0 || took < l.recent {
		l.recent = took
	}
	if explained == 0 || now-l.from < latencyLate {
		return
	}
	late := l.recent > lateness*explained
	l.recent, l.from = 0, now
	if late || now-l.seen > latencySpan {
		l.probe = now
	}
}

func (l *Latency) settle(now, least time.Duration) {
	*l = Latency{least: least, seen: now, from: now}
}

// Least is 0 if nothing has completed yet.
func (l *Latency) Least() time.Duration { return l.least }

// Probing says that the path is to have little under way, for Least to be measured.
func (l *Latency) Probing() bool { return l.probe > 0 }

// Stop says that the connection was lost: the next one may go another way.
func (l *Latency) Stop() { *l = Latency{} }
