package connector

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"kvferry/engine"
	"kvferry/engine/batching"
	"kvferry/handoff"
	"kvferry/handoff/handofftest"
	"kvferry/kvcache"
	"kvferry/transport"
)

// parts are the moves of a prompt under a hand-off.
func parts(h handoff.Handoff, layers int) (ms []Move) {
	write := h.Moves(handoff.PrefillLeg)
	switch h.Parts {
	case handoff.Tensors:
		ms = append(ms, Move{Part: TensorK}, Move{Part: TensorV}, Move{Part: TensorHidden})
	case handoff.Whole:
		ms = append(ms, Move{Part: PartAll, Write: write})
	case handoff.Layers:
		for l := range layers {
			ms = append(ms, Move{Part: l, Write: write})
		}
	}
	return ms
}

// TestRequestsCover: the parts of a hand-off together move each byte of a
// prompt's KV (and of its hidden states under v0) exactly once, from its place in
// our block to the same place in theirs, and nothing else; a block that the
// prompt half fills is half moved, one after the prompt is not, nor are blocks left
// out of Pairs.
func TestRequestsCover(t *testing.T) {
	small := kvcache.Geometry{Layers: 3, KVHeads: 2, HeadDim: 4, ElemBytes: 2, BlockTokens: 4, HiddenSize: 8}
	for _, h := range handofftest.Every() {
		for _, skip := range []int{0, 1} {
			for tokens := skip*small.BlockTokens + 1; tokens <= 13; tokens++ {
				t.Run(fmt.Sprintf("%v/%d tokens/skip %d", h, tokens, skip), func(t *testing.T) {
					cover(t, small, h, tokens, skip)
				})
			}
		}
	}
}

func cover(t *testing.T, g kvcache.Geometry, h handoff.Handoff, tokens, skip int) {
	const slots = 12
	slab, err := kvcache.NewSlab(g, make([]byte, slots*g.SlotBytes()))
	if err != nil {
		t.Fatal(err)
	}
	// Blocks lie anywhere, here and there.
	local := func(i int) kvcache.BlockID { return kvcache.BlockID(2*i + 1) }
	remote := func(i int) kvcache.BlockID { return kvcache.BlockID(slots - 1 - i) }
	var pairs []Pair
	for i := skip; i <= g.Blocks(tokens); i++ {
		pairs = append(pairs, Pair{Index: i, Local: kvcache.Ref{ID: local(i), Gen: 1}, Remote: kvcache.Ref{ID: remote(i), Gen: 1}})
	}
	// want maps each byte of our slab that must move to where.
	want := map[int64]int64{}
	row := g.KVHeads * g.HeadDim * g.ElemBytes
	for tok := skip * g.BlockTokens; tok < tokens; tok++ {
		i, r := tok/g.BlockTokens, tok%g.BlockTokens
		add := func(from, to int64, n int) {
			for b := range int64(n) {
				want[from+b] = to + b
			}
		}
		for l := range g.Layers {
			for kv := range 2 {
				at := int64(kv*g.BlockTokens*row + r*row)
				add(g.LayerOffset(local(i), l)+at, g.LayerOffset(remote(i), l)+at, row)
			}
		}
		if h == handoff.V0 {
			at := int64(r * g.HiddenTokenBytes())
			add(g.HiddenOffset(local(i))+at, g.HiddenOffset(remote(i))+at, g.HiddenTokenBytes())
		}
	}
	base := uintptr(unsafe.Pointer(unsafe.SliceData(slab.Bytes())))
	moved := map[int64]bool{}
	for _, m := range parts(h, g.Layers) {
		m.Pairs = pairs
		for _, q := range Requests(slab, m, tokens) {
			if (q.Op == transport.Write) != h.Moves(handoff.PrefillLeg) {
				t.Fatalf("part %d: %v", m.Part, q.Op)
			}
			if len(q.Local) == 0 {
				t.Fatalf("part %d: a request of nothing", m.Part)
			}
			from := int64(uintptr(unsafe.Pointer(unsafe.SliceData(q.Local))) - base)
			for b := range int64(len(q.Local)) {
				to, ok := want[from+b]
				switch {
				case !ok:
					t.Fatalf("part %d moves byte %d of the slab, which is not the prompt's", m.Part, from+b)
				case to != q.Offset+b:
					t.Fatalf("part %d moves byte %d to %d, want %d", m.Part, from+b, q.Offset+b, to)
				case moved[from+b]:
					t.Fatalf("part %d moves byte %d again", m.Part, from+b)
				}
				moved[from+b] = true
			}
		}
	}
	if len(moved) != len(want) {
		t.Fatalf("%d of %d bytes are moved", len(moved), len(want))
	}
}

