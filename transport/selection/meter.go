package selection

import (
	"math"
	"time"
)

// A Meter learns what a path delivers, in bytes per second of the time that it has
// bytes under way. It is a pure function of what it is told.
//
//	sample   bytes completed / busy time, over meterSpan of busy time
//	rate     += (sample - rate) * (1 - exp(-span/meterMemory))
//
// so that an estimate follows a change within three times meterMemory however often
// completions come. A path that carries little is not seen at its best: its rate is
// a lower bound, which load corrects.
type Meter struct {
	rate  float64 // 0 before the first sample
	peak  float64 // highest rate
	taken time.Duration

	span  time.Duration // busy time not yet in a sample
	bytes int64         // completed in it
	from  time.Duration // when the last part of it ended, while busy
	busy  bool
}

const (
	meterSpan   = 10 * time.Millisecond
	meterMemory = 30 * time.Millisecond
	// meterRest is how long a path without traffic keeps its estimate: after that it
	// doubles in each such time, up to the peak. A path that was slow gets the chance
	// to show that it is not any more.
	meterRest = 500 * time.Millisecond
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
	}
	m.from, m.busy = now, !idle
	m.bytes += bytes
	if m.bytes == 0 || m.span <= 0 || m.span < meterSpan && m.rate > 0 {
		return
	}
	sample := float64(m.bytes) / m.span.Seconds()
	if m.rate == 0 {
		m.rate = sample
	} else {
		m.rate += (sample - m.rate) * -math.Expm1(-m.span.Seconds()/meterMemory.Seconds())
	}
	m.peak = max(m.peak, m.rate)
	m.taken, m.span, m.bytes = now, 0, 0
}

// Stop says that nothing is under way because the connection was lost. One that
// made no progress is not expected to be as fast next time.
func (m *Meter) Stop(stalled bool) {
	m.busy, m.span, m.bytes = false, 0, 0
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
	if open := m.span + now - m.from; open > 2*meterSpan {
		return min(m.rate, max(float64(m.bytes)/open.Seconds(), m.rate*meterSpan.Seconds()/open.Seconds()))
	}
	return m.rate
}

// Rate is what was measured last, without what has happened since.
func (m *Meter) Rate() float64 { return m.rate }
