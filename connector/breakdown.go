package connector

import (
	"time"
)

// Breakdown says where a request's time on this node went. The parts of both legs
// together are the time from the proxy to the first token; under layerwise, whose
// prefill node streams that token before the transfer ends, to the second.
type Breakdown struct {
	Proxy       time.Duration // proxy, the way here, and the modelled front end or hop
	Queue       time.Duration // then until its first step, its blocks (Await), or its turn in a receive
	Prefill     time.Duration // first step of the prompt to the end of its last
	Post        time.Duration // KV is there, or asked for, and not on the wire: v0's waits for the producer
	Wire        time.Duration // moves under way; layerwise: after the prompt was computed
	Land        time.Duration // last byte to checked, copied in and the window closed
	FirstDecode time.Duration // then until a token left the node

	Bytes        int64 // moved by this node
	Checked, Bad int   // blocks
	Migrated     int64 // bytes moved by this node to others that were to go on
}

// breakdown is the request's. A leg that takes a request over has kept nobody waiting while it
// got its blocks and its KV.
func (r *request) breakdown() Breakdown {
	if r.Handoff.Running {
		return Breakdown{Checked: r.b.Checked, Bad: r.b.Bad, Migrated: r.b.Migrated}
	}
	return r.b
}

// Add adds what another leg of the same request took.
func (b *Breakdown) Add(o *Breakdown) {
	b.Proxy += o.Proxy
	b.Queue += o.Queue
	b.Prefill += o.Prefill
	b.Post += o.Post
	b.Wire += o.Wire
	b.Land += o.Land
	b.FirstDecode += o.FirstDecode
	b.Bytes += o.Bytes
	b.Checked += o.Checked
	b.Bad += o.Bad
	b.Migrated += o.Migrated
}
