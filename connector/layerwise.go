package connector

import (
	"fmt"
	"time"
)

// layerDone writes a layer of every layerwise prompt in the step under way that
// this step completes. A prompt computed in chunks goes out with its last chunk:
// its earlier chunks are in the blocks by then. A driver that knows beforehand
// when layers will be done may say so at once: their moves say when they start.
func (c *Core) layerDone(ev LayerDone) {
	step := c.sched.Current()
	if step == nil {
		return
	}
	for _, w := range step.Works {
		r := c.reqs[w.Seq.ID]
		if !w.Sample || r == nil || r.Leg != PrefillLeg || r.Handoff != Layerwise || r.state == abandoned {
			continue
		}
		if ev.Layer < c.layers()-1 { // the last goes with the first token, when the step is done
			c.write(r, ev.Layer, ev.At)
		}
	}
}

func (c *Core) write(r *request, layer int, at time.Duration) {
	r.state = moving
	r.moves++
	m := Move{ID: r.ID, Write: true, Part: layer, Pairs: c.pairs(r), Imm: true, Token: r.first}
	if at > c.now {
		m.Since = at
	}
	c.act.Moves = append(c.act.Moves, m)
}

// layerwiseComputed sends the last layer, with the first token in its immediate.
func (c *Core) layerwiseComputed(r *request) { c.write(r, c.layers()-1, c.now) }

// wrote counts layers that have been applied at the decode side; with the last
// one the leg is over.
func (c *Core) wrote(r *request, ev Moved) {
	r.parts++
	r.landed = max(r.landed, ev.At)
	if ev.Part == c.layers()-1 {
		r.b.Post = max(ev.Posted-r.seq.Computed, 0)
	}
	if r.parts < c.layers() {
		return
	}
	// What the client can notice of the wire is what is left after the prompt.
	r.b.Wire = r.landed - r.seq.Computed - r.b.Post
	c.totals.Transfers++
	c.act.Prefilled = append(c.act.Prefilled, Prefilled{ID: r.ID, FirstToken: r.first, Cached: r.seq.Cached(), Breakdown: r.b})
	c.shut(r)
}

// arrivedPart counts a layer that is in our blocks, once, and has it checked.
func (c *Core) arrivedPart(ev Arrived) {
	r := c.reqs[ev.ID]
	if r == nil || r.state != moving || r.Leg != DecodeLeg || r.Handoff != Layerwise {
		return
	}
	if ev.Part < 0 || ev.Part >= len(r.arrived) {
		c.abandon(r, fmt.Errorf("%w: request %d: immediate for layer %d of %d", ErrTransfer, r.ID, ev.Part, len(r.arrived)))
		return
	}
	if r.arrived[ev.Part] {
		return
	}
	if vocab := c.cfg.Profile.Vocab; ev.Part == len(r.arrived)-1 && int(ev.Token) >= vocab {
		c.abandon(r, fmt.Errorf("%w: request %d: first token is %d, the vocabulary has %d", ErrTransfer, r.ID, ev.Token, vocab))
		return
	}
	r.arrived[ev.Part] = true
	r.parts++
	r.landed = max(r.landed, ev.At)
	if ev.Part == len(r.arrived)-1 {
		r.first = ev.Token
	}
	c.check(r, ev.Part)
}

// maxLayers is what the layer's part of an immediate can number. An immediate is
// a slot of the reader's choosing, the layer and the first token, in 24, 8 and 32
// bits.
const maxLayers = 1 << 8

// EncodeImm packs what a layerwise write tells the reader.
func EncodeImm(transfer uint64, layer int, token uint32) uint64 {
	return transfer<<40 | uint64(layer&0xff)<<32 | uint64(token)
}

// DecodeImm unpacks it; transfer is known by its low 24 bits.
func DecodeImm(imm uint64) (transfer uint64, layer int, token uint32) {
	return imm >> 40, int(imm >> 32 & 0xff), uint32(imm)
}
