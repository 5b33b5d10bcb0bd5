package connector

import (
	"fmt"

	"kvferry/engine"
	"kvferry/handoff"
)

// recheck takes a second look at a decode leg's blocks. The first is before they are
// used; but every step reads them again, the last one perhaps hundreds of steps later,
// and meanwhile a bug may write to them. So when the last step has ended, and before its
// token leaves, the whole prompt is checked once more: what landed, what the prefix cache
// had, and what was computed again after a preemption. The blocks are kept until then.
//
// A change is found at the leg's end and not when it happens: a look in each step would
// cost as much as a tenth of the step for every 256 tokens. If tokens have left that may
// have been drawn from it, ErrUsed says so, and the request must not go on from them.
//
// It reports whether the leg now waits for the check.
func (c *Core) recheck(r *request, o engine.Output) bool {
	if !c.rechecks(&r.Submit) {
		return false
	}
	r.state, r.last = rechecking, o
	r.checks++
	c.act.Checks = append(c.act.Checks, Check{ID: r.ID, Part: PartAll, Refs: c.blocks(r), Again: true})
	return true
}

// rechecks reports whether a leg ends with a second look at its blocks.
func (c *Core) rechecks(s *Submit) bool {
	return c.cfg.RecheckKV && s.Leg == handoff.DecodeLeg && s.Handoff != handoff.None
}

// rechecked ends the leg, well or not.
func (c *Core) rechecked(r *request, err error) {
	if err != nil {
		if r.told {
			err = fmt.Errorf("%w: %w", ErrUsed, err)
		}
		c.abandon(r, fmt.Errorf("%w: request %d: %w: %w", ErrContent, r.ID, ErrChanged, err))
		return
	}
	c.tell(r, r.last)
	c.finish(r, r.last)
	c.toRun = append(c.toRun, engine.Free{ID: r.ID})
}
