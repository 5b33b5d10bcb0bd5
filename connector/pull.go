package connector

import (
	"fmt"

	"kvferry/engine"
	"kvferry/kvcache"
)

// allocated goes on with a decode leg whose blocks are there: pull reads them,
// layerwise offers them to the prefill side.
func (c *Core) allocated(r *request, q *engine.Sequence) {
	r.seq = q
	r.state = moving
	r.b.Queue = c.now - r.ready
	skip := q.Cached() / c.cfg.Pool.BlockTokens()
	switch r.Handoff {
	case Pull:
		r.moves++
		c.act.Moves = append(c.act.Moves, Move{ID: r.ID, Part: PartAll, Pairs: c.pairs(r)})
	case Layerwise:
		c.next++
		r.transfer, r.open = c.next, true
		c.act.Reserved = append(c.act.Reserved, Offer{
			ID: r.ID, Transfer: r.transfer, First: skip, Blocks: c.blocks(r)[skip:], Tokens: len(r.Prompt),
		})
	}
}

// blocks are those that hold the prompt.
func (c *Core) blocks(r *request) []kvcache.Ref {
	bt := c.cfg.Pool.BlockTokens()
	return r.seq.Table.Refs()[:(len(r.Prompt)+bt-1)/bt]
}

// pairs matches our blocks with the remote's, leaving out what our prefix cache
// has. All moves of a request share the slice: its blocks stay where they are
// until the last has ended.
func (c *Core) pairs(r *request) []Pair {
	if r.pairs != nil {
		return r.pairs
	}
	skip := 0
	if r.Leg == DecodeLeg {
		skip = r.seq.Cached() / c.cfg.Pool.BlockTokens()
	}
	mine := c.blocks(r)
	r.pairs = make([]Pair, 0, len(mine))
	for _, b := range r.Remote.Blocks {
		if b.Index >= skip {
			r.pairs = append(r.pairs, Pair{Index: b.Index, Local: mine[b.Index], Remote: b.Ref})
		}
	}
	return r.pairs
}

// moved ends a move of any hand-off.
func (c *Core) moved(ev Moved) {
	r := c.reqs[ev.ID]
	if r == nil {
		return
	}
	r.moves--
	r.b.Bytes += ev.Bytes
	r.b.Wire += ev.At - ev.Posted
	c.totals.Bytes += uint64(ev.Bytes)
	switch {
	case r.Leg == DecodeLeg && r.Handoff == V0:
		c.receivedTensor(r, ev)
	case r.state == abandoned:
	case ev.Err != nil:
		c.abandon(r, fmt.Errorf("%w: request %d, %s: %w", ErrTransfer, r.ID, r.Remote.Node, ev.Err))
	case r.Leg == DecodeLeg:
		r.b.Post = max(ev.Posted-(r.ready+r.b.Queue), 0)
		r.landed = ev.At
		r.state = checking
		c.check(r, PartAll)
	default:
		c.wrote(r, ev)
	}
	c.settle(r)
}

// check has a part that landed compared with what it must be.
func (c *Core) check(r *request, part int) {
	skip := r.seq.Cached() / c.cfg.Pool.BlockTokens()
	r.checks++
	c.act.Checks = append(c.act.Checks, Check{ID: r.ID, Part: part, Refs: c.blocks(r)[skip:], First: skip})
}

func (c *Core) checked(ev Checked) {
	r := c.reqs[ev.ID]
	if r == nil {
		return
	}
	r.checks--
	r.b.Checked += ev.Blocks
	r.b.Bad += ev.Bad
	c.totals.Checked += uint64(ev.Blocks)
	c.totals.Bad += uint64(ev.Bad)
	r.checked = c.now
	switch {
	case r.state == abandoned:
	case r.state == rechecking:
		c.rechecked(r, ev.Err)
	case ev.Err != nil:
		c.abandon(r, fmt.Errorf("%w: request %d%s: %w", ErrContent, r.ID, r.peer(), ev.Err))
	case r.Handoff == Pull:
		c.release(r)
		c.totals.Transfers++
		c.land(r)
	case r.Handoff == Layerwise && r.parts == c.layers() && r.checks == 0:
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
	if r.Handoff == Layerwise {
		ev.Given = []kvcache.Token{r.first}
	}
	c.toRun = append(c.toRun, ev)
	if r.Handoff == Layerwise && r.MaxTokens == 1 {
		// The prefill side has emitted all there is.
		c.act.Finished = append(c.act.Finished, Finished{ID: r.ID, Cached: r.seq.Cached(), Breakdown: r.b})
		c.drop(r)
	}
}

// release tells the producer, once, that its blocks are no longer needed.
func (c *Core) release(r *request) {
	if r.released {
		return
	}
	r.released = true
	c.act.Ask = append(c.act.Ask, Ask{ID: r.ID, Node: r.Remote.Node, Transfer: r.Remote.Transfer, Release: true})
}

// gone fails the request of v0 that is being received, the only one that asks for what
// can be gone.
func (c *Core) gone(ev Gone) {
	r := c.reqs[ev.ID]
	if r == nil || r.state != moving || r.Handoff != V0 {
		return
	}
	if c.receiver.state == recvCheck {
		return // too late to matter: everything has been read
	}
	c.abandon(r, fmt.Errorf("%w: request %d: %s has no transfer %d: %w", ErrTransfer, r.ID, r.Remote.Node, r.Remote.Transfer, ev.Err))
}
