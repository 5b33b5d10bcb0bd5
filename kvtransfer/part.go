package kvtransfer

import (
	"fmt"

	"kvferry/kvcache"
	"kvferry/transport"
)

// A Part is what one move carries of each block. The zero value is layer 0.
type Part struct {
	Layer int // or AllLayers
	Plane Plane
}

// AllLayers is in place of a layer's number.
const AllLayers = -1

// Whole is all KV of the blocks.
var Whole = Part{Layer: AllLayers}

// Plane is what of a layer.
type Plane uint8

const (
	KV     Plane = iota // K and V
	K                   // K alone
	V                   // V alone
	Hidden              // the hidden states, which are in no layer
)

// check names what there is not in blocks of a geometry. A layer too many would be the next
// block's first.
func (p Part) check(g kvcache.Geometry) error {
	switch {
	case p.Plane > Hidden:
		return fmt.Errorf("unknown plane %d", p.Plane)
	case p.Layer != AllLayers && (p.Layer < 0 || p.Layer >= g.Layers):
		return fmt.Errorf("layer %d of %d", p.Layer, g.Layers)
	}
	return nil
}

// has is nil if a block is one of a slab's.
func has(slab *kvcache.Slab, b kvcache.Ref) error {
	if int64(b.ID) >= int64(slab.Blocks()) {
		return fmt.Errorf("block %d of %d", b.ID, slab.Blocks())
	}
	return nil
}

// layers are those of a part, from and up to.
func (p Part) layers(g kvcache.Geometry) (from, to int) {
	if p.Layer == AllLayers {
		return 0, g.Layers
	}
	return p.Layer, p.Layer + 1
}

// Requests turns a part of paired blocks into the requests of one batch, between our slab
// and one of the same geometry. tokens is the length of the sequence: of its last block only
// what it fills is moved, so all parts together are exactly tokens x Geometry.TokenBytes. The
// part and the local blocks must be the slab's.
//
// A full block is one request when everything moves, and one a layer when a layer does, or
// the K or V of all.
func Requests(slab *kvcache.Slab, op transport.Op, part Part, pairs []kvcache.Pair, tokens int) []transport.Request {
	g := slab.Geometry()
	d := descriptors{mem: slab.Bytes(), op: op}
	plane := g.LayerBytes() / 2 // K or V of one layer of one block
	row := plane / g.BlockTokens
	from, to := part.layers(g)
	for _, p := range pairs {
		n := min(tokens-p.Index*g.BlockTokens, g.BlockTokens)
		full := n == g.BlockTokens
		switch {
		case part.Plane == Hidden:
			d.add(g.HiddenOffset(p.Local.ID), g.HiddenOffset(p.Remote.ID), n*g.HiddenTokenBytes())
			continue
		case part == Whole && full:
			d.add(g.BlockOffset(p.Local.ID), g.BlockOffset(p.Remote.ID), g.BlockBytes())
			continue
		}
		for l := from; l < to; l++ {
			local, remote := g.LayerOffset(p.Local.ID, l), g.LayerOffset(p.Remote.ID, l)
			if part.Plane == KV && full { // K and V lie side by side
				d.add(local, remote, 2*plane)
				continue
			}
			if part.Plane != V {
				d.add(local, remote, n*row)
			}
			if part.Plane != K {
				d.add(local+int64(plane), remote+int64(plane), n*row)
			}
		}
	}
	return d.reqs
}

// ranges are the bytes of blocks: their KV, and the hidden states behind it.
func ranges(g kvcache.Geometry, blocks []kvcache.Ref, hidden bool) []transport.Range {
	n := g.BlockBytes()
	if hidden {
		n = g.SlotBytes()
	}
	rs := make([]transport.Range, len(blocks))
	for i, b := range blocks {
		rs[i] = transport.Range{Offset: g.BlockOffset(b.ID), Length: int64(n)}
	}
	return rs
}

type descriptors struct {
	mem  []byte
	op   transport.Op
	reqs []transport.Request
}

func (d *descriptors) add(local, remote int64, size int) {
	if size > 0 { // else there are no hidden states, or the block is past the end
		d.reqs = append(d.reqs, transport.Request{Op: d.op, Local: d.mem[local : local+int64(size)], Offset: remote})
	}
}

// An immediate is the transfer's low bits, the layer and a value of the peer's, in 24, 8
// and 32 bits. immAll is in place of a layer's number.
const immAll = kvcache.MaxLayers

// slotOf is the part of a transfer's number that fits into an immediate.
func slotOf(transfer uint64) uint64 { return transfer & (1<<24 - 1) }

// Immediate is what a Move that notifies sends, for peers that have no Agent: that a layer
// of the grant, or all of them, has been written.
func Immediate(transfer uint64, layer int, value uint32) uint64 {
	if layer == AllLayers {
		layer = immAll
	}
	return transfer<<40 | uint64(layer&0xff)<<32 | uint64(value)
}

func decodeImm(imm uint64) (slot uint64, layer int, value uint32) {
	if layer = int(imm >> 32 & 0xff); layer == immAll {
		layer = AllLayers
	}
	return imm >> 40, layer, uint32(imm)
}
