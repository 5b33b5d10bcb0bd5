package kvtransfer

import (
	"encoding/binary"
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

// check names what a slab does not have. A layer too many would be the next block's first.
func (p Part) check(slab *kvcache.Slab, blocks []kvcache.Ref) error {
	switch layers := slab.Geometry().Layers; {
	case p.Plane > Hidden:
		return fmt.Errorf("unknown plane %d", p.Plane)
	case p.Layer != AllLayers && (p.Layer < 0 || p.Layer >= layers):
		return fmt.Errorf("layer %d of %d", p.Layer, layers)
	}
	for _, b := range blocks {
		if int64(b.ID) >= int64(slab.Blocks()) {
			return fmt.Errorf("block %d of %d", b.ID, slab.Blocks())
		}
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

// sealed are the layers of a part as a slab seals them, from and up to: K and V together, and the
// hidden states behind the last layer, if there are any.
func (p Part) sealed(g kvcache.Geometry) (from, to int) {
	if p.Plane != Hidden {
		return p.layers(g)
	}
	return g.Layers, g.Layers + min(g.HiddenSize, 1)
}

// A Notice announces a Move to the peer. It travels with the last bytes of the Move.
type Notice struct {
	Transfer uint64 // the grant's
	Layer    int    // written by now, or AllLayers
	Value    uint32 // of the peer's Move
	Digests  Digests
}

const (
	noticeSize = 28 // without sums
	// maxSums keeps a notice in one piece: a longer message is sent when its first pieces were
	// acknowledged, a round trip later.
	maxSums = (transport.MaxText - 1 - transport.MaxName - noticeSize) / 8
)

// Encode returns the notice as a peer's Agent reads it.
func (n *Notice) Encode() []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, noticeSize+8*len(n.Digests.Sums)), n.Transfer)
	for _, v := range [...]uint32{uint32(n.Layer), n.Value, uint32(n.Digests.First), uint32(n.Digests.Run), uint32(n.Digests.Tokens)} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	for _, s := range n.Digests.Sums {
		b = binary.LittleEndian.AppendUint64(b, s)
	}
	return b
}

// decodeNotice reads what a peer has sent; false if it is no notice.
func decodeNotice(b []byte) (n Notice, ok bool) {
	if len(b) < noticeSize || (len(b)-noticeSize)%8 != 0 {
		return n, false
	}
	word := func(i int) int { return int(int32(binary.LittleEndian.Uint32(b[8+4*i:]))) }
	n = Notice{Transfer: binary.LittleEndian.Uint64(b), Layer: word(0), Value: uint32(word(1)), Digests: Digests{First: word(2), Run: word(3), Tokens: word(4)}}
	for b = b[noticeSize:]; len(b) > 0; b = b[8:] {
		n.Digests.Sums = append(n.Digests.Sums, binary.LittleEndian.Uint64(b))
	}
	return n, n.Layer >= AllLayers && n.Digests.First >= 0 && n.Digests.Run >= 0 && n.Digests.Tokens >= 0
}
