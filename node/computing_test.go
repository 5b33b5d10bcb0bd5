package node

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"time"

	"kvferry/engine"
	"kvferry/internal/clock"
	"kvferry/kvcache"
)

// A computing executor really computes: a model of one row of numbers a token and layer,
// with attention. It has nothing in common with the modelled GPU, and cannot say what a
// block must contain.
//
// What goes into layer l at a position is a word x; of the first layer a hash of the token
// and the position. K and V of that position are rows of bytes that follow from x. What
// comes out, the x of the layer above, is a hash of K and V of this layer at every position
// up to this one, as they lie in the blocks. The next token is drawn from what comes out of
// the last layer. So each token depends on every byte of KV before it, whoever put it there.
type computing struct {
	clk  clock.Clock
	slab *kvcache.Slab
	cfg  *engine.Profile
	rows atomic.Uint64
}

func newComputing(p *engine.Profile) func(*kvcache.Slab, clock.Clock) (engine.Executor, error) {
	return func(slab *kvcache.Slab, clk clock.Clock) (engine.Executor, error) {
		return &computing{clk: clk, slab: slab, cfg: p}, nil
	}
}

func (c *computing) Admit(uint64, string, string, []kvcache.Token, engine.Use) {}
func (c *computing) Forget(uint64)                                             {}
func (c *computing) Load(uint64, []kvcache.Ref, int)                           {}
func (c *computing) Progress() uint64                                          { return c.rows.Load() }
func (c *computing) Close() error                                              { return nil }

func (c *computing) Run(ctx context.Context, step *engine.Step, layer func(int, time.Duration), read func()) (time.Duration, []kvcache.Token, error) {
	if ctx.Err() != nil {
		return 0, nil, context.Cause(ctx)
	}
	xs := make([][]uint64, len(step.Works)) // of each work's positions
	for i, w := range step.Works {
		for at := w.From; at < w.From+w.N; at++ {
			xs[i] = append(xs[i], hash(uint64(w.Seq.Tokens(at)[0]), uint64(at)))
		}
	}
	for l := range c.slab.Geometry().Layers {
		for i, w := range step.Works {
			for j, x := range xs[i] {
				k, v := c.row(w.Seq, l, w.From+j)
				expand(k, hash(x, 1))
				expand(v, hash(x, 2))
				c.rows.Add(1)
				bt := c.slab.Geometry().BlockTokens
				ref, rows := w.Seq.Table.Refs()[(w.From+j)/bt], (w.From+j)%bt+1
				c.slab.Seal(ref, l, rows)
				c.slab.Seal(ref, c.slab.Geometry().Layers, rows) // hidden states, whatever they are
			}
			for j := range xs[i] {
				xs[i][j] = c.attend(w.Seq, l, w.From+j)
			}
		}
		if layer != nil {
			layer(l, c.clk.Now())
		}
	}
	var tokens []kvcache.Token
	for i, w := range step.Works {
		if w.Sample {
			tokens = append(tokens, kvcache.Token(xs[i][w.N-1]%uint64(c.cfg.Vocab)))
		}
	}
	return c.clk.Now(), tokens, nil
}

// attend is what comes out of a layer at a position.
func (c *computing) attend(q *engine.Sequence, l, at int) (x uint64) {
	for i := range at + 1 {
		k, v := c.row(q, l, i)
		for _, row := range [][]byte{k, v} {
			for ; len(row) > 0; row = row[8:] {
				x = hash(x, binary.LittleEndian.Uint64(row))
			}
		}
	}
	return x
}

// row is K and V of one position in a sequence's blocks.
func (c *computing) row(q *engine.Sequence, l, at int) (k, v []byte) {
	g := c.slab.Geometry()
	id := q.Table.Refs()[at/g.BlockTokens].ID
	n := g.KVHeads * g.HeadDim * g.ElemBytes
	from := at % g.BlockTokens * n
	return c.slab.K(id, l)[from : from+n], c.slab.V(id, l)[from : from+n]
}

func expand(row []byte, x uint64) {
	for ; len(row) > 0; row = row[8:] {
		binary.LittleEndian.PutUint64(row, x)
		x = hash(x, 3)
	}
}

// hash is a step of splitmix64 over both words.
func hash(a, b uint64) uint64 {
	x := a ^ b*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31 + 1
}
