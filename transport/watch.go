package transport

import (
	"fmt"
	"time"

	"kvferry/transport/selection"
)

// This file is how paths are found that are dead although their connection stands.

// rouse has watch look at the paths often: slices are under way.
func (g *peer) rouse() {
	if g.drowsy.CompareAndSwap(true, false) {
		select {
		case g.busy <- struct{}{}:
		default:
		}
	}
}

// watchLinger is how long watch goes on to look often after it last saw slices under way: that
// costs less than to be roused for each.
const watchLinger = 100 * time.Millisecond

// watchShare is what a look at one peer's paths may take of the machine while as much is spent on
// each other: 5 us, of 100.
const watchShare = 100 * time.Microsecond

// watch gives up connections that make no progress while others are there to carry
// their slices.
func (g *peer) watch() {
	seldom := g.e.cfg.StallTimeout / 4
	tick := time.NewTimer(seldom)
	defer tick.Stop()
	var silence selection.Silence
	var looked, checked, used time.Duration
	often := false
	defer func() { g.often(often, false) }()
	for {
		select {
		case <-g.stop:
			return
		case <-g.busy:
		case <-tick.C:
		}
		now := g.e.cfg.Clock.Now()
		signs := make([]selection.Sign, len(g.paths))
		g.drowsy.Store(now-used > watchLinger) // before it looks: who posts after that rouses it
		for i, p := range g.paths {
			if signs[i] = p.look(looked); signs[i].Waiting {
				used = now
			}
		}
		looked = now
		poke, leave := silence.Step(now, signs)
		for i, p := range g.paths {
			if poke&(1<<i) != 0 {
				p.poke()
			}
			if leave&(1<<i) != 0 {
				p.leave()
				if x := p.express.Load(); x != nil {
					x.leave()
				}
			}
		}
		if now-checked >= seldom {
			checked = now
			for _, p := range g.all() {
				if g.otherUp(p) {
					p.checkProgress(now)
				}
			}
			g.dispatch() // rates have changed without completions
		}
		busy := now-used <= watchLinger
		others := g.often(often, busy)
		often = busy
		if busy {
			g.drowsy.Store(false)
			tick.Reset(max(selection.SilenceLook, time.Duration(others)*watchShare))
		} else {
			tick.Reset(seldom)
		}
	}
}

// often counts the peers that are looked at often.
func (g *peer) often(was, is bool) int64 {
	switch {
	case is && !was:
		return g.e.watched.Add(1)
	case was && !is:
		return g.e.watched.Add(-1)
	}
	return g.e.watched.Load()
}

// gauge looks at what the protocol of the connection knows of it. The caller holds p.mu and
// p.meterMu.
func (p *path) gauge() {
	if g := p.conn.gauge; g != nil {
		p.flow = g.Gauge()
	}
}

// advanced says whether anything has come through since the last look at the gauge. That is progress,
// but for the answer to a poke. The caller holds p.mu and p.meterMu.
func (p *path) advanced() bool {
	moved := p.flow.Moved
	if p.gauge(); p.flow.Moved == moved {
		return false
	}
	if !p.poked {
		p.progress = p.e.cfg.Clock.Now()
	}
	p.poked = false
	return true
}

// look is what the path has shown since a time.
func (p *path) look(since time.Duration) (s selection.Sign) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		return s
	}
	if p.conn.gauge == nil {
		return selection.Sign{Up: true, Alive: p.progress >= since} // nobody knows better
	}
	s = selection.Sign{Up: true, Waiting: p.posted > 0, Alive: p.progress >= since}
	if x := p.express.Load(); x != nil && x.inflight.Load() > 0 {
		s.Waiting = true // it goes the same way
	}
	p.meterMu.Lock()
	defer p.meterMu.Unlock()
	s.Alive = p.advanced() || s.Alive || p.flow.Unheard < 2*selection.SilenceLook
	s.Asked, s.Answer = p.flow.Asked, p.flow.RoundTrip+p.flow.Jitter
	s.Lost = p.flow.Resent
	return s
}

// poke has the peer show that it can be reached.
func (p *path) poke() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil && p.conn.gauge != nil {
		p.poked = true
		p.conn.gauge.Poke()
	}
}

// leave gives up a connection over which the peer does not answer, while it does over another.
func (p *path) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		return
	}
	p.lastErr = fmt.Errorf("%w: it does not answer, and does over another path: nothing was heard for %v, %d slices are under way",
		ErrUnreachable, p.flow.Unheard, p.posted)
	p.lose(p.conn, PathStalled, p.lastErr)
}

// checkProgress gives up a connection on which slices are posted and nothing has
// completed for too long: Config.StallTimeout, or four times what they should take.
func (p *path) checkProgress(now time.Duration) {
	c := p.candidate(now)
	limit := max(p.e.cfg.StallTimeout, 4*c.Latency)
	if c.Rate > 0 {
		p.meterMu.Lock()
		expected := 4 * float64(c.Inflight) / p.meter.Rate()
		p.meterMu.Unlock()
		limit = max(limit, min(time.Duration(expected*1e9), 10*limit))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil || p.posted == 0 {
		return
	}
	p.meterMu.Lock()
	p.advanced()
	p.meterMu.Unlock()
	if now-p.progress > limit {
		p.lastErr = fmt.Errorf("%w: no progress for %v with %d slices, %d bytes under way",
			ErrUnreachable, (now - p.progress).Round(time.Millisecond), p.posted, c.Inflight)
		p.lose(p.conn, PathStalled, p.lastErr)
	}
}
