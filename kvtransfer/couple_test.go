package kvtransfer

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"kvferry/internal/clock"
	"kvferry/kvcache"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

var geometry = kvcache.Geometry{Layers: 3, KVHeads: 2, HeadDim: 4, ElemBytes: 2, BlockTokens: 4, HiddenSize: 8}

const blocks = 32

// A half is an agent of a test, and what it was told.
type half struct {
	*Agent
	t     *testing.T
	slab  *kvcache.Slab
	unmap func() error
	clk   clock.Clock
	rail  *transporttest.Rail
	mu    sync.Mutex
	ends  map[uint64][]End // of its grants
	moved []Moved
	came  []Arrival
}

// A couple is two halves on one network; what one releases the other one hears.
type couple struct {
	net  *transporttest.Network
	a, b *half
}

func newCouple(t *testing.T, set func(*Config)) *couple {
	c := &couple{net: transporttest.NewNetwork()}
	c.a, c.b = newHalf(t, c.net, "a", set), newHalf(t, c.net, "b", set)
	c.a.cfg.Release = func(d Descriptor) { c.b.Released(d.Transfer) }
	c.b.cfg.Release = func(d Descriptor) { c.a.Released(d.Transfer) }
	return c
}

func newHalf(t *testing.T, network *transporttest.Network, name string, set func(*Config)) *half {
	t.Helper()
	mem, unmap, err := transport.MapMemory(blocks * geometry.SlotBytes())
	if err != nil {
		t.Fatal(err)
	}
	slab, err := kvcache.NewSlab(geometry, mem)
	if err != nil {
		t.Fatal(err)
	}
	slab.KeepDigests()
	h := &half{t: t, slab: slab, unmap: unmap, clk: clock.Std(), rail: network.Rail(name), ends: make(map[uint64][]End)}
	cfg := Config{
		Name: name, Slab: slab, Logger: slog.New(slog.DiscardHandler),
		Transport: transport.Config{Rails: []transport.Rail{h.rail}, Clock: h.clk, Logger: slog.New(slog.DiscardHandler)},
	}
	if set != nil {
		set(&cfg)
	}
	if h.Agent, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	return h
}

func (c *couple) close() {
	for _, h := range []*half{c.a, c.b} {
		if err := h.Close(); err != nil {
			h.t.Error(err)
		}
		if err := h.unmap(); err != nil {
			h.t.Error(err)
		}
	}
}

// refs are blocks from first on.
func refs(first, n int) []kvcache.Ref {
	out := make([]kvcache.Ref, n)
	for i := range out {
		out[i] = kvcache.Ref{ID: kvcache.BlockID(first + i), Gen: 1}
	}
	return out
}

func prompt(n int) []kvcache.Token {
	out := make([]kvcache.Token, n)
	for i := range out {
		out[i] = kvcache.Token(7 * i)
	}
	return out
}

// fill writes a prompt's KV and hidden states into blocks, and seals them.
func (h *half) fill(content *kvcache.Content, to []kvcache.Ref) {
	for i, r := range to {
		rows := min(content.Tokens()-i*geometry.BlockTokens, geometry.BlockTokens)
		for l := range geometry.Layers {
			content.Fill(h.slab.Layer(r.ID, l), i, l)
			h.slab.Seal(r, l, rows)
		}
		content.FillHidden(h.slab.Hidden(r.ID), i)
		h.slab.Seal(r, geometry.Layers, rows)
	}
}

func (h *half) grant(transfer uint64, terms Terms) *Grant {
	h.t.Helper()
	terms.OnEnd = func(e End) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.ends[transfer] = append(h.ends[transfer], e)
	}
	terms.OnArrival = func(a Arrival) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.came = append(h.came, a)
	}
	g, err := h.Grant(transfer, terms)
	if err != nil {
		h.t.Fatal(err)
	}
	return g
}

func (h *half) open(d Descriptor, opt Options) *Transfer {
	h.t.Helper()
	x, err := h.Open(d, opt)
	if err != nil {
		h.t.Fatal(err)
	}
	return x
}

// start moves a part between the local blocks and those of the descriptor.
func (h *half) start(x *Transfer, op transport.Op, part Part, local []kvcache.Ref, notify bool, value uint32) {
	x.Move(Move{Op: op, Part: part, Pairs: kvcache.Pairs(local, x.Descriptor().Blocks, 0), Notify: notify, Value: value, Done: func(m Moved) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.moved = append(h.moved, m)
	}})
}

// ended expects that the moves of a half have ended so, in this order, and forgets them.
func (h *half) ended(want ...error) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.moved) != len(want) {
		h.t.Fatalf("%d moves have ended, want %d: %v", len(h.moved), len(want), h.moved)
	}
	for i, m := range h.moved {
		if !errors.Is(m.Err, want[i]) || (m.Err == nil) != (m.Bytes > 0) {
			h.t.Errorf("move %d: %d bytes, %v, want %v", i, m.Bytes, m.Err, want[i])
		}
	}
	h.moved = nil
}

// over expects how a grant has ended, with nothing for not yet.
func (h *half) over(transfer uint64, want ...End) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.ends[transfer], want) {
		h.t.Errorf("grant %d has ended %v, want %v", transfer, h.ends[transfer], want)
	}
}

func (h *half) empty() {
	h.t.Helper()
	if left := h.Left(); left != (Left{}) {
		h.t.Errorf("%+v is left", left)
	}
}
