// Package attempt follows one submission of a request through the nodes that carry it: which
// leg is submitted first and which second, the tokens of both in order and exactly once, and
// when all is there. The proxy of a real cluster and the simulator of a virtual one use it.
//
//	one node:       ── full, or prefill for one token ──▶ N   tokens 0.. from N
//	prefill first:  ── prefill ──▶ P                          P's own token is not passed on
//	                P, prefilled ── decode ──▶ D              tokens 0.. from D
//	decode first:   ── decode ──▶ D
//	                D, reserved ── prefill ──▶ P              token 0 from P, 1.. from D
//
// The last may go ahead: see GoAhead.
//
// Which of the three it is follows from the hand-off's properties (package handoff). An
// [Attempt] is a state machine: what the nodes say goes in, what is to be done next comes
// out. It has no clock, does no I/O and knows no node. Where the legs run, what their
// accounts add up to and when to give up are its owner's. Not safe for concurrent use.
package attempt

import (
	"errors"
	"fmt"
	"time"

	"kvferry/handoff"
)

// ErrBroken is wrapped by the error for a message that the node's leg must not send: at that
// time, more than once, or with these contents. The submission is over, and its tokens are not to
// be trusted.
var ErrBroken = errors.New("the node broke the protocol")

// Next is what the owner is to do.
type Next uint8

const (
	Wait     Next = iota // for more from the nodes
	Submit               // the second leg, with what the first one has offered
	Direct               // that to the second leg, which went ahead
	Migrate              // the generating leg is told what the migration leg has offered: its KV goes there
	Continue             // the migration leg is told of the tokens that it does not know: it goes on
	Stay                 // the generating leg goes on; the migration leg is cancelled
	Done                 // every token is out and both legs have said all
)

// A Token is one token as it came from a node.
type Token struct {
	Position int // of the answer, from 0
	ID       uint32
	At       time.Duration // on the owner's clock
}

// An Attempt is one submission of a request.
//
// Invariant: tokens 0..next-1 were returned by Token, and held has none of them.
type Attempt struct {
	// Limits bound what nodes may say. The owner sets them before the first leg is submitted.
	Limits Limits

	handoff handoff.Handoff // None: one node has it all
	compute handoff.Leg     // that computes the prompt: full or prefill
	first   handoff.Leg     // that is submitted first
	second  handoff.Leg     // and second; the same if there is one leg
	want    int             // tokens

	asked   bool // for the second leg
	ahead   bool // before the first one had offered anything; see GoAhead
	offered bool // the decode leg has, where it is first
	next    int
	last    time.Duration // when the last of them came
	held    map[int]Token // beyond a gap: decode's tokens before prefill's first
	flowing bool          // the decode leg has its KV: it emitted a token that needs it

	prefilled bool // compute has ended well
	finished  bool // the leg that emits the last token has ended well

	said [handoff.MigrationLeg + 1]said
	zero *uint32 // token 0 as the first node has drawn it, where both do; see draws

	m migration
}

// New returns an attempt at want tokens, at least 1. h is the cluster's hand-off, None if its
// nodes do it all. A request for one token is over with the prompt: it has no decode leg.
func New(h handoff.Handoff, want int) *Attempt {
	a := &Attempt{handoff: h, compute: handoff.PrefillLeg, want: want}
	switch {
	case h == handoff.None:
		a.compute = handoff.FullLeg
	case want == 1:
		a.handoff = handoff.None
	}
	a.first, a.second = a.compute, a.compute
	if a.handoff.FirstToken == handoff.PrefillLeg {
		a.said[handoff.DecodeLeg].next = 1
	}
	if a.handoff != handoff.None {
		a.first, a.second = handoff.PrefillLeg, handoff.DecodeLeg
		if h.Offers(handoff.DecodeLeg) {
			a.first, a.second = a.second, a.first
		}
	}
	return a
}

// First is the leg to begin with.
func (a *Attempt) First() handoff.Leg { return a.first }

