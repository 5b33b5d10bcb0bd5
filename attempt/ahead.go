package attempt

import (
	"time"

	"kvferry/handoff"
)

// A prompt goes ahead if it is submitted to the prefill node before the decode node has said
// which blocks it has for it. It is computed meanwhile, and what is computed waits for the
// destination. That saves the round trip to the decode node.
//
//	decode first, ahead:  ── decode ──▶ D,  ── prefill ──▶ P
//	                      D, reserved ── direct ──▶ P        token 0 from P, 1.. from D
//	                      P, undirected                      P waited in vain
//
// If the blocks are long in coming, the prompt was computed in vain: the prefill node gives it
// up, and it is submitted once more when they are there.

// worthwhile is the round trip to the node with the blocks from which on a prompt goes ahead.
// Below it, less is won than what a busy machine takes to tell two nodes.
const worthwhile = 2 * time.Millisecond

// tooFar is the round trip beyond which none goes ahead. The destination follows the prompt after
// that at the earliest, and a prefill node holds what it has computed for a second.
const tooFar = time.Second

// An Outlook is what is known of the node with the blocks when a leg has been submitted to it.
type Outlook struct {
	RoundTrip time.Duration // to it and back
	// Sequences and Blocks are what would be left of its room if it took all that is on its way to
	// it, this leg too, as last reported. Below 0, something has to wait.
	Sequences, Blocks int
}

// GoAhead reports whether the second leg is submitted now, beside the first: what it is to know
// of the first one's blocks follows, when Reserved returns Direct.
func (a *Attempt) GoAhead(o Outlook) bool {
	a.ahead = a.second == handoff.PrefillLeg && a.first == handoff.DecodeLeg &&
		o.RoundTrip >= worthwhile && o.RoundTrip <= tooFar && o.Sequences >= 0 && o.Blocks >= 0
	a.asked = a.ahead
	return a.ahead
}

// Undirected reports whether a leg is one that writes KV, and is not known yet where to.
func (a *Attempt) Undirected(l handoff.Leg) bool {
	return a.first == handoff.DecodeLeg && l == a.second && !a.offered
}

// GaveUp is of a leg that went ahead, and whose node has waited too long for the destination.
// It may be known by now, on its way to that node.
func (a *Attempt) GaveUp(l handoff.Leg) (Next, error) {
	switch {
	case !a.carries(l):
		return Wait, nil
	case !a.ahead || l != a.second || a.next > 0 || a.prefilled:
		return Wait, broken("a %v leg that was told its destination waits for it", l)
	}
	a.ahead, a.asked = false, a.offered
	if a.offered {
		return Submit, nil
	}
	return Wait, nil
}
