package sim

import (
	"time"

	"kvferry/attempt"
	"kvferry/connector"
)

// This file is steps that are all alike. A node coasts while its steps decode the same sequences
// and nothing is on its way to it: nobody looks at it meanwhile, so the ends of these steps are
// no events. They are gone through together, when something comes to the node or the last of them
// is over, and what comes of them is the same to the last bit.

// maxCoast bounds how many steps a node coasts at once: an event that comes before leaves that of
// their end behind in the agenda.
const maxCoast = 24

// launched sees to the end of the step that was launched, unless the node coasts.
func (n *node) launched() {
	if !n.coast() {
		n.endAt = max(n.doneAt, n.c.now)
		n.c.agenda.Push(n.endAt, event{node: n, kind: stepEnd})
	}
}

// coast has the node coast, if it can: the end of the steps after the one under way is seen to.
func (n *node) coast() bool {
	if n.coming > 0 || n.c.migration != nil || n.c.plain {
		return false
	}
	n.left = n.core.Steady(maxCoast)
	if n.left == 0 {
		return false
	}
	n.endAt = n.doneAt + n.cost.Again(n.batch, n.left)
	n.c.agenda.Push(n.endAt, event{node: n, kind: stepEnd})
	return true
}

// halt has the node coast no longer: something is about to come.
func (n *node) halt() {
	if n.left == 0 {
		return
	}
	n.catchUp()
	if n.left > 0 {
		n.left, n.endAt = 0, n.doneAt
		n.c.agenda.Push(n.endAt, event{node: n, kind: stepEnd})
	}
}

// catchUp goes through the ends of steps that are over by now.
func (n *node) catchUp() {
	if n.left == 0 || n.doneAt > n.c.now {
		return
	}
	n.flights = n.flights[:0]
	for i := range n.batch.Works {
		n.flights = append(n.flights, n.c.flights[n.batch.Works[i].Seq.ID])
	}
	for ; n.left > 0 && n.doneAt <= n.c.now; n.left-- {
		at := n.doneAt
		n.c.stats.Events++
		n.count(at)
		n.core.Again(connector.StepDone{At: at, Tokens: n.tokens})
		for i, f := range n.flights {
			t := attempt.Token{ID: n.tokens[i], At: at + n.c.cfg.RPC}
			f.attempt.Next(t.At)
			n.c.out(f, t)
		}
		n.compute()
	}
}

// stepped ends the step under way, unless an event is of steps that something has come between.
func (n *node) stepped() {
	if n.c.now != n.endAt {
		n.c.stats.Events--
		return
	}
	n.catchUp()
	n.endAt = never
	n.tell(connector.StepDone{At: n.doneAt, Tokens: n.tokens})
}

// never is no time of a run.
const never = time.Duration(-1)
