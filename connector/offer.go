package connector

import (
	"fmt"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/kvcache"
)

// This file is what the two sides tell each other of their blocks: offers, holds, releases.

// allocated goes on with a decode leg whose blocks are there: it reads what prefill has
// computed, or offers them for prefill to write to.
func (c *Core) allocated(r *request, q *engine.Sequence) {
	r.seq = q
	r.state = moving
	c.queue(r, 1, 1) // less what is cached here
	r.b.Queue = c.now - r.ready
	c.hit(r)
	if r.Handoff.Moves(r.Leg) {
		r.moves++
		c.act.Moves = append(c.act.Moves, Move{ID: r.ID, Part: PartAll, Pairs: c.pairs(r)})
		return
	}
	r.transfer, r.open = c.newTransfer(), true
	skip := q.Cached() / c.cfg.Pool.BlockTokens()
	c.act.Reserved = append(c.act.Reserved, Offer{
		ID: r.ID, Transfer: r.transfer, First: skip, Blocks: c.blocks(r)[skip:], Tokens: len(r.Prompt) + r.Reserve,
	})
}

// newTransfer returns the ID of another transfer.
func (c *Core) newTransfer() uint64 {
	c.next++
	if c.secret == nil {
		return c.next
	}
	return c.secret.Uint64()<<24 | c.next&(1<<24-1) // a peer's immediates name the low bits
}

// offer holds a computed prompt's blocks for the consumer and ends the leg. How long they
// are held is the driver's: the lease of the window that it opens.
func (c *Core) offer(r *request, first uint32) {
	r.transfer, r.state, r.open, r.ended = c.newTransfer(), offered, true, true
	c.transfers[r.transfer] = r
	c.queue(r, 1, 1)
	c.deadlines.remove(r)
	c.act.Prefilled = append(c.act.Prefilled, Prefilled{
		ID: r.ID, FirstToken: first, Cached: r.seq.Found(), Breakdown: r.b,
		Offer: &Offer{ID: r.ID, Transfer: r.transfer, Blocks: c.blocks(r), Tokens: len(r.Prompt)},
	})
}

// released ends the hold on an offered transfer; a second release does nothing.
func (c *Core) released(transfer uint64) {
	r := c.transfers[transfer]
	if r == nil || r.state != offered {
		return
	}
	c.producer.forget(transfer)
	c.shut(r)
}

// lapsed gives up a hold that nobody ended.
func (c *Core) lapsed(id uint64) {
	r := c.reqs[id]
	if r == nil || r.state != offered {
		c.closed(id) // it was being closed, or its request cancelled, just then
		return
	}
	// The leg has ended well; only its blocks were waiting.
	c.totals.Failed++
	r.open = false
	c.abandon(r, nil)
}

// release tells the producer, once, that its blocks are no longer needed.
func (c *Core) release(r *request) {
	if r.released {
		return
	}
	r.released = true
	c.act.Ask = append(c.act.Ask, Ask{ID: r.ID, Node: r.Remote.Node, Transfer: r.Remote.Transfer, Release: true})
}

// blocks are those that hold the prompt, and what may come with it.
func (c *Core) blocks(r *request) []kvcache.Ref {
	bt := c.cfg.Pool.BlockTokens()
	return r.seq.Table.Refs()[:(len(r.Prompt)+r.Reserve+bt-1)/bt]
}

// pairs matches our blocks with the remote's, leaving out what our prefix cache
// has. All moves of a request share the slice: its blocks stay where they are
// until the last has ended.
func (c *Core) pairs(r *request) []kvcache.Pair {
	if r.pairs != nil {
		return r.pairs
	}
	skip := 0
	if r.Leg == handoff.DecodeLeg {
		skip = r.seq.Cached() / c.cfg.Pool.BlockTokens()
	}
	r.pairs = kvcache.Pairs(c.blocks(r), r.Remote.Blocks, skip)
	return r.pairs
}

// matches checks the other side's description against the prompt: it comes from
// another machine. A decode node that has the beginning of a prompt in its prefix
// cache reserves the blocks after it, so what it offers need not start at block 0.
func (c *Core) matches(ev Submit) error {
	blocks := c.cfg.Profile.KVGeometry.Blocks(len(ev.Prompt))
	got := len(ev.Remote.Blocks)
	if ev.Remote.Tokens != len(ev.Prompt) {
		return fmt.Errorf("%w: kv.tokens is %d: the prompt has %d", ErrOffer, ev.Remote.Tokens, len(ev.Prompt))
	}
	if got > blocks || got < 1 || ev.Leg == handoff.DecodeLeg && got != blocks {
		return fmt.Errorf("%w: kv.blocks has %d blocks: the prompt needs %d", ErrOffer, got, blocks)
	}
	for i, b := range ev.Remote.Blocks {
		if want := blocks - got + i; b.Index != want {
			return fmt.Errorf("%w: kv.blocks[%d] has index %d: must be %d, as the prompt ends with block %d", ErrOffer, i, b.Index, want, blocks-1)
		}
	}
	if vocab := c.cfg.Profile.Vocab; int(ev.Remote.FirstToken) >= vocab {
		return fmt.Errorf("%w: kv.first_token is %d: the vocabulary has %d", ErrOffer, ev.Remote.FirstToken, vocab)
	}
	return nil
}