// Second is the leg that Submit asks for. Where one node has it all, that never happens, and
// Second is First.
func (a *Attempt) Second() handoff.Leg { return a.second }

// Computes is the leg that computes the prompt.
func (a *Attempt) Computes() handoff.Leg { return a.compute }

// Handoff is that of its legs; None if one node has it all.
func (a *Attempt) Handoff() handoff.Handoff { return a.handoff }

// MaxTokens is how many tokens a leg is asked for.
func (a *Attempt) MaxTokens(l handoff.Leg) int {
	switch l {
	case handoff.PrefillLeg:
		return 1
	case handoff.MigrationLeg:
		return a.want - a.m.next
	}
	return a.want - a.m.base
}

// Running reports whether the node that generates has begun to. Where prefill emits the first
// token, that may be out while the KV is still on its way.
func (a *Attempt) Running() bool {
	return a.next > 0 && (a.first == a.second || a.flowing)
}

// Complete reports whether every token asked for is out, whatever else the nodes have still
// to say.
func (a *Attempt) Complete() bool { return a.next == a.want }

// Ended reports whether the leg that emits the last token has ended well.
func (a *Attempt) Ended() bool { return a.finished }

// carries reports whether a leg is part of this attempt and has been asked for.
func (a *Attempt) carries(l handoff.Leg) bool {
	return l == a.first || a.asked && l == a.second || l == handoff.MigrationLeg && a.m.stage != staying
}

// Token takes one token of a leg and appends to ready those that are now in order. Each leg says
// its tokens one after the other; those of the decode leg may come before the prefill leg's.
func (a *Attempt) Token(ready []Token, l handoff.Leg, t Token) ([]Token, error) {
	if ours, err := a.hears(l, "a token"); !ours {
		return ready, err
	}
	switch {
	case a.Undirected(l):
		return ready, broken("a token of a leg that has no destination")
	case l == handoff.DecodeLeg && a.handoff.Offers(l) && !a.offered:
		return ready, broken("a token before Reserved")
	case l == handoff.MigrationLeg && a.m.stage != migrated:
		return ready, broken("a token of a leg that was not told to go on")
	case l == handoff.MigrationLeg && t.Position+a.m.next != a.next:
		return ready, broken("token %d of a leg that goes on with %d", t.Position, a.next-a.m.next)
	case l == handoff.MigrationLeg:
		a.hand(t)
		l = a.Generates()
	}
	most := 1
	if l == a.Generates() {
		t.Position += a.m.base
		most = a.want
	}
	s := &a.said[l]
	switch {
	case t.Position < 0 || t.Position >= most:
		return ready, broken("token %d of %d", t.Position, most)
	case t.Position < s.next || t.Position > max(s.next, a.m.given):
		return ready, broken("token %d of a %v leg, where %d is next", t.Position, l, s.next)
	case t.Position >= a.next && a.m.stage == migrated && l == a.Generates():
		return ready, broken("token %d after Migrated", t.Position)
	}
	if err := a.knows(t); err != nil {
		return ready, err
	}
	s.next = t.Position + 1
	if t.Position == 0 && a.handoff.FirstToken == handoff.DecodeLeg {
		if err := a.draws(t.ID); err != nil || l == handoff.PrefillLeg {
			return ready, err // decode emits it
		}
	}
	if l == handoff.DecodeLeg {
		a.flowing = true
	}
	return a.order(ready, t), nil
}

// order appends t to ready, and the held tokens that follow it, if t is next. It holds t if
// tokens before it are missing, and drops t if it is out already.
func (a *Attempt) order(ready []Token, t Token) []Token {
	if t.Position < a.next { // Migrated had it
		return ready
	}
	if t.Position > a.next {
		if a.held == nil {
			a.held = make(map[int]Token)
		}
		a.held[t.Position] = t
		return ready
	}
	for {
		ready = append(ready, t)
		a.last = t.At
		a.next++
		held, ok := a.held[a.next]
		if !ok {
			return ready
		}
		delete(a.held, a.next)
		held.At = max(held.At, t.At) // it could not go out before
		t = held
	}
}

