// Package health is what a proxy goes by when it asks whether a node is there, gets on and is
// to be trusted with a request: the terms of leases, a node's progress, the quarantine of
// those that fail, and how long the backlog of prompts makes a request wait. All are state
// machines without a clock: times are the caller's, on one monotonic clock. But for a Backlog
// none may be used by two goroutines at once.
package health

import "time"

// A Pause tells whether the proxy itself stood still for a while: stopped, swapped out, or on
// a machine that was. It then has heard nobody, and knows nothing of anybody. Its step comes
// too late, which is how it finds out.
type Pause struct {
	ttl  time.Duration
	last time.Duration // of step
}

// NewPause is for a proxy that grants leases of ttl, and steps Every.
func NewPause(now, ttl time.Duration) Pause { return Pause{ttl, now} }

// Every is how often to step where leases are of ttl: ten times a lease, and often enough
// for what else goes by it.
func Every(ttl time.Duration) time.Duration {
	return min(max(ttl/10, time.Millisecond), 50*time.Millisecond)
}

// gap is how far apart two steps may lie. Half a lease is more than the two beats in
// three that a node may lose, and the proxy of a busy machine is not that late.
func (p *Pause) gap() time.Duration { return max(p.ttl/2, 100*time.Millisecond) }

// Step reports for how long the proxy stood still, 0 if it did not.
func (p *Pause) Step(now time.Duration) (stood time.Duration) {
	if since := now - p.last; since > p.gap() {
		stood = since
	}
	p.last = now
	return stood
}

// Terms are the ends of the leases that a proxy has granted, as a state machine:
// it has no clock. A lease that nobody renews for ttl is over. After a [Pause] every lease
// gets one fresh term.
type Terms struct {
	ttl   time.Duration
	pause Pause
	ends  map[uint64]time.Duration
}

// NewTerms has no leases. The first Step is due within half of ttl.
func NewTerms(now, ttl time.Duration) *Terms {
	return &Terms{ttl: ttl, pause: NewPause(now, ttl), ends: make(map[uint64]time.Duration)}
}

// Grant starts or renews a lease.
func (t *Terms) Grant(now time.Duration, lease uint64) { t.ends[lease] = now + t.ttl }

// End ends a lease.
func (t *Terms) End(lease uint64) { delete(t.ends, lease) }

// Step returns the leases that are over, and how long nothing was heard if that was
// the proxy's own doing. The leases that are over stay until end.
func (t *Terms) Step(now time.Duration) (over []uint64, stood time.Duration) {
	if stood = t.pause.Step(now); stood > 0 {
		for lease := range t.ends {
			t.ends[lease] = now + t.ttl
		}
	}
	for lease, end := range t.ends {
		if now >= end {
			over = append(over, lease)
		}
	}
	return over, stood
}
