package connector

import (
	"kvferry/handoff"
	"kvferry/kvcache"
	"kvferry/transport"
)

// Requests turns a Move into the requests of one batch: from our slab to the
// slab of the other side, which has the same geometry. tokens is the length of
// the prompt: of its last block only what it fills is moved, so a transfer is
// exactly tokens x Geometry.TokenBytes.
//
// A full block is one request when everything moves, one a layer when a layer
// does, and one a layer when K or V does (v0 sends K, V and the hidden states
// of all layers as three tensors, as the published system did).
func Requests(slab *kvcache.Slab, m Move, tokens int) []transport.Request {
	g := slab.Geometry()
	b := descriptor{mem: slab.Bytes(), op: transport.Read}
	if m.Write {
		b.op = transport.Write
	}
	plane := g.LayerBytes() / 2 // K or V of one layer of one block
	row := plane / g.BlockTokens
	for _, p := range m.Pairs {
		n := min(tokens-p.Index*g.BlockTokens, g.BlockTokens)
		if n <= 0 {
			continue
		}
		b.full = n == g.BlockTokens
		layer := func(l, kv, planes int) {
			lo, ro := g.LayerOffset(p.Local.ID, l), g.LayerOffset(p.Remote.ID, l)
			if b.full || planes == 1 {
				size := planes * plane
				if !b.full {
					size = n * row
				}
				b.add(lo+int64(kv*plane), ro+int64(kv*plane), size)
				return
			}
			b.add(lo, ro, n*row)
			b.add(lo+int64(plane), ro+int64(plane), n*row)
		}
		switch {
		case m.Part == PartAll && b.full:
			b.add(g.BlockOffset(p.Local.ID), g.BlockOffset(p.Remote.ID), g.BlockBytes())
		case m.Part == PartAll:
			for l := range g.Layers {
				layer(l, 0, 2)
			}
		case m.Write:
			layer(m.Part, 0, 2)
		case m.Part == TensorHidden:
			b.add(g.HiddenOffset(p.Local.ID), g.HiddenOffset(p.Remote.ID), n*g.HiddenTokenBytes())
		default:
			for l := range g.Layers {
				layer(l, m.Part, 1)
			}
		}
	}
	return b.reqs
}

// Window is what the transfer of offered blocks needs open on the node that has them:
// the direction, and the ranges of its slab. What a decode node offers is written to, what a
// prefill node offers is read. Only who moves tensors has use for the hidden states, which
// lie at a slot's end.
func Window(g kvcache.Geometry, h handoff.Handoff, blocks []kvcache.Ref) (transport.Op, []transport.Range) {
	op, n := transport.Read, g.BlockBytes()
	if h.Offers(handoff.DecodeLeg) {
		op = transport.Write
	}
	if h.Parts == handoff.Tensors {
		n = g.SlotBytes()
	}
	ranges := make([]transport.Range, len(blocks))
	for i, b := range blocks {
		ranges[i] = transport.Range{Offset: g.BlockOffset(b.ID), Length: int64(n)}
	}
	return op, ranges
}

type descriptor struct {
	mem  []byte
	op   transport.Op
	full bool
	reqs []transport.Request
}

func (d *descriptor) add(local, remote int64, size int) {
	d.reqs = append(d.reqs, transport.Request{Op: d.op, Local: d.mem[local : local+int64(size)], Offset: remote})
}
