package connector

import "kvferry/engine"

// Steady is how many ends of steps from the one under way on, limit at most, would do nothing but
// have each sequence emit a token, if no other event came; see engine.Repeater. A driver that has
// no clock to wait for may go through so many by Again.
func (c *Core) Steady(limit int) int {
	if c.again == nil || c.act.Wake > 0 || c.front.out > 0 || c.receiver.step != nil || len(c.producer.queue) > 0 || c.producer.stepping {
		return 0
	}
	n := c.again.Steady(limit)
	if n == 0 {
		return 0
	}
	for _, w := range c.sched.Current().Works {
		if r := c.reqs[w.Seq.ID]; r.state != running || !r.told || r.out != nil {
			return 0
		}
	}
	return n
}

// Again is Step with the StepDone of a step that is steady. The tokens are those that leave, of the
// sequences of the step in their order, each the next of its request; the next step is launched, in place
// of this one.
func (c *Core) Again(done StepDone) { c.again.Again(engine.Done{At: done.At, Tokens: done.Tokens}) }
