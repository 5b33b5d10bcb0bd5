package kvtransfer

import (
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"kvferry/kvcache"
	"kvferry/transport"
)

// splits are the ways to move all of a prompt in parts.
func splits(layers int) map[string][]Part {
	all := map[string][]Part{
		"tensors": {{Layer: AllLayers, Plane: K}, {Layer: AllLayers, Plane: V}, {Layer: AllLayers, Plane: Hidden}},
		"whole":   {Whole},
	}
	for l := range layers {
		all["layers"] = append(all["layers"], Part{Layer: l})
		all["K and V of a layer"] = append(all["K and V of a layer"], Part{Layer: l, Plane: K}, Part{Layer: l, Plane: V})
	}
	return all
}

// TestRequestsCover: the parts of a split together move each byte of a
// prompt's KV (and of its hidden states if one is they) exactly once, from its place in
// our block to the same place in theirs, and nothing else; a block that the
// prompt half fills is half moved, one after the prompt is not, nor are blocks left
// out of Pairs.
func TestRequestsCover(t *testing.T) {
	small := kvcache.Geometry{Layers: 3, KVHeads: 2, HeadDim: 4, ElemBytes: 2, BlockTokens: 4, HiddenSize: 8}
	for name, parts := range splits(small.Layers) {
		for _, skip := range []int{0, 1} {
			for tokens := skip*small.BlockTokens + 1; tokens <= 13; tokens++ {
				t.Run(fmt.Sprintf("%s/%d tokens/skip %d", name, tokens, skip), func(t *testing.T) {
					cover(t, small, parts, tokens, skip)
				})
			}
		}
	}
}

func cover(t *testing.T, g kvcache.Geometry, parts []Part, tokens, skip int) {
	const slots = 12
	slab, err := kvcache.NewSlab(g, make([]byte, slots*g.SlotBytes()))
	if err != nil {
		t.Fatal(err)
	}
	// Blocks lie anywhere, here and there.
	local := func(i int) kvcache.BlockID { return kvcache.BlockID(2*i + 1) }
	remote := func(i int) kvcache.BlockID { return kvcache.BlockID(slots - 1 - i) }
	var pairs []kvcache.Pair
	for i := skip; i <= g.Blocks(tokens); i++ {
		pairs = append(pairs, kvcache.Pair{Index: i, Local: kvcache.Ref{ID: local(i), Gen: 1}, Remote: kvcache.Ref{ID: remote(i), Gen: 1}})
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
		if hidden(parts) {
			at := int64(r * g.HiddenTokenBytes())
			add(g.HiddenOffset(local(i))+at, g.HiddenOffset(remote(i))+at, g.HiddenTokenBytes())
		}
	}
	base := uintptr(unsafe.Pointer(unsafe.SliceData(slab.Bytes())))
	moved := map[int64]bool{}
	for _, part := range parts {
		for _, q := range Requests(slab, transport.Write, part, pairs, tokens) {
			if q.Op != transport.Write {
				t.Fatalf("part %v: %v", part, q.Op)
			}
			if len(q.Local) == 0 {
				t.Fatalf("part %v: a request of nothing", part)
			}
			from := int64(uintptr(unsafe.Pointer(unsafe.SliceData(q.Local))) - base)
			for b := range int64(len(q.Local)) {
				to, ok := want[from+b]
				switch {
				case !ok:
					t.Fatalf("part %v moves byte %d of the slab, which is not the prompt's", part, from+b)
				case to != q.Offset+b:
					t.Fatalf("part %v moves byte %d to %d, want %d", part, from+b, q.Offset+b, to)
				case moved[from+b]:
					t.Fatalf("part %v moves byte %d again", part, from+b)
				}
				moved[from+b] = true
			}
		}
	}
	if len(moved) != len(want) {
		t.Fatalf("%d of %d bytes are moved", len(moved), len(want))
	}
}

