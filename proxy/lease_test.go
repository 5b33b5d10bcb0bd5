package proxy

import (
	"slices"
	"testing"
	"time"

	"kvferry/clock/clocktest"
	"kvferry/proto"
)

func TestTerms(t *testing.T) {
	const ttl = 3 * time.Second
	s := func(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
	// Each step is a call of step at a time, after the leases in renewed were renewed.
	type step struct {
		at      time.Duration
		renewed []uint64
		over    []uint64
		stood   time.Duration
	}
	for name, steps := range map[string][]step{
		"nobody renews": {
			{at: s(1)}, {at: s(2)}, {at: s(2.9)}, {at: s(3), over: []uint64{1, 2}},
		},
		"one renews": {
			{at: s(1), renewed: []uint64{1}}, {at: s(2)}, {at: s(3), over: []uint64{2}}, {at: s(3.9), over: []uint64{2}}, {at: s(4), over: []uint64{1, 2}},
		},
		"a step that is late by less than half a lease is none": {
			{at: s(1)}, {at: s(2.4)}, {at: s(3.8), over: []uint64{1, 2}},
		},
		"the proxy stood still for a minute": {
			{at: s(1)}, {at: s(61), stood: s(60)}, {at: s(62)}, {at: s(63)}, {at: s(63.9)}, {at: s(64), over: []uint64{1, 2}},
		},
		"and heard of one afterwards": {
			{at: s(1)}, {at: s(61), stood: s(60)}, {at: s(62), renewed: []uint64{2}}, {at: s(63)}, {at: s(64), over: []uint64{1}},
		},
		"it stood still twice": {
			{at: s(1)}, {at: s(31), stood: s(30)}, {at: s(61), stood: s(30)}, {at: s(62)}, {at: s(63)}, {at: s(64), over: []uint64{1, 2}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTerms(0, ttl)
			m.grant(0, 1)
			m.grant(0, 2)
			for _, st := range steps {
				for _, lease := range st.renewed {
					m.grant(st.at, lease)
				}
				over, stood := m.step(st.at)
				slices.Sort(over)
				if !slices.Equal(over, st.over) || stood != st.stood {
					t.Fatalf("at %v: %v are over and it stood for %v, want %v and %v", st.at, over, stood, st.over, st.stood)
				}
			}
			m.end(1)
			m.end(2)
			if over, _ := m.step(m.last + time.Second); over != nil {
				t.Errorf("%v are over after their end", over)
			}
		})
	}
}

// TestTermsBeat: step is called often enough that a gap is one.
func TestTermsBeat(t *testing.T) {
	for _, ttl := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second, 3 * time.Second, time.Minute} {
		m := newTerms(0, ttl)
		if m.every() <= 0 || m.gap() < 2*m.every() || m.every() > ttl/10 {
			t.Errorf("leases of %v: a step every %v, a gap from %v", ttl, m.every(), m.gap())
		}
	}
}

// TestHeardOverItsStream: heartbeats may be held up where ten thousand requests come at
// once. A node whose stream speaks keeps its lease, one that is silent on both loses it.
func TestHeardOverItsStream(t *testing.T) {
	const ttl = clocktest.Patience
	c := newTestCluster(t, Config{LeaseTTL: ttl})
	c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	r := c.proxy.registry
	m := r.snapshot()[0]
	now := c.proxy.clock.Now()
	pass := func(d time.Duration, heard time.Duration) {
		m.mu.Lock()
		m.heard = now + heard
		m.mu.Unlock()
		for end := now + d; now < end; { // in steps, for a proxy that stood still excuses all
			now = min(now+ttl/4, end)
			r.step(now)
		}
	}
	pass(ttl+time.Second, ttl/2)
	if n := len(r.snapshot()); n != 1 {
		t.Fatalf("%d nodes after a lease in which its stream spoke", n)
	}
	pass(2*ttl, 0)
	if n := len(r.snapshot()); n != 0 {
		t.Errorf("%d nodes after two leases of silence", n)
	}
}
