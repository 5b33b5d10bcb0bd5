package connector

import (
	"fmt"
	"slices"
	"time"

	"kvferry/handoff"
)

// layerDone writes a layer of every prompt in the step under way that this step completes
// and that goes out by layer. A prompt computed in chunks goes out with its last chunk:
// its earlier chunks are in the blocks by then. A driver that knows beforehand
// when layers will be done may say so at once: their moves say when they start.
func (c *Core) layerDone(ev LayerDone) {
	step := c.sched.Current()
	if step == nil {
		return
	}
	for _, w := range step.Works {
		r := c.reqs[w.Seq.ID]
		if !w.Sample || r == nil || r.Leg != handoff.PrefillLeg || r.Handoff.Parts != handoff.Layers || r.state == abandoned {
			continue
		}
		switch {
		case ev.Layer == c.layers()-1: // the last goes with the first token, when the step is done
		case r.Ahead:
			r.layers = append(append(r.layers, ev.At), ev.After...)
		default:
			c.write(r, ev.Layer, ev.At, ev.After...)
		}
	}
}

// write moves a part to the decode side. Each but the last comes with no token: the prompt
// is not computed yet. Those after it are moved at the times after.
func (c *Core) write(r *request, part int, at time.Duration, after ...time.Duration) {
	if r.state != moving {
		r.state = moving
		c.queue(r, 1, 1)
	}
	r.moves += 1 + len(after)
	m := Move{ID: r.ID, Write: true, Part: part, After: after, Pairs: c.pairs(r), Imm: true, Token: r.first}
	if at > c.now {
		m.Since = at
	}
	c.act.Moves = append(c.act.Moves, m)
}

// writeLast sends the last part, with the first token in its immediate.
func (c *Core) writeLast(r *request) { c.write(r, c.lastPart(r), c.now) }

// lastPart is the part that is moved once the prompt is computed.
func (c *Core) lastPart(r *request) int {
	if r.Handoff.Parts == handoff.Layers {
		return c.layers() - 1
	}
	return PartAll
}

// wrote counts parts that have been applied at the decode side; with the last one the leg
// is over.
func (c *Core) wrote(r *request, ev Moved) {
	r.parts += 1 + ev.More
	c.queue(r, r.Handoff.Parts.Count(c.layers())-r.parts, r.Handoff.Parts.Count(c.layers()))
	r.landed = max(r.landed, ev.At)
	if ev.Part == c.lastPart(r) {
		r.b.Post = max(ev.Posted-r.seq.Computed, 0)
	}
	if r.parts < r.Handoff.Parts.Count(c.layers()) {
		return
	}
	// What the client can notice of the wire is what is left after the prompt.
	r.b.Wire = r.landed - r.seq.Computed - r.b.Post
	c.totals.Transfers++
	c.act.Prefilled = append(c.act.Prefilled, Prefilled{ID: r.ID, FirstToken: r.first, Cached: r.seq.Found(), Breakdown: r.b})
	c.shut(r)
}

// arrivedPart counts a part that is in our blocks, once, and has it checked.
func (c *Core) arrivedPart(ev Arrived) {
	r := c.reqs[ev.ID]
	if r == nil || r.state != moving || r.Leg != handoff.DecodeLeg || !r.Handoff.Offers(r.Leg) {
		return
	}
	if r.Handoff.Running {
		// It still generates there: after it has stopped only the last few blocks are left to check.
		if n := min(int(ev.Token), len(c.blocks(r))); n > max(r.looked, r.seq.Cached()/c.cfg.Pool.BlockTokens()) {
			c.check(r, PartAll, 0, n)
			r.looked = n
		}
		return
	}
	last := c.lastPart(r)
	i := ev.Part
	if last == PartAll {
		i -= PartAll // the only one
	}
	if i < 0 || i+ev.More >= len(r.arrived) {
		what := "part"
		if r.Handoff.Parts == handoff.Layers {
			what = "layer"
		}
		c.abandon(r, fmt.Errorf("%w: request %d: immediate for %s %d of %d", ErrTransfer, r.ID, what, ev.Part, len(r.arrived)))
		return
	}
	parts := r.arrived[i : i+ev.More+1]
	if !slices.Contains(parts, false) {
		return
	}
	if vocab := c.cfg.Profile.Vocab; ev.Part+ev.More == last && int(ev.Token) >= vocab {
		c.abandon(r, fmt.Errorf("%w: request %d: first token is %d, the vocabulary has %d", ErrTransfer, r.ID, ev.Token, vocab))
		return
	}
	for k, there := range parts {
		if !there {
			parts[k] = true
			r.parts++
		}
	}
	c.queue(r, len(r.arrived)-r.parts, len(r.arrived))
	r.landed = max(r.landed, ev.At)
	if ev.Part+ev.More == last {
		r.first = ev.Token
	}
	c.check(r, ev.Part, ev.More, len(c.blocks(r)))
}
