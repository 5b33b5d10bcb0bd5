package kvtransfer

import (
	"fmt"
	"math"
	"net"
	"slices"

	"kvferry/kvcache"
	"kvferry/transport"
)

// Digests holds digests of one part of consecutive blocks of a sequence, made by the node that sends the
// blocks. They travel beside the bytes, so that swapped, stale and torn blocks are found.
type Digests struct {
	First  int      // index of the first block in the sequence's block table
	Run    int      // blocks that each of Sums is of; the last may be of fewer
	Tokens int      // of the sequence: they say how far its last block is full
	Sums   []uint64 // 0: not known, of a block that nobody sealed
}

// Covers reports whether the digests begin a run with the block of an index.
func (d *Digests) Covers(index int) bool {
	return index >= d.First && d.Run > 0 && (index-d.First)%d.Run == 0 && (index-d.First)/d.Run < len(d.Sums)
}

// digests returns what was recorded of a part of blocks, the first of them at an index, in at
// most limit sums.
func digests(slab *kvcache.Slab, part Part, blocks []kvcache.Ref, first, tokens, limit int) Digests {
	g := slab.Geometry()
	d := Digests{First: first, Run: max(1, (len(blocks)-1)/max(limit, 1)+1), Tokens: tokens}
	from, to := part.sealed(g)
	for run := range slices.Chunk(blocks, d.Run) {
		known := true
		sum := total(run, first, from, to, func(ref kvcache.Ref, index, layer int) uint64 {
			s, rows := slab.Sealed(ref, layer)
			known = known && rows == d.rows(index, g)
			return s
		})
		if !known {
			sum = 0
		}
		d.Sums = append(d.Sums, sum)
		first += len(run)
	}
	return d
}

// total returns the digest of layers [from, to) of a run of blocks, the first of them at an index, from those of each.
func total(run []kvcache.Ref, index, from, to int, of func(ref kvcache.Ref, index, layer int) uint64) (sum uint64) {
	for i, ref := range run {
		block := uint64(0)
		for l := from; l < to; l++ {
			block += kvcache.At(of(ref, index+i, l), l)
		}
		sum += kvcache.At(block, index+i)
	}
	return sum
}

// rows returns how many rows of a block the sequence fills.
func (d *Digests) rows(index int, g kvcache.Geometry) int {
	return min(d.Tokens-index*g.BlockTokens, g.BlockTokens)
}

// A Check compares blocks with their digests. A block that was sealed on this node, when it was
// computed or had landed, is compared with its own; it fails with kvcache.ErrChanged. One that was not
// has just landed: it is compared with Want, and sealed if it is right. Blocks of which nobody
// has a digest are not compared, and not counted.
type Check struct {
	Blocks []kvcache.Ref
	First  int  // index of Blocks[0] in the sequence's block table
	Part   Part // of all blocks; K and V are compared together
	Want   Digests
	// Landed, if not empty, has digests that were made when the blocks landed. They are not made again.
	Landed Digested
}

// Digested holds digests of blocks, made as the blocks landed.
type Digested struct {
	slab   *kvcache.Slab
	blocks []kvcache.Ref // full ones
	first  int           // index of blocks[0]
	sums   []uint64      // of each layer of each; 0: not known
}

// newDigested returns a Digested without digests, for those of consecutive blocks that a sequence of so many tokens fills.
func newDigested(slab *kvcache.Slab, blocks []kvcache.Ref, first, tokens int) Digested {
	g := slab.Geometry()
	blocks = blocks[:min(max(tokens/g.BlockTokens-first, 0), len(blocks))]
	return Digested{slab, blocks, first, make([]uint64, len(blocks)*g.Layers)}
}

// landed digests the layers that lie whole in bytes [from, to) of a block, which have landed. A layer that does so in part
// has no digest any more.
func (d *Digested) landed(block, from, to int) {
	if block >= len(d.blocks) {
		return
	}
	g := d.slab.Geometry()
	for l := from / g.LayerBytes(); l < g.Layers && l*g.LayerBytes() < to; l++ {
		sum := uint64(0)
		if from <= l*g.LayerBytes() && (l+1)*g.LayerBytes() <= to {
			sum = d.slab.Digest(d.blocks[block].ID, l, g.BlockTokens)
		}
		d.sums[block*g.Layers+l] = sum
	}
}

