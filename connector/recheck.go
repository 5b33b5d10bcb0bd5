package connector

import (
	"errors"
	"fmt"
	"slices"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/kvcache"
)

// Checks selects the moments at which the blocks of a request are compared with their digests
// again, after the check of what has landed. The driver sets it where KV is real bytes.
//
// Each step reads the blocks, the last one perhaps hundreds of steps after they landed, and a
// prefix cache hands out blocks that were computed long ago. Meanwhile a bug, or bad memory, may
// have changed them. Hit, First and Last hold back the tokens that come until the check has
// ended, so that none of these leaves if it has found a bad block. Every holds nothing back.
type Checks struct {
	Hit   bool // when the prefix cache had blocks of the prompt
	First bool // when the first step of a leg that decodes has read them (StepRead), or else when it has ended
	Last  bool // likewise of its last step
	Every int  // after each so many of its tokens; 0 for never
}

// Again reports whether blocks are looked at that a leg decodes from.
func (k *Checks) Again() bool { return k.First || k.Last || k.Every > 0 }

// generates reports whether a leg emits the tokens after the first.
func (s *Submit) generates() bool {
	return s.Leg == handoff.DecodeLeg && s.Handoff != handoff.None || s.Leg == handoff.FullLeg
}

// keeps reports whether a leg has its blocks until it has been looked at after its last step.
func (s *Submit) keeps() bool { return s.Checks.Last && s.generates() }

// hit has the blocks checked that the prefix cache had.
func (c *Core) hit(r *request) {
	if n := r.seq.Cached() / c.cfg.Pool.BlockTokens(); r.Checks.Hit && n > 0 {
		c.compare(r, r.seq.Table.Refs()[:n], true)
	}
}

// due reports whether a check is due with the token that a step draws for a request, as far as is known before it is
// drawn.
func (r *request) due(w engine.Work) bool {
	last := w.From+w.N == len(w.Seq.Prompt)+w.Seq.MaxTokens-1
	return w.Sample && r.generates() && (last && r.Checks.Last || r.Checks.First && !r.looking)
}

// stepRead begins the checks that are due with the tokens of the step under way, while the rest of the step goes on. The
// step has read the blocks by now: if it read a wrong byte, the check finds that byte.
func (c *Core) stepRead() {
	step := c.sched.Current()
	if step == nil {
		return
	}
	for _, w := range step.Works {
		if r := c.reqs[w.Seq.ID]; r != nil && r.state == running && !r.early && r.due(w) {
			r.early = true
			c.compare(r, w.Seq.Table.Refs(), true)
		}
	}
}

// recheck begins the checks that are due with an output, and reports whether it is held back.
func (c *Core) recheck(r *request, o engine.Output) bool {
	k := &r.Checks
	switch {
	case !r.generates():
	case o.Last && k.Last, k.First && !r.looking:
		if !r.early {
			c.compare(r, r.seq.Table.Refs(), true)
		}
		r.early = false
	case o.Last && r.again > 0:
		r.held = true // what is under way may find something
	case k.Every > 0 && (o.Position+1)%k.Every == 0 && r.again == 0:
		c.compare(r, r.seq.Table.Refs(), false)
	}
	r.looking = true
	if r.held {
		r.outputs = append(r.outputs, o)
	}
	return r.held
}

// compare has the first blocks of a request compared with their digests, which stay as they are
// until that has ended, whatever becomes of the request.
func (c *Core) compare(r *request, refs []kvcache.Ref, hold bool) {
	if len(refs) == 0 {
		return // it was preempted, and has none: what it computes again is sealed anew
	}
	refs = slices.Clone(refs)
	if err := c.cfg.Pool.Retain(refs); err != nil {
		panic(fmt.Sprintf("connector: request %d: %v", r.ID, err)) // the scheduler has them
	}
	r.again++
	r.held = r.held || hold
	r.doubt, r.since = r.doubt || r.since, false
	c.act.Checks = append(c.act.Checks, Check{ID: r.ID, Part: PartAll, Refs: refs, Again: true})
}

// evict takes blocks that have changed on this node out of the prefix cache, with those after
// them: they may have been computed from the bad ones.
func (c *Core) evict(r *request, ev Checked) {
	if !errors.Is(ev.Err, ErrChanged) {
		return
	}
	if ev.Again {
		c.cfg.Pool.Evict(ev.Refs[ev.From:])
	}
	if r != nil && r.seq != nil {
		refs := r.seq.Table.Refs()
		c.cfg.Pool.Evict(refs[min(ev.From, len(refs)):])
	}
}

// rechecked goes on with a request whose blocks were right, and has the outputs leave that were
// held back. If one was bad, it fails: with ErrUsed, if tokens have left that no check before
// this one has found to be drawn from the right bytes. It must not go on from these.
func (c *Core) rechecked(r *request, ev Checked) {
	if ev.Err != nil {
		err := ev.Err
		if r.doubt || r.since {
			err = fmt.Errorf("%w: %w", ErrUsed, err)
		}
		c.abandon(r, fmt.Errorf("%w: request %d: %w", ErrContent, r.ID, err))
		return
	}
	if r.again > 0 {
		return
	}
	r.doubt, r.held = false, false
	if r.out != nil && r.out.stopped && !r.out.said && !r.out.over && r.moves == 0 {
		c.moveRest(r)
	}
	outputs := r.outputs
	r.outputs = nil
	for _, o := range outputs {
		c.pass(r, o)
	}
}
