package proxy

import (
	"testing"
	"time"

	"kvferry/clock/clocktest"
	"kvferry/proto"
)

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
