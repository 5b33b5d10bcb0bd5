package kvtransfer

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"kvferry/kvcache"
	"kvferry/transport"
)

// A Checker can tell what the blocks of one sequence must contain; kvcache.Content can, from
// the tokens.
type Checker interface {
	// Check compares one layer of a block, K and then V. index is its place in the sequence.
	Check(src []byte, index, layer int) error
	// CheckHidden compares a block's hidden states.
	CheckHidden(src []byte, index int) error
}

// A Check compares blocks that have landed with what they must contain.
type Check struct {
	Checker Checker // nil: nobody can tell, and nothing is compared
	Blocks  []kvcache.Ref
	First   int  // index of Blocks[0] in the sequence's block table
	Part    Part // of all blocks; K and V are compared together
}

// Checked is what a check has found.
type Checked struct {
	Blocks int // compared
	Bad    int
	Err    error // what was wrong with the bad ones, joined; or why nothing was compared
}

// Check runs a check in the background, and calls done on its goroutine; or at once, with
// net.ErrClosed, if the agent is closed, and with transport.ErrInvalid, if there is no such
// layer, plane or block.
func (a *Agent) Check(c Check, done func(Checked)) {
	if err := c.check(a.cfg.Slab); err != nil {
		done(Checked{Err: fmt.Errorf("kvtransfer: check: %w: %w", transport.ErrInvalid, err)})
		return
	}
	c.Blocks = slices.Clone(c.Blocks)
	a.mu.Lock()
	closed := a.closed
	if !closed {
		a.background.Go(func() { done(c.run(a.cfg.Slab)) })
	}
	a.mu.Unlock()
	if closed {
		done(Checked{Err: net.ErrClosed})
	}
}

// check names what a slab does not have.
func (c *Check) check(slab *kvcache.Slab) error {
	err := c.Part.check(slab.Geometry())
	for i := 0; i < len(c.Blocks) && err == nil; i++ {
		err = has(slab, c.Blocks[i])
	}
	return err
}

func (c *Check) run(slab *kvcache.Slab) (out Checked) {
	if c.Checker == nil {
		return Checked{}
	}
	out.Blocks = len(c.Blocks)
	for i, ref := range c.Blocks {
		if err := c.block(slab, ref.ID, c.First+i); err != nil {
			out.Bad++
			out.Err = errors.Join(out.Err, err)
		}
	}
	return out
}

func (c *Check) block(slab *kvcache.Slab, id kvcache.BlockID, index int) error {
	g := slab.Geometry()
	if c.Part.Plane == Hidden {
		if g.HiddenSize == 0 {
			return nil
		}
		return c.Checker.CheckHidden(slab.Hidden(id), index)
	}
	from, to := c.Part.layers(g)
	for l := from; l < to; l++ {
		if err := c.Checker.Check(slab.Layer(id, l), index, l); err != nil {
			return err
		}
	}
	return nil
}
