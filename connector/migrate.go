package connector

import (
	"errors"
	"fmt"
	"slices"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/kvcache"
)

// This file is a request that generates on this node and goes on on another one, or the other
// way round. While it generates, the full blocks that it has are written to the other node, and
// then those that came meanwhile, as long as that gets fewer. Then it stops, and the rest
// is written: a block or two, so that the pause is short however much was moved before.
//
//	this node                                              the other node
//	generates                            ◀── its blocks ── allocated
//	generates, writes full blocks ───────────────────────▶ checks them
//	generates, writes those since ───────────────────────▶
//	stops, writes the rest ──────────────────────────────▶
//	migrated ── tokens that it does not know ──(proxy)───▶ checks the others, goes on
//	cancelled, frees its blocks ◀─(proxy)── first token ──
//
// If anything of this fails, it goes on where it was.

// An outgoing request is on its way to another node, which has blocks for it.
type outgoing struct {
	Remote
	known    int           // of its tokens there, the first ones
	sent     int           // of its blocks, the first ones: what the other node had, was written, or is on its way
	stage    int           // blocks of the last move
	held     []kvcache.Ref // by the move under way, whatever the scheduler does with them
	stopping bool          // it is to stop
	stopped  bool          // it has
	said     bool          // Migrated has been said
	over     bool          // it goes on here, once the move under way has ended
}

// ErrNotMoved is why a request goes on where it was.
var ErrNotMoved = errors.New("the request goes on where it was")

// migrate begins to move a request that generates here.
func (c *Core) migrate(ev Migrate) {
	r := c.reqs[ev.ID]
	var err error
	switch {
	case r == nil || r.state == abandoned:
		return // its end says all
	case r.state != running || r.Leg == handoff.PrefillLeg || !r.emitted:
		err = errors.New("it does not generate")
	case r.out != nil:
		err = errors.New("it is on its way already")
	case ev.Known < 1 || ev.Known > r.seq.Len():
		err = fmt.Errorf("%d of its tokens are known there, of %d", ev.Known, r.seq.Len())
	default:
		err = c.covers(ev.Remote, ev.Known)
	}
	if err != nil {
		c.act.Migrated = append(c.act.Migrated, Migrated{ID: ev.ID, Transfer: ev.Remote.Transfer, Err: fmt.Errorf("%w: %w: %w", ErrNotMoved, ErrInvalid, err)})
		return
	}
	r.out = &outgoing{Remote: ev.Remote, known: ev.Known, sent: ev.Remote.Blocks[0].Index}
}

// covers checks what another machine says of its blocks: those from one on, to that of the last
// token.
func (c *Core) covers(remote Remote, known int) error {
	blocks, got := c.cfg.Profile.KVGeometry.Blocks(remote.Tokens), len(remote.Blocks)
	if remote.Tokens < known || got < 1 || got > blocks || (blocks-got)*c.cfg.Pool.BlockTokens() > known {
		return fmt.Errorf("kv has %d blocks for %d tokens: it knows %d", got, remote.Tokens, known)
	}
	for i, b := range remote.Blocks {
		if want := blocks - got + i; b.Index != want {
			return fmt.Errorf("kv.blocks[%d] has index %d: must be %d", i, b.Index, want)
		}
	}
	return nil
}

// copyOut goes on with a request on its way when it has emitted a token: all of its tokens but
// the last have their KV now, and it is in a step perhaps that adds one.
func (c *Core) copyOut(r *request) {
	o := r.out
	if o.over || o.stopping || r.moves > 0 || r.seq.Len() <= o.known {
		return // there is to be one more than the other node knows
	}
	full := r.seq.Held / c.cfg.Pool.BlockTokens()
	left := full - o.sent
	switch {
	case r.seq.Held >= o.Tokens:
		c.stays(r, fmt.Errorf("%s has blocks for %d tokens", o.Node, o.Tokens))
	case left <= 1, r.seq.Held+2 >= o.Tokens, o.stage > 0 && left > o.stage/2:
		o.stopping = true
		c.toRun = append(c.toRun, engine.Suspend{ID: r.ID})
	default:
		c.moveOut(r, full, full*c.cfg.Pool.BlockTokens())
	}
}