// TestWindowFits: a hand-off's window lets through all of its moves, and nothing of
// another block, nor hidden states that are not the transfer's to touch.
func TestWindowFits(t *testing.T) {
	g := kvcache.Geometry{Layers: 3, KVHeads: 2, HeadDim: 4, ElemBytes: 2, BlockTokens: 4, HiddenSize: 8}
	const slots, tokens = 12, 14 // the last of four blocks is half full
	slab, err := kvcache.NewSlab(g, make([]byte, slots*g.SlotBytes()))
	if err != nil {
		t.Fatal(err)
	}
	remote := []kvcache.Ref{{ID: 9}, {ID: 2}, {ID: 3}, {ID: 11}}
	for _, h := range handofftest.Every() {
		op, ranges := Window(g, h, remote)
		access, err := transport.NewAccess(op, ranges)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range parts(h, g.Layers) {
			for i, b := range remote {
				m.Pairs = append(m.Pairs, Pair{Index: i, Local: kvcache.Ref{ID: kvcache.BlockID(i)}, Remote: b})
			}
			for _, q := range Requests(slab, m, tokens) {
				if _, err := access.Check(q.Op, q.Offset, int64(len(q.Local)), 0); err != nil {
					t.Errorf("%v part %d: %v of %d bytes at %d: %v", h, m.Part, q.Op, len(q.Local), q.Offset, err)
				}
			}
		}
		for id := range kvcache.BlockID(slots) {
			mine := slices.ContainsFunc(remote, func(r kvcache.Ref) bool { return r.ID == id })
			for at := g.BlockOffset(id); at < g.BlockOffset(id+1); at++ {
				want := mine && (h.Parts == handoff.Tensors || at < g.HiddenOffset(id))
				if _, err := access.Check(op, at, 1, 0); (err == nil) != want {
					t.Fatalf("%v: byte %d of block %d: %v, open should be %v", h, at-g.BlockOffset(id), id, err, want)
				}
				if _, err := access.Check(1-op, at, 1, 0); err == nil {
					t.Fatalf("%v: byte %d of block %d is open in the other direction", h, at-g.BlockOffset(id), id)
				}
			}
		}
	}
}

// TestRequestsBytes: what the published model's prompts weigh, and in how many
// requests they go.
func TestRequestsBytes(t *testing.T) {
	prof, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	slab, err := kvcache.NewSlab(prof.KVGeometry, make([]byte, 64*prof.KVGeometry.SlotBytes()))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		hand     handoff.Handoff
		tokens   int
		requests int
	}{
		{handoff.V0, 245, 16 * (28 + 28 + 1)},
		{handoff.Pull, 245, 15 + 28*2}, // full blocks whole; K and V rows of each layer of the last
		{handoff.Pull, 240, 15},
		{handoff.Push, 245, 15 + 28*2},
		{handoff.Layerwise, 245, 28 * (15 + 2)},
		{handoff.Layerwise, 1012, 28 * (63 + 2)},
	} {
		var pairs []Pair
		for i := range prof.KVGeometry.Blocks(c.tokens) {
			ref := kvcache.Ref{ID: kvcache.BlockID(i), Gen: 1}
			pairs = append(pairs, Pair{Index: i, Local: ref, Remote: ref})
		}
		bytes, requests := 0, 0
		for _, m := range parts(c.hand, prof.KVGeometry.Layers) {
			m.Pairs = pairs
			for _, q := range Requests(slab, m, c.tokens) {
				bytes += len(q.Local)
				requests++
			}
		}
		want := c.tokens * 57_344
		if c.hand.Parts == handoff.Tensors {
			want += c.tokens * 7_168
		}
		if bytes != want || requests != c.requests {
			t.Errorf("%v of %d tokens: %d bytes in %d requests, want %d in %d", c.hand, c.tokens, bytes, requests, want, c.requests)
		}
	}
}