// Next is Token of the leg that generates for a token that is the next in order and not its first,
// of an attempt that holds none.
func (a *Attempt) Next(at time.Duration) {
	a.next++
	a.said[a.Generates()].next++
	a.last = at
}

// Reserved is what a decode leg says that has blocks for the KV; kv is whether it said which.
func (a *Attempt) Reserved(l handoff.Leg, kv bool) (Next, error) {
	if ours, err := a.hears(l, "Reserved"); !ours {
		return Wait, err
	}
	switch {
	case l == handoff.MigrationLeg && a.m.stage != reserving, a.offered && l == handoff.DecodeLeg:
		return Wait, broken("a second Reserved")
	case l == handoff.MigrationLeg && !kv:
		return a.notMigrated(nil)
	case l == handoff.MigrationLeg:
		a.m.stage = copying
		return Migrate, nil
	case l != handoff.DecodeLeg || !a.handoff.Offers(l):
		return Wait, broken("unasked Reserved")
	case !kv:
		return Wait, broken("Reserved without kv")
	}
	a.offered = true
	if a.ahead {
		return Direct, nil
	}
	a.asked = true
	return Submit, nil
}

// Prefilled is what a prefill leg ends with; kv is whether it said which blocks are there to
// be read.
func (a *Attempt) Prefilled(l handoff.Leg, kv bool) (Next, error) {
	if ours, err := a.hears(l, "Prefilled"); !ours {
		return Wait, err
	}
	switch {
	case l != handoff.PrefillLeg:
		return Wait, broken("unasked Prefilled")
	case a.Undirected(l):
		return Wait, broken("Prefilled without a destination")
	case a.said[l].next == 0 && a.handoff.FirstToken != handoff.DecodeLeg:
		return Wait, broken("Prefilled before the token of the prompt")
	case a.handoff.Offers(l) && !kv:
		return Wait, broken("Prefilled without kv")
	}
	a.prefilled, a.said[l].ended = true, true
	switch {
	case a.handoff == handoff.None:
		a.finished = true
	case a.handoff.Offers(l):
		a.asked = true
		return Submit, nil
	}
	return a.done(), nil
}

// Finished ends the leg that emits the last token. It returns an error that wraps ErrBroken if the leg
// has not said all tokens that it was asked for: a node never decides where an answer ends.
func (a *Attempt) Finished(l handoff.Leg) (Next, error) {
	if ours, err := a.hears(l, "Finished"); !ours {
		return Wait, err
	}
	switch {
	case l == handoff.MigrationLeg:
		return Wait, broken("Finished without a token")
	case l != a.Generates():
		return Wait, broken("Finished instead of Prefilled")
	case a.said[l].next < a.want:
		return Wait, broken("ended after token %d of %d", a.said[l].next, a.want)
	}
	a.finished, a.said[l].ended = true, true
	a.prefilled = a.prefilled || l == a.compute
	return a.done(), nil
}

// Failed is of a leg that failed or was lost, for the reason err. A prefill leg that is no
// longer needed may: its token is out, and decode emitted one that took its KV. Then the error
// is not returned, and the attempt goes on.
func (a *Attempt) Failed(l handoff.Leg, err error) (Next, error) {
	switch {
	case !a.carries(l):
		return Wait, nil
	case l == handoff.MigrationLeg:
		return a.notMigrated(err)
	case l == a.Generates() && a.m.stage == migrated: // the other one has all that it needs
		a.m.alone = true
		return Wait, nil
	case l != a.compute || a.next == 0 || !a.flowing && !a.finished:
		return Wait, err
	}
	a.prefilled = true
	return a.done(), nil
}

// done returns Done once everything is there. The decode leg has said all of its tokens when it
// has finished; the prefill leg's, or the account of its time, may be on its way.
func (a *Attempt) done() Next {
	if !a.finished || a.handoff.Moves(handoff.PrefillLeg) && !a.prefilled {
		return Wait
	}
	return Done
}

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrBroken}, args...)...)
}
