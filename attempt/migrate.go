package attempt

import (
	"time"

	"kvferry/handoff"
)

// A request that generates may go on on another node. It is asked for blocks first, as a leg of
// its own; then the node with the KV copies it there, and goes on generating meanwhile. When it
// has stopped and all is there, the other one is told of the tokens since, and goes on. With
// its first token the request is its own, and the node that had it is let go.
//
//	generates on A:   ── migration ──▶ B
//	                  B, reserved ── migrate ──▶ A           tokens still from A
//	                  A, migrated ── continue ──▶ B          none: the pause
//	                  B, a token ── cancel ──▶ A             tokens from B
//
// Whatever goes wrong before, the request goes on at A.

// A stage is how far that has come.
type stage uint8

const (
	staying   stage = iota // on the node where it generates
	reserving              // the other node was asked for blocks
	copying                // and its node told where they are
	migrated               // all is there; the other node was told to go on
)

// migration is the part of an Attempt that goes on elsewhere.
type migration struct {
	stage stage
	base  int  // position of the generating leg's first token
	next  int  // and of the other one's
	given int  // how many tokens were out with the last Migrated, which the leg may leave out
	alone bool // the generating leg has failed: only the other one can go on

	count  int
	paused time.Duration
	handed bool // since the owner last asked
}

// reserve is for how many tokens beyond those that are known a node gives blocks to a request
// that it is to take over: as many may come while the KV is copied, some seconds' worth.
// They are blocks that it needs there soon.
const reserve = 256

// Reserve is that, of a request with so many tokens to generate.
func Reserve(left int) int { return min(left, reserve) }

// Movable reports whether the request may go on elsewhere: it generates, and nothing moves yet.
func (a *Attempt) Movable() bool {
	prefilled := a.prefilled || a.compute == handoff.FullLeg
	return a.m.stage == staying && a.Running() && prefilled && !a.finished && a.Left() > 1
}

// Left is how many tokens are still to come, at most.
func (a *Attempt) Left() int { return a.want - a.next }

// Migrate begins to move the request to another node, if it is movable: the owner submits
// MigrationLeg there, with the tokens that are out as part of the prompt.
func (a *Attempt) Migrate() bool {
	if !a.Movable() {
		return false
	}
	a.m.stage, a.m.next = reserving, a.next
	return true
}

// Migrating reports whether the request is on its way to another node.
func (a *Attempt) Migrating() bool { return a.m.stage != staying }

// Handed reports, once, that the migration leg has emitted a token: it is the one that generates
// from here on, in place of the one that did.
func (a *Attempt) Handed() bool {
	h := a.m.handed
	a.m.handed = false
	return h
}

// Migrations is how often the request went on on another node, and for how long no token came
// then, in all: each time from the last one there to the first one here.
func (a *Attempt) Migrations() (n int, paused time.Duration) { return a.m.count, a.m.paused }

// Generates is the leg that emits the last token.
func (a *Attempt) Generates() handoff.Leg {
	if a.handoff == handoff.None {
		return a.compute
	}
	return handoff.DecodeLeg
}

// hand has the request go on with the migration leg, whose first token it is.
func (a *Attempt) hand(first Token) {
	a.m.stage, a.m.base, a.m.alone, a.m.handed = staying, a.m.next, false, true
	a.said[a.Generates()].next = a.next
	a.m.count++
	a.m.paused += max(first.At-a.last, 0)
}

// Migrated is what the generating leg says at the time at that was to copy its KV: it has, and
// the tokens are those that the other node does not know, one at least; or there are none, and it
// goes on where it is. Tokens that are in order now are appended to ready, as Token does.
func (a *Attempt) Migrated(ready []Token, l handoff.Leg, tokens []uint32, at time.Duration) ([]Token, Next, error) {
	switch {
	case a.m.stage == migrated && l == a.Generates():
		return ready, Wait, broken("a second Migrated")
	case !a.carries(l) || a.m.stage != copying:
		return ready, Wait, nil // of a migration that was given up
	case l != a.Generates():
		return ready, Wait, broken("unasked Migrated")
	case len(tokens) == 0:
		a.m.stage = staying
		return ready, Stay, nil
	case a.m.next+len(tokens) < a.next || a.m.next+len(tokens) >= a.want:
		return ready, Wait, broken("Migrated with %d tokens after %d, where %d of %d are out", len(tokens), a.m.next, a.next, a.want)
	}
	for i, id := range tokens {
		t := Token{Position: a.m.next + i, ID: id, At: at}
		if err := a.knows(t); err != nil {
			return ready, Wait, err
		}
		ready = a.order(ready, t)
	}
	a.m.stage, a.m.given = migrated, a.next
	return ready, Continue, nil
}

// notMigrated is of a migration leg that failed, for the reason err.
func (a *Attempt) notMigrated(err error) (Next, error) {
	if a.m.alone {
		return Wait, err
	}
	a.m.stage = staying
	return Stay, nil
}
