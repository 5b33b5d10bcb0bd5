package connector

import (
	"time"

	"kvferry/engine"
)

// This file is a prefill leg that came ahead: its prompt is computed before the decode node has
// said where the KV goes. What is computed waits in its blocks.

// undirectedGrace is how long a computed prompt is held for its destination. The proxy has asked
// for that when it submitted the prompt, of a node that had room, so it is there after a round
// trip or soon after; those of the longest links are some 300 ms. If it is not there by then, the
// decode node has filled up meanwhile, and the blocks are of more use to other prompts.
const undirectedGrace = time.Second

// hold keeps a computed prompt until its destination comes. Its token does not leave before that:
// who gives up has said nothing, and may be asked again.
func (c *Core) hold(r *request, o engine.Output) {
	r.last = o
	at := c.now + undirectedGrace
	if r.Deadline > 0 {
		at = min(at, r.Deadline)
	}
	c.deadlines.set(r, at)
}

// direct goes on with a leg whose destination is known now: what is computed is written.
func (c *Core) direct(ev Direct) {
	r := c.reqs[ev.ID]
	if r == nil || !r.Ahead || r.state == abandoned {
		return
	}
	r.Ahead, r.Remote = false, ev.Remote
	if err := c.matches(r.Submit); err != nil {
		c.abandon(r, err)
		return
	}
	c.deadlines.set(r, r.Deadline)
	for layer, at := range r.layers {
		c.write(r, layer, at)
	}
	if r.emitted && !r.held {
		c.leaves(r, r.last)
	}
}
