package connector

import (
	"fmt"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/kvcache"
)

// moved ends a move of any hand-off.
func (c *Core) moved(ev Moved) {
	r := c.reqs[ev.ID]
	if r == nil {
		return
	}
	r.moves -= 1 + ev.More
	c.totals.Bytes += uint64(ev.Bytes)
	if r.out != nil { // it generates: what its hand-off moved is there
		c.movedOut(r, ev)
		c.settle(r)
		return
	}
	r.b.Bytes += ev.Bytes
	r.b.Wire += ev.At - ev.Posted
	switch {
	case r.Leg == handoff.DecodeLeg && r.Handoff.InStep:
		c.receivedTensor(r, ev)
	case r.state == abandoned:
	case ev.Err != nil:
		c.abandon(r, fmt.Errorf("%w: request %d, %s: %w", ErrTransfer, r.ID, r.Remote.Node, ev.Err))
	case r.Leg == handoff.DecodeLeg:
		r.b.Post = max(ev.Posted-(r.ready+r.b.Queue), 0)
		r.landed = ev.At
		r.state = checking
		c.queue(r, 0, 1)
		c.check(r, PartAll, 0, len(c.blocks(r)))
	default:
		c.wrote(r, ev)
	}
	c.settle(r)
}

// check has the first blocks of a request compared with what they must be, without those that were checked, where a part
// has landed, and more after it.
func (c *Core) check(r *request, part, more, blocks int) {
	from := min(max(r.looked, r.seq.Cached()/c.cfg.Pool.BlockTokens()), blocks)
	r.checks++
	c.act.Checks = append(c.act.Checks, Check{ID: r.ID, Part: part, More: more, Refs: c.blocks(r)[from:blocks], First: from})
}

func (c *Core) checked(ev Checked) {
	r := c.reqs[ev.ID]
	c.evict(r, ev)
	if ev.Again {
		if err := c.cfg.Pool.Release(ev.Refs); err != nil {
			panic(fmt.Sprintf("connector: request %d: %v", ev.ID, err)) // they were retained
		}
	}
	if r == nil {
		return
	}
	if ev.Again {
		r.again--
	} else {
		r.checks--
		r.checked = c.now
	}
	r.b.Checked += ev.Blocks
	r.b.Bad += ev.Bad
	c.totals.Checked += uint64(ev.Blocks)
	c.totals.Bad += uint64(ev.Bad)
	switch {
	case r.state == abandoned:
	case ev.Again:
		c.rechecked(r, ev)
	case ev.Err != nil:
		c.abandon(r, fmt.Errorf("%w: request %d%s: %w", ErrContent, r.ID, r.peer(), ev.Err))
	case r.Handoff.InStep: // the receiver goes on when it looks
	case r.Handoff.Moves(r.Leg):
		c.release(r)
		c.totals.Transfers++
		c.land(r)
	case r.state == moving && r.Handoff.Running: // the others are still to come
	case r.parts == len(r.arrived) && r.checks == 0:
		c.totals.Transfers++
		c.shut(r)
	}
	c.settle(r)
}

// land lets the sequence decode.
func (c *Core) land(r *request) {
	r.state = running
	r.usable = c.now
	r.b.Land = max(c.now-r.landed, 0)
	ev := engine.Landed{ID: r.ID, At: c.now}
	switch {
	case r.Handoff.Running:
		ev.Given = r.given
	case r.Handoff.FirstToken == handoff.PrefillLeg:
		ev.Given = []kvcache.Token{r.first}
	}
	c.toRun = append(c.toRun, ev)
	if len(ev.Given) == r.MaxTokens {
		// The prefill side has emitted all there is.
		c.act.Finished = append(c.act.Finished, Finished{ID: r.ID, Cached: r.seq.Found(), Breakdown: r.breakdown()})
		c.drop(r)
	}
}

// gone fails the request that a step is receiving, the only one that asks for what can be
// gone.
func (c *Core) gone(ev Gone) {
	r := c.reqs[ev.ID]
	if r == nil || r.state != moving || !r.Handoff.InStep {
		return
	}
	if c.receiver.state == recvCheck {
		return // too late to matter: everything has been read
	}
	c.abandon(r, fmt.Errorf("%w: request %d: %s has no transfer %d: %w", ErrTransfer, r.ID, r.Remote.Node, r.Remote.Transfer, ev.Err))
}
