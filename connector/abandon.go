package connector

import (
	"errors"
	"fmt"
	"time"

	"kvferry/engine"
	"kvferry/handoff"
)

// withdrawnGrace is how long a request whose transfer the other node has withdrawn
// waits for the proxy's Cancel before it is reported as failed. The other node
// withdraws what has ended there, of which the proxy knows or is being told: its
// Cancel takes as long as a message to each node, some ms, and on a machine with
// ten times the work it can do some 100 ms.
const withdrawnGrace = 3 * time.Second

// abandon ends a request from outside: err is reported, or nothing if nil. Its
// blocks are released once nothing can touch them any more.
//
// What the other node has withdrawn is no failed transfer yet. When a client
// leaves, the proxy cancels both legs; the node that hears of it first closes its
// window, and the other one's writes or reads are refused. Nor would it be the
// cause if the other node has failed: that node reports why.
func (c *Core) abandon(r *request, err error) {
	if r.state == abandoned {
		return
	}
	switch {
	case errors.Is(err, ErrWithdrawn):
		r.verdict = err
		at := c.now + withdrawnGrace
		if r.expires > 0 {
			at = min(at, r.expires)
		}
		c.deadlines.set(r, at)
	case err != nil:
		c.fail(r, err)
	}
	r.state = abandoned
	c.queue(r, 0, 1)
	if r.Leg == handoff.DecodeLeg && r.Handoff.Moves(r.Leg) && (!errors.Is(err, ErrContent) || errors.Is(err, ErrChanged)) {
		c.release(r) // else the proxy has that node look at its blocks first
	}
	if r.ended && r.Handoff.InStep {
		// A consumer that has asked waits for tensors, and its engine with it.
		c.producer.forget(r.transfer)
		c.act.Answer = append(c.act.Answer, Answer{Transfer: r.transfer, Gone: true})
	}
	c.receiver.forget(r.ID, c.now)
	switch {
	case r.out != nil && r.moves > 0:
		c.act.Halt = append(c.act.Halt, r.ID)
	case r.open || r.moves > 0:
		if !r.shutting {
			c.act.Close = append(c.act.Close, r.ID)
		}
		r.open = true // until Closed
	}
	c.settle(r)
}

// fail reports that a request has failed, and counts its transfer if it is that
// which has, or was cut short. A deadline that passes in a queue ends no transfer.
func (c *Core) fail(r *request, err error) {
	c.act.Failed = append(c.act.Failed, Failed{ID: r.ID, Err: err, Breakdown: r.breakdown()})
	if errors.Is(err, ErrChanged) {
		return // nothing is wrong with what was moved
	}
	if errors.Is(err, ErrTransfer) || errors.Is(err, ErrContent) || r.moves+r.checks > 0 {
		c.totals.Failed++
	}
}

// settle releases an abandoned request's blocks, once, when nothing touches them,
// and forgets it when there is nothing left to report.
func (c *Core) settle(r *request) {
	if r.state != abandoned || c.reqs[r.ID] != r || r.open || r.moves > 0 || r.checks > 0 || c.receiver.has(r.ID) {
		return
	}
	if !r.freed {
		r.freed = true
		c.toRun = append(c.toRun, engine.Cancel{ID: r.ID})
	}
	if r.verdict == nil {
		c.drop(r)
	}
}

// expire fails requests past their deadline.
func (c *Core) expire() {
	for {
		r := c.deadlines.pop(c.now)
		if r == nil {
			return
		}
		switch {
		case r.verdict != nil:
			c.fail(r, r.verdict)
			r.verdict = nil
			c.settle(r)
			continue
		case r.state == abandoned:
			continue
		case r.Ahead && r.emitted:
			c.abandon(r, fmt.Errorf("%w: request %d", ErrUndirected, r.ID))
			continue
		}
		c.abandon(r, fmt.Errorf("%w: request %d in %v leg", ErrDeadline, r.ID, r.Leg))
	}
}
