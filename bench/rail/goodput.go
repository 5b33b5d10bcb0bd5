package rail

// This file finds out how fast bytes arrive, of a load that begins with empty windows: what
// has arrived is watched until the rate is steady, and until enough of that was seen. It is the
// same for a path of 10 Mbit/s with a round trip of 100 ms and for memory.
//
// A [rateMeter] is a pure state machine; [Watch] has the clock.
//
//	filling   turns, of the time that the first byte took or more: the rate of one is no more than
//	          growth times the best so far, three times in a row
//	steady    for Least at the least, and steadyTurns, and steadyGaps of the longest time in which
//	          nothing came; if its two halves differ then, the older one is forgotten, and it goes on
//	enough    when they agree, or when Most is over
//
// Bytes come in lumps: a packet that was lost holds back all that came after it. So the rate is
// that between two moments when nothing was held back, as what has arrived lay highest above its
// mean course: all that was counted between them has come between them, and the rate is never
// above the link's.
//
// Rates are bytes a second.

import (
	"context"
	"time"
)

// A ratePhase is a phase of a rateMeter.
type ratePhase int

// Phases, in their order.
const (
	filling ratePhase = iota
	steady
	enough
)

const (
	leastTurn   = 20 * time.Millisecond
	growth      = 1.25 // a window that grows doubles the rate in a round trip
	flatTurns   = 3
	steadyTurns = 10
	steadyGaps  = 8
	agree       = 0.04 // of two halves, by what they differ
	samples     = 1000 // in the least time
	refine      = 3

	// What is to be under way is windowGain times what arrives in a round trip and windowTime, so
	// that the load can double its rate in one and never waits for itself: blocks that are posted
	// together may be acknowledged together.
	windowGain  = 4
	windowTime  = 20 * time.Millisecond
	leastWindow = 4 * leastBlock

	// leastBlock is a block that arrives in 50 ms at 10 Mbit/s, mostBlock one that costs little more
	// than its bytes.
	leastBlock = 64 << 10
	mostBlock  = 1 << 20
	blockTime  = 5 * time.Millisecond
)

// rateBlock returns the block size for a rate: large on fast links, and on slow ones small enough to show when blocks
// arrive.
func rateBlock(rate float64) int64 {
	block := int64(leastBlock)
	for block < mostBlock && float64(2*block) <= rate*blockTime.Seconds() {
		block *= 2
	}
	return block
}

// A rateMeter watches what arrives.
type rateMeter struct {
	Least time.Duration // that a steady rate is watched
	Most  time.Duration // that all of it takes

	phase   ratePhase
	started bool
	began   time.Duration
	turn    time.Duration // 0 until something has arrived
	begun   int64         // bytes that arrived first, at the end of the first turn
	best    float64       // rate of a turn
	flat    int           // turns since
	last    sample        // at the end of the last turn
	samples []sample      // of the steady rate
	gap     time.Duration // the longest without any
}

type sample struct {
	at      time.Duration
	arrived int64
}

func rate(a, b sample) float64 { return float64(b.arrived-a.arrived) / (b.at - a.at).Seconds() }

// Step takes the bytes that have arrived by now, since the load began.
func (m *rateMeter) Step(now time.Duration, arrived int64) ratePhase {
	s := sample{now, arrived}
	switch {
	case !m.started:
		m.started, m.began, m.last = true, now, s
	case m.turn == 0 && arrived == m.last.arrived:
	case m.turn == 0:
		m.turn, m.last, m.begun = max(now-m.began, leastTurn), s, arrived
	case now-m.last.at >= m.turn:
		m.endTurn(s)
	}
	if m.phase == filling && now-m.began >= m.Most/2 {
		m.phase = steady
	}
	if m.phase == steady {
		m.watch(s)
	}
	if now-m.began >= m.Most {
		m.phase = enough
	}
	return m.phase
}

func (m *rateMeter) endTurn(s sample) {
	r := rate(m.last, s)
	m.last = s
	m.flat++
	if r > growth*m.best {
		m.flat = 0
	}
	m.best = max(m.best, r)
	if m.phase == filling && m.flat >= flatTurns {
		m.phase = steady
	}
}

// watch looks at the steady rate.
func (m *rateMeter) watch(s sample) {
	if n := len(m.samples); n > 0 {
		gap := s.at - m.samples[n-1].at
		if s.arrived == m.samples[n-1].arrived || gap < m.Least/samples {
			return
		}
		m.gap = max(m.gap, gap)
	}
	least := max(m.Least, steadyTurns*m.turn, steadyGaps*m.gap)
	m.samples = append(m.samples, s)
	first := m.samples[0]
	if s.at-first.at < least {
		return
	}
	half := after(m.samples, first.at+(s.at-first.at)/2)
	if half == len(m.samples)-1 {
		return // nothing came for long, and there is no rate in one half
	}
	a, _ := between(m.samples[:half+1])
	b, _ := between(m.samples[half:])
	if d := (a - b) / max(a, b); d <= agree && -d <= agree {
		m.phase = enough
		return
	}
	m.samples = m.samples[half:]
}

// after is the first sample that is not before a time, or the last.
func after(all []sample, at time.Duration) int {
	i := 0
	for i < len(all)-1 && all[i].at < at {
		i++
	}
	return i
}

// Window is how many bytes should be under way.
func (m *rateMeter) Window() int64 {
	trip := m.turn.Seconds()
	if m.phase != filling { // the rate is known: the first bytes took their own time, too
		trip = max(0, trip-float64(m.begun)/max(m.best, 1))
	}
	return max(leastWindow, int64(windowGain*m.best*(trip+windowTime.Seconds())))
}

// Rate is how fast bytes arrived, and for how long that was watched; 0 if nothing has arrived twice.
func (m *rateMeter) Rate() (float64, time.Duration) { return between(m.samples) }

// between is the rate from a moment in the first quarter to one in the last, when nothing was held
// back, and how long that is.
func between(all []sample) (float64, time.Duration) {
	n := len(all)
	if n < 2 {
		return 0, 0
	}
	first, last := all[0], all[n-1]
	quarter := (last.at - first.at) / 4
	early, late := all[:after(all, first.at+quarter+1)], all[after(all, last.at-quarter):]
	for range refine {
		r := rate(first, last)
		first, last = highest(early, r), highest(late, r)
	}
	return rate(first, last), last.at - first.at
}

// highest is the sample that lies highest above a line of a slope.
func highest(all []sample, slope float64) sample {
	best, top := all[0], 0.0
	for i, s := range all {
		if h := float64(s.arrived) - slope*s.at.Seconds(); i == 0 || h > top {
			best, top = s, h
		}
	}
	return best
}

// look is how often Watch looks.
const look = 2 * time.Millisecond

// Watch watches a load until its rate is known, or it stops. arrived is asked for the bytes so far,
// and window is told how many should be under way.
func (m *rateMeter) Watch(ctx context.Context, stopped <-chan struct{}, now func() time.Duration, arrived func() int64, window func(int64)) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for m.Step(now(), arrived()) != enough {
		window(m.Window())
		select {
		case <-tick.C:
		case <-stopped:
			return
		case <-ctx.Done():
			return
		}
	}
}
