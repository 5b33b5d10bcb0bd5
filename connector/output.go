package connector

import (
	"time"

	"kvferry/engine"
	"kvferry/handoff"
)

// This file passes on, or holds back, the tokens that the scheduler emits.

// output passes a token on that is through the front end at out, and ends legs with their
// last one.
func (c *Core) output(o engine.Output, out time.Duration) {
	r := c.reqs[o.Seq.ID]
	if r == nil || r.state == abandoned {
		return
	}
	if !r.emitted {
		r.emitted = true
		from := o.Seq.Computed
		if r.usable > 0 {
			from = r.usable
		}
		if r.Leg == handoff.PrefillLeg && r.Handoff != handoff.None && (r.Handoff.Moves(r.Leg) || r.Handoff.FirstToken != r.Leg) {
			out = c.now // the KV goes on beside the token, or the token stays here
		}
		r.b.FirstDecode = out - from
		if r.Leg != handoff.DecodeLeg {
			r.b.Prefill = o.Seq.Computed - o.Seq.Launched
		}
	}
	if r.out != nil && !o.Last {
		c.copyOut(r)
	}
	if o.Last && r.generates() {
		r.state = ending
	}
	if !c.recheck(r, o) {
		c.pass(r, o)
	}
}

// pass has an output leave, unless nobody has said yet where the KV goes.
func (c *Core) pass(r *request, o engine.Output) {
	if r.Ahead {
		c.hold(r, o)
		return
	}
	c.leaves(r, o)
}

// leaves lets a token leave if this leg emits it, and ends the leg with its last one.
func (c *Core) leaves(r *request, o engine.Output) {
	prefill := r.Leg == handoff.PrefillLeg
	if !prefill || r.Handoff == handoff.None || r.Handoff.FirstToken == r.Leg {
		r.told, r.since = true, true
		c.act.Tokens = append(c.act.Tokens, Token{ID: r.ID, Token: o.Token, Position: o.Position})
	}
	if !o.Last {
		return
	}
	switch {
	case prefill && r.Handoff.Moves(r.Leg):
		r.first = o.Token
		c.writeLast(r)
	case prefill && r.Handoff.Offers(r.Leg):
		c.offer(r, o.Token)
	default:
		c.finish(r, o)
	}
}

// finish ends a request well.
func (c *Core) finish(r *request, o engine.Output) {
	c.act.Finished = append(c.act.Finished, Finished{ID: r.ID, Cached: o.Seq.Found(), Breakdown: r.breakdown()})
	if r.keeps() {
		c.toRun = append(c.toRun, engine.Free{ID: r.ID})
	}
	if r.moves == 0 {
		c.drop(r)
		return
	}
	// The scheduler has let go of its blocks; the last move to another node has not.
	r.state, r.freed = abandoned, true
	c.act.Halt = append(c.act.Halt, r.ID)
}