func hidden(parts []Part) bool {
	return slices.ContainsFunc(parts, func(p Part) bool { return p.Plane == Hidden })
}

// TestWindowFits: what is opened for a transfer lets through all of its moves, and nothing of
// another block, nor hidden states that are not the transfer's to touch.
func TestWindowFits(t *testing.T) {
	g := kvcache.Geometry{Layers: 3, KVHeads: 2, HeadDim: 4, ElemBytes: 2, BlockTokens: 4, HiddenSize: 8}
	const slots, tokens = 12, 14 // the last of four blocks is half full
	slab, err := kvcache.NewSlab(g, make([]byte, slots*g.SlotBytes()))
	if err != nil {
		t.Fatal(err)
	}
	remote := []kvcache.Ref{{ID: 9}, {ID: 2}, {ID: 3}, {ID: 11}}
	for name, parts := range splits(g.Layers) {
		const op = transport.Write
		access, err := transport.NewAccess(op, ranges(g, remote, hidden(parts)))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range parts {
			var pairs []kvcache.Pair
			for i, b := range remote {
				pairs = append(pairs, kvcache.Pair{Index: i, Local: kvcache.Ref{ID: kvcache.BlockID(i)}, Remote: b})
			}
			for _, q := range Requests(slab, op, part, pairs, tokens) {
				if _, err := access.Check(q.Op, q.Offset, int64(len(q.Local)), 0); err != nil {
					t.Errorf("%s part %v: %v of %d bytes at %d: %v", name, part, q.Op, len(q.Local), q.Offset, err)
				}
			}
		}
		for id := range kvcache.BlockID(slots) {
			mine := slices.ContainsFunc(remote, func(r kvcache.Ref) bool { return r.ID == id })
			for at := g.BlockOffset(id); at < g.BlockOffset(id+1); at++ {
				want := mine && (hidden(parts) || at < g.HiddenOffset(id))
				if _, err := access.Check(op, at, 1, 0); (err == nil) != want {
					t.Fatalf("%v: byte %d of block %d: %v, open should be %v", name, at-g.BlockOffset(id), id, err, want)
				}
				if _, err := access.Check(1-op, at, 1, 0); err == nil {
					t.Fatalf("%v: byte %d of block %d is open in the other direction", name, at-g.BlockOffset(id), id)
				}
			}
		}
	}
}

// TestRequestsBytes: what the published model's prompts weigh, and in how many
// requests they go.
func TestRequestsBytes(t *testing.T) {
	g := kvcache.Geometry{Layers: 28, KVHeads: 4, HeadDim: 128, ElemBytes: 2, BlockTokens: 16, HiddenSize: 3584}
	slab, err := kvcache.NewSlab(g, make([]byte, 64*g.SlotBytes()))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		split    string
		tokens   int
		requests int
	}{
		{"tensors", 245, 16 * (28 + 28 + 1)},
		{"whole", 245, 15 + 28*2}, // full blocks whole; K and V rows of each layer of the last
		{"whole", 240, 15},
		{"layers", 245, 28 * (15 + 2)},
		{"layers", 1012, 28 * (63 + 2)},
	} {
		var pairs []kvcache.Pair
		for i := range g.Blocks(c.tokens) {
			ref := kvcache.Ref{ID: kvcache.BlockID(i), Gen: 1}
			pairs = append(pairs, kvcache.Pair{Index: i, Local: ref, Remote: ref})
		}
		bytes, requests := 0, 0
		for _, part := range splits(g.Layers)[c.split] {
			for _, q := range Requests(slab, transport.Read, part, pairs, c.tokens) {
				bytes += len(q.Local)
				requests++
			}
		}
		want := c.tokens * 57_344
		if c.split == "tensors" {
			want += c.tokens * 7_168
		}
		if bytes != want || requests != c.requests {
			t.Errorf("%v of %d tokens: %d bytes in %d requests, want %d in %d", c.split, c.tokens, bytes, requests, want, c.requests)
		}
	}
}
