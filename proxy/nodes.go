package proxy

import (
	"time"

	"kvferry/proto"
)

// A NodeState is a node that holds a lease, as the proxy sees it now. What it points to is
// the proxy's own, and never changes: do not change it either.
type NodeState struct {
	Info    *proto.NodeInfo
	Up      bool          // it takes requests
	Stalled bool          // it was left because it does not get on
	Stalls  uint64        // how often
	Silence time.Duration // how long it may say nothing while it owes something
	Legs    int           // of requests that it has
	Load    *proto.Load
	Rails   []*proto.RailLoad
}

// Nodes lists the nodes that hold a lease, prefill nodes first, by id.
func (p *Proxy) Nodes() []NodeState { return p.registry.nodes() }

func (r *registry) nodes() []NodeState {
	var all []NodeState
	for _, m := range r.snapshot() {
		_, stalled, up := m.usable()
		m.mu.Lock()
		all = append(all, NodeState{
			Info: m.info, Up: up, Stalled: stalled, Stalls: m.stalls, Silence: m.progress.Limit(), Legs: len(m.legs), Load: m.load, Rails: m.rails,
		})
		m.mu.Unlock()
	}
	return all
}

// Requests is how many requests have been taken on: those that wait for their turn, and
// those that run.
func (p *Proxy) Requests() (waiting, running int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting, p.inFlight - p.waiting
}
