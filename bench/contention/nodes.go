package contention

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"kvferry/internal/clock"
	"kvferry/kvcache"
	"kvferry/kvtransfer"
	"kvferry/transport"
	"kvferry/transport/pacing"
	"kvferry/transport/rails"
)

// nodes are the transfer halves of some prefill nodes and of the decode node. The former have one
// slab together: the same prompt was computed by all.
type nodes struct {
	tokens           int
	prefill          []*kvtransfer.Agent
	decode           *kvtransfer.Agent
	computed, landed *kvcache.Slab
	clk              clock.Clock
	grants           uint64 // so far
	free             []func() error
}

// A way is one of the transfers: who grants blocks, and who moves bytes to or from them.
type way struct {
	granter, mover *kvtransfer.Agent
	op             transport.Op
}

func (x *nodes) way(i int, push bool) way {
	if push {
		return way{x.decode, x.prefill[i], transport.Write}
	}
	return way{x.prefill[i], x.decode, transport.Read}
}

// patience is how many times as long as its link takes a transfer may take.
const patience = 10

// open makes the nodes. Their memory is touched: no transfer waits for the kernel.
func open(ctx context.Context, cfg Config, n int) (x *nodes, err error) {
	x = &nodes{tokens: cfg.Tokens, clk: clock.Precise()}
	defer func() {
		if err != nil {
			x.close()
			x = nil
		}
	}()
	g := cfg.profile.KVGeometry
	g.HiddenSize = 0
	blocks := g.Blocks(cfg.Tokens)
	if left, ok := kvcache.Available(); ok && int64(n+1)*int64(blocks*g.SlotBytes()) > left {
		return x, fmt.Errorf("%d transfers of %d tokens take %d MiB of memory in real time, and %d are left: use fewer --transfers or --tokens, or --clock virtual",
			n, cfg.Tokens, int64(n+1)*int64(blocks*g.SlotBytes())>>20, left>>20)
	}
	if x.computed, err = x.slab(g, blocks); err != nil {
		return x, err
	}
	if err = fill(ctx, x.computed.Bytes()); err != nil {
		return x, err
	}
	if x.landed, err = x.slab(g, n*blocks); err != nil {
		return x, err
	}
	link := pacing.Link{BytesPerSecond: cfg.rate}
	dir, err := os.MkdirTemp("", "kvferry-contention-")
	if err != nil {
		return x, err
	}
	x.free = append(x.free, func() error { return os.RemoveAll(dir) })
	alone := time.Duration(float64(cfg.Tokens*g.TokenBytes()) / cfg.rate * 1e9)
	agent := func(name string, slab *kvcache.Slab) (*kvtransfer.Agent, error) {
		r, err := rails.Open(cfg.Rail, rails.Options{})
		if err != nil {
			return nil, err
		}
		return kvtransfer.New(kvtransfer.Config{
			Name: name, Slab: slab, Timeout: 10*time.Second + time.Duration(n*patience)*alone,
			Transport: transport.Config{Rails: []transport.Rail{r}, Link: &link, Ledger: filepath.Join(dir, "ledger"), Clock: x.clk},
		})
	}
	if x.decode, err = agent("decode-0", x.landed); err != nil {
		return x, err
	}
	for i := range n {
		p, err := agent(fmt.Sprintf("prefill-%d", i), x.computed)
		if err != nil {
			return x, err
		}
		x.prefill = append(x.prefill, p)
	}
	return x, nil
}

// slab is one of memory of its own.
func (x *nodes) slab(g kvcache.Geometry, blocks int) (*kvcache.Slab, error) {
	size, err := kvcache.SlabBytes(g, blocks)
	if err != nil {
		return nil, err
	}
	mem, free, err := transport.MapMemory(size)
	if err != nil {
		return nil, err
	}
	x.free = append(x.free, free)
	return kvcache.NewSlab(g, mem)
}

