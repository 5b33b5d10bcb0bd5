package selection

import (
	"math"
	"slices"
	"time"
)

// A Meter learns what a path delivers, in bytes per second of the time that it has
// bytes under way. It is a pure function of what it is told.
//
//	sample   bytes completed / busy time, over a span of meterSpan of busy time,
//	         or of the path's latency: what is posted at once completes at once
//	rate     += (sample - rate) * (1 - exp(-span/(meterMemory*latest span)))
//
// so that an estimate follows a change within nine spans however often
// completions come. A path that carries little is not seen at its best: its rate is
// a lower bound, which load corrects.
//
// Best is the highest rate of the latest spans, longer ones. What a path may have under way goes
// by it: rates that are low because completions came late would have less be under way, and
// so be lower yet.
type Meter struct {
	Latency Latency

	rate  float64 // 0 before the first sample
	peak  float64 // highest rate
	taken time.Duration

	total time.Duration // busy time in samples
	span  time.Duration // busy time not yet in a sample
	bytes int64         // completed in it
	wide  time.Duration // and those of the next of best
	many  int64
	best  [bestSpans]float64 // a ring
	next  int
	from  time.Duration // when the last part of it ended, while busy
	busy  bool
}

const (
	bestSpans   = 8
	bestSpan    = 25 * time.Millisecond // or the path's latency: a frame of 1 MiB more or less is little
	meterSpan   = 10 * time.Millisecond
	meterMemory = 3 // spans
	// meterRest is how long a path without traffic keeps its estimate: after that it
	// doubles in each such time, up to the peak. A path that was slow gets the chance
	// to show that it is not any more.
	meterRest = 500 * time.Millisecond
	// A connection that has been busy for less than meterYoung round trips is as fast as it will
	// be only later: slow start takes ten from a window of 14 kB to one of 14 MB.
	meterYoung = 20
)

// Start says that bytes are under way, where there were none.
func (m *Meter) Start(now time.Duration) {
	if !m.busy {
		m.busy, m.from = true, now
	}
}

// Completed takes bytes that came through. idle says that none are left under way.
func (m *Meter) Completed(now time.Duration, bytes int64, idle bool) {
	if m.busy {
		m.span += now - m.from
		m.wide += now - m.from
	}
	m.from, m.busy = now, !idle
	m.bytes += bytes
	m.many += bytes
	if m.many > 0 && m.wide >= max(bestSpan, m.Latency.Least()) {
		m.best[m.next%bestSpans] = float64(m.many) / m.wide.Seconds()
		m.next++
		m.wide, m.many = 0, 0
	}
	least := m.least()
	if m.bytes == 0 || m.span <= 0 || m.span < least && m.rate > 0 {
		return
	}
	sample := float64(m.bytes) / m.span.Seconds()
	if m.rate == 0 {
		m.rate = sample
	} else {
		m.rate += (sample - m.rate) * -math.Expm1(-float64(m.span)/float64(meterMemory*least))
	}
	m.peak = max(m.peak, m.rate)
	m.total += m.span
	m.taken, m.span, m.bytes = now, 0, 0
}

// Expected is the latency, as long as the path is used: what it was when it was last used does not
// keep a path from the chance to show that it is better now.
func (m *Meter) Expected(now time.Duration) time.Duration {
	if !m.busy && now-m.from > meterRest {
		return 0
	}
	return m.Latency.Least()
}

// Young says that the rate may be that of TCP's slow start, which says little of the path.
func (m *Meter) Young() bool { return m.total < meterYoung*m.Latency.Least() }

// least is the span of a sample.
func (m *Meter) least() time.Duration { return max(meterSpan, m.Latency.Least()) }

// Stop says that nothing is under way because the connection was lost. One that
// made no progress is not expected to be as fast next time.
func (m *Meter) Stop(stalled bool) {
	m.busy, m.span, m.bytes = false, 0, 0
	m.Latency.Stop()
	m.total, m.wide, m.many, m.best = 0, 0, 0, [bestSpans]float64{}
	if stalled {
		m.rate /= 8
		m.peak = m.rate
	}
}

// Estimate is the rate now, or 0 if there is none yet.
func (m *Meter) Estimate(now time.Duration) float64 {
	if m.rate == 0 {
		return 0
	}
	if !m.busy {
		if n := float64(now-m.taken) / float64(meterRest); n > 1 {
			return min(m.rate*math.Exp2(min(n-1, 60)), m.peak)
		}
		return m.rate
	}
	// What it has not delivered for a while counts before its sample is complete.
	if open, least := m.span+now-m.from, m.least(); open > 2*least {
		return min(m.rate, max(float64(m.bytes)/open.Seconds(), m.rate*least.Seconds()/open.Seconds()))
	}
	return m.rate
}

// Best is the highest rate of late, or 0 if there is none yet. Of a path that is silent it falls as
// Estimate does.
func (m *Meter) Best(now time.Duration) float64 {
	estimate := m.Estimate(now)
	best := slices.Max(m.best[:])
	if m.rate > 0 && estimate < m.rate {
		best *= estimate / m.rate
	}
	return max(best, estimate)
}

// Rate is what was measured last, without what has happened since.
func (m *Meter) Rate() float64 { return m.rate }
