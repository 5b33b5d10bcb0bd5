package sim

import (
	"errors"
	"fmt"

	"kvferry/load/dispatch"
)

// expect has the next request arrive when the load's queue lets it go.
func (c *cluster) expect() {
	at := c.queue.Wake(c.now)
	if at == dispatch.Never || c.expected && c.expectedAt <= at {
		return // nothing to come, or it is on its way
	}
	c.expected, c.expectedAt = true, at
	c.agenda.Push(at, event{kind: arrive})
}

// arrive takes the request that is due now, if an earlier event has not taken it.
func (c *cluster) arrive() {
	if c.now == c.expectedAt {
		c.expected = false
	}
	s, ok, err := c.queue.Next(c.now)
	switch {
	case err != nil:
		c.err = fmt.Errorf("sim: %w", err)
		return
	case ok && s.Skipped:
		c.skipped(&s)
	case ok:
		c.arrived(&s)
	}
	c.expect()
}

var errSkipped = errors.New("not sent: a request that it follows failed")

// skipped ends a request that never arrives.
func (c *cluster) skipped(s *dispatch.Sending) {
	c.stats.Requests++
	c.stats.Ended++
	c.stats.Failed++
	if c.cfg.OnOutcome != nil {
		c.cfg.OnOutcome(&Outcome{Index: s.Index, ID: s.ID, Adapter: s.Adapter, Due: s.Due, Arrived: c.now, First: c.now, Last: c.now, PromptTokens: len(s.Prompt), MaxTokens: s.MaxTokens, Err: errSkipped})
	}
}
