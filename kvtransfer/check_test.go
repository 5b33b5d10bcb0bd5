package kvtransfer

import (
	"slices"
	"testing"

	"kvferry/kvcache"
)

// TestNoHidden: where blocks have no hidden states there is nothing to compare.
func TestNoHidden(t *testing.T) {
	g := geometry
	g.HiddenSize = 0
	slab, err := kvcache.NewSlab(g, make([]byte, 2*g.SlotBytes()))
	if err != nil {
		t.Fatal(err)
	}
	slab.KeepDigests()
	hidden := Part{Layer: AllLayers, Plane: Hidden}
	c := Check{Blocks: refs(0, 2), Part: hidden, Want: digests(slab, hidden, refs(2, 2), 0, 8, 2)}
	if got := c.run(slab); got != (Checked{Blocks: 2}) {
		t.Errorf("%+v", got)
	}
}

// TestRuns: a notice has room for a few sums; each is of as many blocks as it takes, and finds
// any two of them that have changed places.
func TestRuns(t *testing.T) {
	const blocks, tokens = 3*maxSums + 2, (3*maxSums+2)*4 - 1
	slab, err := kvcache.NewSlab(geometry, make([]byte, 2*blocks*geometry.SlotBytes()))
	if err != nil {
		t.Fatal(err)
	}
	slab.KeepDigests()
	content, sent, landed := kvcache.NewContent(geometry, "", "", prompt(tokens)), refs(0, blocks), refs(blocks, blocks)
	for i, ref := range sent {
		for l := range geometry.Layers {
			content.Fill(slab.Layer(ref.ID, l), i, l)
			slab.Seal(ref, l, min(tokens-4*i, 4))
			copy(slab.Layer(landed[i].ID, l), slab.Layer(ref.ID, l))
		}
	}
	part := Part{Layer: 1}
	n := Notice{Transfer: 1<<40 + 7, Layer: 1000, Value: 9, Digests: digests(slab, part, sent, 0, tokens, maxSums)}
	got, ok := decodeNotice(n.Encode())
	if !ok || got.Transfer != n.Transfer || got.Layer != 1000 || got.Value != 9 || got.Digests.Run != 4 || got.Digests.Tokens != tokens || !slices.Equal(got.Digests.Sums, n.Digests.Sums) {
		t.Fatalf("%+v, want %+v", got, n)
	}
	check := Check{Blocks: landed, Part: part, Want: got.Digests}
	swapped := slices.Clone(landed)
	swapped[1], swapped[2] = landed[2], landed[1]
	check.Blocks = swapped
	if got := check.run(slab); got.Bad != 1 || got.Blocks != blocks {
		t.Errorf("two blocks of a run in each other's place: %+v", got)
	}
	check.Blocks = landed
	if got := check.run(slab); got.Bad != 0 && got.From != 0 || got.Blocks != blocks {
		t.Errorf("%+v", got)
	}
}

// TestDecodeNotice: bytes of a peer that are no notice are none.
func TestDecodeNotice(t *testing.T) {
	n := Notice{Layer: AllLayers, Digests: Digests{Run: 1, Sums: []uint64{1, 2}}}
	whole := n.Encode()
	for _, b := range [][]byte{nil, whole[:noticeSize-1], whole[:noticeSize+7], append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff}, whole[12:]...)} {
		if _, ok := decodeNotice(b); ok {
			t.Errorf("%x is a notice", b)
		}
	}
	if got, ok := decodeNotice(whole); !ok || got.Layer != AllLayers {
		t.Errorf("%+v, %t", got, ok)
	}
}

// TestShares: the shares of a check are all of it, in order, and no digest is of blocks of two.
func TestShares(t *testing.T) {
	for n := range 7 {
		for run := range 6 {
			for first := range 5 {
				c := Check{Blocks: refs(0, 37), First: 2, Want: Digests{First: first, Run: run}}
				next := c.First
				for _, s := range c.shares(n) {
					if s.First != next || len(s.Blocks) == 0 || s.Blocks[0] != c.Blocks[next-c.First] || run > 0 && next > max(first, c.First) && (next-first)%run != 0 {
						t.Errorf("%d shares, runs of %d from %d: %d blocks from %d, want from %d", n, run, first, len(s.Blocks), s.First, next)
					}
					next += len(s.Blocks)
				}
				if next != c.First+len(c.Blocks) {
					t.Errorf("%d shares, runs of %d from %d: they end with %d", n, run, first, next)
				}
			}
		}
	}
}
