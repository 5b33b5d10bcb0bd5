package attempt

import (
	"errors"
	"fmt"

	"kvferry/handoff"
)

// This file holds what a node may say of a leg. Whatever else it says is an error that wraps
// ErrBroken.

// Limits bounds what nodes may say of a request.
type Limits struct {
	Prompt      int    // tokens
	BlockTokens int    // tokens in a block
	Vocab       uint32 // token ids are in [0, Vocab); 0: not checked
}

// said records a leg's messages so far.
type said struct {
	next  int  // position in the answer of the leg's next token
	ended bool // by Prefilled or Finished
}

// An Offer describes blocks of the node that has a leg, for the other leg's node.
type Offer struct {
	Tokens int
	Blocks []Block
	Pool   uint32 // number of blocks that the node has
	// First is token 0 as the node with the prefill leg has drawn it. The offers of other legs
	// leave it 0.
	First uint32
}

// A Block is a block of an Offer.
type Block struct {
	Index uint32 // in the request's block table
	ID    uint32 // in [0, Offer.Pool)
}

// hears reports whether a message that names a leg concerns this attempt. It returns an error if
// the leg was not asked for or has ended.
func (a *Attempt) hears(l handoff.Leg, what string) (ours bool, err error) {
	switch {
	case l == handoff.MigrationLeg && a.m.stage == staying:
		return false, nil // it crossed the end of the migration
	case !a.carries(l):
		return false, broken("%s of a %v leg that was not asked for", what, l)
	case a.said[l].ended:
		return false, broken("%s of a %v leg that has ended", what, l)
	}
	return true, nil
}

// knows returns an error if the vocabulary does not have a token.
func (a *Attempt) knows(t Token) error {
	if a.Limits.Vocab > 0 && t.ID >= a.Limits.Vocab {
		return broken("token %d is %d: the vocabulary has %d", t.Position, t.ID, a.Limits.Vocab)
	}
	return nil
}

// errDiffer is wrapped by the error for a token 0 that two nodes draw differently.
var errDiffer = fmt.Errorf("%w: the nodes draw different tokens", ErrBroken)

// OfPair reports whether an error that wraps ErrBroken is the fault of either of two nodes.
func OfPair(err error) bool { return errors.Is(err, errDiffer) }

// draws takes token 0 as one of two nodes has drawn it, where both do. They must agree.
func (a *Attempt) draws(id uint32) error {
	if a.zero == nil {
		a.zero = &id
	}
	if *a.zero != id {
		return fmt.Errorf("%w: token 0 is %d, and the node with the other leg has drawn %d", errDiffer, id, *a.zero)
	}
	return nil
}

// Offered checks the blocks that come with Reserved or Prefilled, before that is reported. Blocks
// of a decode leg may begin after those that its node has cached.
func (a *Attempt) Offered(l handoff.Leg, o Offer) error {
	need := a.Limits.Prompt
	if l == handoff.MigrationLeg { // with the tokens known there, and room for some more
		need = max(need+a.m.next, min(o.Tokens, need+a.want))
	}
	blocks := (o.Tokens + a.Limits.BlockTokens - 1) / a.Limits.BlockTokens
	if n := len(o.Blocks); o.Tokens != need || n == 0 || n > blocks || n < blocks && l == handoff.PrefillLeg {
		return broken("kv has %d blocks for %d tokens: %d tokens need %d", n, o.Tokens, need, (need+a.Limits.BlockTokens-1)/a.Limits.BlockTokens)
	}
	seen := make(map[uint32]bool, len(o.Blocks))
	for i, b := range o.Blocks {
		switch want := blocks - len(o.Blocks) + i; {
		case int(b.Index) != want:
			return broken("kv.blocks[%d] has index %d: must be %d", i, b.Index, want)
		case b.ID >= o.Pool || seen[b.ID]:
			return broken("kv.blocks[%d] is block %d: named twice, or not of the node's %d", i, b.ID, o.Pool)
		}
		seen[b.ID] = true
	}
	if l != handoff.PrefillLeg {
		return nil
	}
	if err := a.knows(Token{ID: o.First}); err != nil {
		return err
	}
	return a.draws(o.First)
}
