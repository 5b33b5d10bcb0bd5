package transport

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// This file is how a path gets its connections.

// connect starts dialing unless that is under way. The caller holds p.mu.
func (p *path) connect() {
	if p.conn == nil && !p.busy && !p.closed && p.e.spawn(func() { p.dial(nil) }) {
		p.busy = true
	}
}

// prepare connects ahead of the first slice.
func (p *path) prepare() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		p.warm = true
		p.connect()
	}
}

// dial closes the old connection and makes a new one, if slices wait for it.
// Once a Dial has failed it goes on until one succeeds or the path is closed.
func (p *path) dial(old *connection) {
	if old != nil {
		_ = old.ep.Close()
		p.acct.Conns.Add(-1)
		p.peer.evacuate(p)
	}
	for failing := false; ; failing = true {
		p.mu.Lock()
		if p.closed || len(p.queue) == 0 && !p.warm && !(failing && p.bulk == nil) {
			p.busy = false
			p.mu.Unlock()
			return
		}
		backoff, patience := p.backoff, p.e.cfg.DialTimeout
		if p.peer.otherUp(p) {
			// A link that is back is noticed by the next attempt, so there are many,
			// and they are short: a lost SYN is sent again only after a second.
			backoff = min(backoff, p.e.cfg.ProbeInterval)
			if p.tries%8 != 7 {
				patience = min(patience, p.e.cfg.ProbeInterval+10*p.flow.RoundTrip)
			}
		}
		wait := p.tried + backoff - p.e.cfg.Clock.Now()
		p.mu.Unlock()
		if wait > 0 && !p.pause(wait) {
			continue // closed
		}

		p.mu.Lock()
		p.warm = false
		p.tried = p.e.cfg.Clock.Now()
		p.backoff = min(max(2*p.backoff, p.e.cfg.BackoffMin), p.e.cfg.BackoffMax)
		p.tries++
		p.mu.Unlock()
		ctx, cancel := context.WithTimeout(p.e.ctx, patience)
		connect := p.e.cfg.Rails[p.rail].Dial
		if w, ok := p.e.cfg.Rails[p.rail].(Wide); ok && p.bulk != nil {
			connect = w.DialOne
		}
		ep, err := connect(ctx, p.addr())
		cancel()
		p.acct.Dialed(err)

		if err != nil {
			p.mu.Lock()
			p.lastErr = err
			p.rotate()
			first := p.tries == 1 && !p.paired
			p.mu.Unlock()
			if first {
				p.e.changed(p, p.e.cfg.Clock.Now(), PathDown, err)
			}
			p.peer.evacuate(p)
			continue
		}
		p.mu.Lock()
		p.busy = false
		if p.closed {
			p.mu.Unlock()
			_ = ep.Close()
			return
		}
		p.conn = &connection{ep: ep}
		if g, ok := ep.(Gauge); ok && g.Gauge() != (Flow{}) {
			p.conn.gauge = g
		}
		p.poked = false
		p.conn.carrier, _ = ep.(Carrier)
		p.meterMu.Lock()
		p.flow = Flow{}
		p.gauge()
		p.meter.Latency.Start(p.e.cfg.Clock.Now(), p.flow.RoundTrip)
		p.meterMu.Unlock()
		p.posted, p.paired, p.tries = 0, true, 0
		for _, s := range p.queue { // the rail has told the target which connections are dead
			s.stale = nil
		}
		p.acct.Conns.Add(1)
		p.up.Store(true)
		p.flush()
		c := p.conn
		p.mu.Unlock()
		c.carry()
		p.e.changed(p, p.e.cfg.Clock.Now(), PathUp, nil)
		p.peer.connected(p)
		return
	}
}

// rotate goes on to the next of the peer's rails that the path may go with and that
// no connected path has, as long as this one has never been connected: every other
// time if the peer is there, as other paths show, and else every fourth time. The
// caller holds p.mu.
func (p *path) rotate() {
	every := 4
	if p.peer.otherUp(p) {
		every = 2
	}
	if p.paired || len(p.addrs) == 1 || p.tries%every != 0 {
		return
	}
	for range p.addrs {
		p.at.Store((p.at.Load() + 1) % int32(len(p.addrs)))
		if !slices.ContainsFunc(p.peer.paths, func(q *path) bool { return q != p && q.up.Load() && q.addr() == p.addr() }) {
			break
		}
	}
	for _, s := range p.queue {
		s.Key = s.target.keys[p.addr()]
	}
}

// pause waits up to a quarter longer than d, so that the paths of many nodes
// do not return to a restarted peer together. It is false if the path closed.
func (p *path) pause(d time.Duration) bool {
	t := time.NewTimer(d + rand.N(d/4+1))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.stop:
		return false
	}
}