// fill makes the KV that is moved: any bytes, the same in each run.
func fill(ctx context.Context, mem []byte) error {
	source := rand.NewChaCha8([32]byte{1})
	return piecewise(ctx, len(mem), func(from, to int) error {
		_, err := source.Read(mem[from:to])
		return err
	})
}

// piece is how many bytes are gone through before anybody looks whether that is still wanted: a fifth of a
// second where memory is seen for the first time.
const piece = 16 << 20

// piecewise goes through n bytes until ctx ends.
func piecewise(ctx context.Context, n int, do func(from, to int) error) error {
	for from := 0; from < n; from += piece {
		err := context.Cause(ctx)
		if err == nil {
			err = do(from, min(from+piece, n))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *nodes) close() {
	for _, a := range append(x.prefill, x.decode) {
		if a != nil {
			_ = a.Close() // what was moved has ended
		}
	}
	for _, free := range x.free {
		_ = free()
	}
}

// move has n transfers begin at once, and compares what they brought.
func (x *nodes) move(ctx context.Context, push bool, n int) (*Added, int64, error) {
	if err := piecewise(ctx, len(x.landed.Bytes()), func(from, to int) error {
		clear(x.landed.Bytes()[from:to])
		return nil
	}); err != nil {
		return nil, 0, err
	}
	blocks := x.computed.Blocks()
	var open []*kvtransfer.Transfer
	defer func() {
		for _, t := range open {
			t.Close(true)
		}
	}()
	for i := range n {
		w := x.way(i, push)
		terms := kvtransfer.Terms{Op: w.op, Blocks: refs(0, blocks), Tokens: x.tokens}
		if push {
			terms.Blocks, terms.OnArrival = refs(i*blocks, blocks), func(kvtransfer.Arrival) {}
		}
		x.grants++
		grant, err := w.granter.Grant(x.grants, terms)
		if err != nil {
			return nil, 0, err
		}
		defer grant.Close()
		t, err := w.mover.Open(grant.Descriptor(), kvtransfer.Options{Tag: fmt.Sprintf("transfer %d", i)})
		if err != nil {
			return nil, 0, err
		}
		open = append(open, t)
	}
	over := make(chan kvtransfer.Moved, n)
	began := x.clk.Now()
	for i, t := range open {
		mine := refs(i*blocks, blocks)
		if push {
			mine = refs(0, blocks)
		}
		t.Move(kvtransfer.Move{
			Op: x.way(i, push).op, Part: kvtransfer.Whole, Pairs: kvcache.Pairs(mine, t.Descriptor().Blocks, 0), Since: began,
			Done: func(m kvtransfer.Moved) { over <- m },
		})
	}
	var took []time.Duration
	var err error
	for range open {
		select {
		case m := <-over:
			took, err = append(took, m.At-began), errors.Join(err, m.Err)
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
	if err != nil {
		return nil, 0, err
	}
	size := x.tokens * x.computed.Geometry().TokenBytes()
	if x.tokens%x.computed.Geometry().BlockTokens != 0 {
		size = (blocks - 1) * x.computed.Geometry().BlockBytes() // the last block is full in part
	}
	want := x.computed.Bytes()
	for i := range n {
		brought := x.landed.Bytes()[i*len(want):]
		if err := piecewise(ctx, size, func(from, to int) error {
			if !bytes.Equal(brought[from:to], want[from:to]) {
				return fmt.Errorf("what transfer %d brought is not what was computed", i)
			}
			return nil
		}); err != nil {
			return nil, 0, err
		}
	}
	return addedOf(took), int64(n) * int64(size), nil
}

// refs are n blocks of a slab that nobody else uses.
func refs(first, n int) []kvcache.Ref {
	out := make([]kvcache.Ref, n)
	for i := range out {
		out[i] = kvcache.Ref{ID: kvcache.BlockID(first + i), Gen: 1}
	}
	return out
}