func TestImmediate(t *testing.T) {
	for _, transfer := range []uint64{0, 1, 1<<24 - 1} {
		for _, layer := range []int{0, 27, maxLayers - 1, PartAll} {
			for _, token := range []uint32{0, 151_935, 1<<32 - 1} {
				tr, l, tok := DecodeImm(EncodeImm(transfer, layer, token))
				if tr != transfer || l != layer || tok != token {
					t.Errorf("%d, %d, %d comes back as %d, %d, %d", transfer, layer, token, tr, l, tok)
				}
			}
		}
	}
	if tr, _, _ := DecodeImm(EncodeImm(1<<24+5, 0, 0)); tr != 5 {
		t.Errorf("a transfer's low 24 bits come back as %d", tr)
	}
}

func TestNewCore(t *testing.T) {
	prof := smallProfile()
	prof.KVGeometry.Layers = maxLayers
	pool := kvcache.NewPool(4, 4, false)
	sched, err := batching.NewScheduler(batching.ConfigOf(prof, batching.PrefillFirst, pool))
	if err != nil {
		t.Fatal(err)
	}
	good := Config{Scheduler: sched, Pool: pool, Profile: prof, HoldTimeout: 1}
	if _, err := NewCore(good); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*Config){
		"Scheduler is nil":   func(c *Config) { c.Scheduler = nil },
		"Pool is nil":        func(c *Config) { c.Pool = nil },
		"Profile is nil":     func(c *Config) { c.Profile = nil },
		"HoldTimeout is 0s":  func(c *Config) { c.HoldTimeout = 0 },
		"HoldTimeout is -1s": func(c *Config) { c.HoldTimeout = -time.Second },
		"kv_geometry.layers is 256": func(c *Config) {
			c.Profile = smallProfile()
			c.Profile.KVGeometry.Layers = maxLayers + 1
		},
	} {
		cfg := good
		spoil(&cfg)
		if _, err := NewCore(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q in it", err, want)
		}
	}
}

// TestTensors: what v0's copies and the step's extraction are charged for.
func TestTensors(t *testing.T) {
	prof, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	c := &Core{cfg: Config{Profile: prof}}
	for tensor, want := range map[int]float64{TensorK: 28.672, TensorV: 28.672, TensorHidden: 7.168} {
		if got := c.tensorMB(tensor, 1000); math.Abs(got-want) > 1e-9 {
			t.Errorf("tensor %d of 1000 tokens has %v MB, want %v", tensor, got, want)
		}
	}
	if got := c.megabytes(1000); math.Abs(got-64.512) > 1e-9 {
		t.Errorf("1000 tokens have %v MB, want 64.512", got)
	}
}

// TestBreakdownAdd: every part of the other leg counts.
func TestBreakdownAdd(t *testing.T) {
	var a, b Breakdown
	va, vb := reflect.ValueOf(&a).Elem(), reflect.ValueOf(&b).Elem()
	for i := range va.NumField() {
		va.Field(i).SetInt(int64(100 + i))
		vb.Field(i).SetInt(int64(10 * (i + 1)))
	}
	a.Add(&b)
	for i := range va.NumField() {
		if got, want := va.Field(i).Int(), int64(110+11*i); got != want {
			t.Errorf("%s is %d, want %d", va.Type().Field(i).Name, got, want)
		}
	}
}
