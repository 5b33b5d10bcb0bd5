package proxy

import (
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"kvferry/attempt"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/members"
	"kvferry/proxy/metrics"
)

// This file is what a member says of itself, in loads over its stream and in heartbeats. They come
// on two ways, with each iteration and with each heartbeat, so either may overtake the other;
// Seq says which is newer.

// setLoad records the node's state and counts what it did since the last. A
// heartbeat may overtake an iteration's message: the older load is not taken. l becomes the
// member's; once stored, a load is not changed any more, as others read it without a lock.
// The caller holds mu, and calls changed without it where setLoad says so.
func (m *member) setLoad(l *proto.Load) (changed bool) {
	old := m.load
	if l.Seq < old.Seq {
		return false
	}
	metrics.Steady(old, l)
	// A drain does not end, whatever the node says.
	l.Draining = l.Draining || old.Draining
	m.load = l
	now := m.clock.Now()
	m.progress.Load(now, l)
	back := m.progress.At == now && m.recoverLocked()
	m.metrics.Load(old, l)
	return back || old.Draining != l.Draining
}

// reported is what the membership tells of the node. It is called without the lock of nodes,
// which changed takes.
func (m *member) reported(node members.Node) {
	m.mu.Lock()
	changed := node.Load != nil && m.setLoad(protobuf.CloneOf(node.Load)) // the membership's
	m.rails = node.Rails
	if node.Draining && m.drainLocked() {
		changed = true
	}
	m.mu.Unlock()
	if changed {
		m.changed()
	}
}

// drainLocked notes that the node drains, and reports whether that is news. The caller
// holds mu.
func (m *member) drainLocked() (turned bool) {
	if m.load.Draining {
		return false
	}
	m.load = protobuf.CloneOf(m.load) // others may read the old one
	m.load.Draining = true
	return true
}

// gotOn is when the node last got on with its work, by the counts in its loads.
func (m *member) gotOn() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.progress.At
}

// stuck reports whether the node should be left: it does not get on, and has not been
// left already.
func (m *member) stuck(now, any time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.up && m.progress.Stalled(now, any)
}

// usable reports whether the node takes new legs, whether it has been left because it did
// not get on, and how busy it is.
func (m *member) usable() (c placement.Candidate, stalled, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c = m.way.Candidate(m.info, m.load)
	c.WaitingTokens, c.InFlight = m.waiting+m.way.Tokens(), m.inFlight
	return c, m.stalled, m.up && !m.leaving && !m.load.Draining
}

// outlook is that of the legs submitted so far, as a prompt that would go ahead has it.
func (m *member) outlook() attempt.Outlook {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.way.Outlook(m.roundTrip(m.path), m.load, int(m.info.BlockTokens))
}

// recoverLocked notes a sign of life. It reports whether the node had been left for the
// want of one: the caller then calls changed, without mu.
func (m *member) recoverLocked() bool {
	if !m.stalled {
		return false
	}
	m.stalled = false
	m.log.Info("node gets on again", "node", m.info.Id)
	return true
}