// wrote returns a function that calls landed for n bytes at an offset of the slab.
func (d *Digested) wrote() func(offset, n int64) {
	first, end := int64(math.MaxInt64), int64(0) // by ID
	for _, b := range d.blocks {
		first, end = min(first, int64(b.ID)), max(end, int64(b.ID)+1)
	}
	at := make([]int32, max(end-first, 0)) // index of each block, from 1
	for i, b := range d.blocks {
		at[int64(b.ID)-first] = int32(i) + 1
	}
	slot := int64(d.slab.Geometry().SlotBytes())
	return func(offset, n int64) {
		for id := max(offset/slot, first); id < end && id*slot < offset+n; id++ {
			if i := at[id-first]; i > 0 {
				d.landed(int(i)-1, int(max(offset-id*slot, 0)), int(min(offset+n-id*slot, slot)))
			}
		}
	}
}

// digest returns the digest of the first rows of a layer of a block, from the bytes if it was not made before.
func (d *Digested) digest(slab *kvcache.Slab, ref kvcache.Ref, index, layer, rows int) uint64 {
	g := slab.Geometry()
	if i := index - d.first; i >= 0 && i < len(d.blocks) && d.blocks[i] == ref && rows == g.BlockTokens && layer < g.Layers {
		if sum := d.sums[i*g.Layers+layer]; sum != 0 {
			return sum
		}
	}
	return slab.Digest(ref.ID, layer, rows)
}

// Checked is what a check has found.
type Checked struct {
	Blocks int   // compared
	Bad    int   // runs of blocks with one digest count once
	From   int   // index of the first bad one
	Err    error // what was wrong with that one; or why nothing was compared
}

// Check runs a check in the background, and calls done on its goroutine; or at once, with
// net.ErrClosed, if the agent is closed, and with transport.ErrInvalid, if there is no such
// layer, plane or block.
func (a *Agent) Check(c Check, done func(Checked)) {
	if err := c.Part.check(a.cfg.Slab, c.Blocks); err != nil {
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

// run looks at the blocks from the last to the first. Of blocks that have just landed, the CPU's cache still has the
// last ones.
func (c *Check) run(slab *kvcache.Slab) (out Checked) {
	from, to := c.Part.sealed(slab.Geometry())
	bad := func(index int, err error) {
		out.From, out.Err = index, err
		out.Bad++
	}
	var runs []int // where each begins that has a digest of its own
	for at := 0; at < len(c.Blocks); at++ {
		runs = append(runs, at)
		if _, rows := slab.Sealed(c.Blocks[at], from); rows == 0 && c.Want.Covers(c.First+at) {
			at += c.Want.Run - 1
		}
	}
	end := len(c.Blocks)
	for _, at := range slices.Backward(runs) {
		index, run := c.First+at, c.Blocks[at:end]
		end = at
		switch _, rows := slab.Sealed(run[0], from); {
		case rows > 0:
			known, err := slab.Verify(run[0], index, from, to)
			if err != nil {
				bad(index, fmt.Errorf("%w: %w", kvcache.ErrChanged, err))
			}
			if known || err != nil {
				out.Blocks++
			}
		case c.Want.Covers(index):
			if want := c.Want.Sums[(index-c.Want.First)/c.Want.Run]; want != 0 {
				out.Blocks += len(run)
				if !c.land(slab, run, index, want, from, to) {
					bad(index, &kvcache.DigestError{Index: index, Run: len(run), Ref: run[0], Layer: c.Part.Layer})
				}
			}
		}
	}
	return out
}

// land compares a run of blocks that have landed with its digest, and seals them if they are
// right.
func (c *Check) land(slab *kvcache.Slab, run []kvcache.Ref, index int, want uint64, from, to int) bool {
	g, sums := slab.Geometry(), make([]uint64, 0, len(run)*(to-from))
	if c.Want.rows(index+len(run)-1, g) < 1 {
		return false // past the end of what it is a digest of
	}
	if total(run, index, from, to, func(ref kvcache.Ref, index, layer int) uint64 {
		sums = append(sums, c.Landed.digest(slab, ref, index, layer, c.Want.rows(index, g)))
		return sums[len(sums)-1]
	}) != want {
		return false
	}
	for i, ref := range run {
		for l := from; l < to; l++ {
			slab.Land(ref, l, c.Want.rows(index+i, g), sums[i*(to-from)+l-from])
		}
	}
	return true
}