// moveOut writes the blocks before that one which are not there, of so many tokens.
func (c *Core) moveOut(r *request, before, tokens int) {
	o := r.out
	refs := r.seq.Table.Refs()[:before]
	o.held = slices.Clone(refs[o.sent:])
	if err := c.cfg.Pool.Retain(o.held); err != nil {
		panic(fmt.Sprintf("connector: request %d: %v", r.ID, err)) // the scheduler has them
	}
	r.moves++
	c.act.Moves = append(c.act.Moves, Move{
		ID: r.ID, Write: true, Part: PartAll, Pairs: kvcache.Pairs(refs, o.Blocks, o.sent), To: o.Node, Tokens: tokens,
		Imm: !o.stopped, Token: kvcache.Token(before), // all of the last are there when the request goes on
	})
	o.stage, o.sent = before-o.sent, before
}

// suspended goes on when the request has stopped.
func (c *Core) suspended(r *request) {
	if r == nil || r.out == nil || r.out.over {
		return
	}
	r.out.stopped = true
	if r.Checks.Last { // the last use of the blocks here
		c.compare(r, r.seq.Table.Refs(), false)
	}
	if r.moves == 0 {
		c.moveRest(r)
	}
}

// moveRest writes what is not there of a request that has stopped, or says that all is there once
// the blocks here are found to be right.
func (c *Core) moveRest(r *request) {
	o := r.out
	if blocks := c.cfg.Profile.KVGeometry.Blocks(r.seq.Held); blocks > o.sent {
		c.moveOut(r, blocks, r.seq.Held)
		return
	}
	if r.again > 0 {
		return
	}
	o.said = true
	c.totals.Transfers++
	c.act.Migrated = append(c.act.Migrated, Migrated{ID: r.ID, Transfer: o.Transfer, Tokens: r.seq.Tokens(o.known), Cached: r.seq.Found(), Breakdown: r.breakdown()})
}

// movedOut ends a move.
func (c *Core) movedOut(r *request, ev Moved) {
	o := r.out
	r.b.Migrated += ev.Bytes
	if err := c.cfg.Pool.Release(o.held); err != nil {
		panic(fmt.Sprintf("connector: request %d: %v", r.ID, err)) // they were retained
	}
	o.held = nil
	switch {
	case r.state == abandoned:
	case o.over:
		r.out = nil
	case ev.Err != nil:
		c.totals.Failed++
		c.stays(r, fmt.Errorf("%w: %w", ErrTransfer, ev.Err))
	case o.stopped:
		c.moveRest(r)
	}
}

// stays has a request go on here, for the reason err.
func (c *Core) stays(r *request, err error) {
	c.act.Migrated = append(c.act.Migrated, Migrated{ID: r.ID, Transfer: r.out.Transfer, Err: fmt.Errorf("%w: request %d to %s: %w", ErrNotMoved, r.ID, r.out.Node, err)})
	c.resume(r.ID)
}

// doubted has the blocks checked of a request that the other node has found wrong.
func (c *Core) doubted(id uint64) {
	if r := c.reqs[id]; r != nil && r.seq != nil && r.Checks != (Checks{}) && r.state != abandoned && r.state != ending {
		c.compare(r, r.seq.Table.Refs(), false)
	}
}

// resume has a request go on here, wherever it is on its way.
func (c *Core) resume(id uint64) {
	r := c.reqs[id]
	if r == nil || r.out == nil || r.out.over || r.state == abandoned {
		return
	}
	if r.out.stopping {
		c.toRun = append(c.toRun, engine.Resume{ID: id})
	}
	r.out.over = true
	if r.moves == 0 {
		r.out = nil
		return
	}
	c.act.Halt = append(c.act.Halt, id)
}

// goOn has a request that came here go on from its last token, once its blocks are checked.
func (c *Core) goOn(ev Continue) {
	r := c.reqs[ev.ID]
	if r == nil || r.state != moving || !r.Handoff.Running {
		return
	}
	n := len(ev.Tokens) - 1 // all but the last have their KV in the blocks
	vocab := kvcache.Token(c.cfg.Profile.Vocab)
	if n < 0 || n > r.Reserve || n >= r.MaxTokens || slices.Max(ev.Tokens) >= vocab {
		c.abandon(r, fmt.Errorf("%w: request %d goes on with %d tokens: it reserves %d, and has %d to generate, of a vocabulary of %d", ErrOffer, r.ID, len(ev.Tokens), r.Reserve, r.MaxTokens, vocab))
		return
	}
	r.given = slices.Clone(ev.Tokens)
	r.Prompt, r.Reserve = slices.Concat(r.Prompt, ev.Tokens[:n]), 0
	r.state, r.landed = checking, c.now
	c.check(r, PartAll, 0, len(c.blocks(r)))
}
