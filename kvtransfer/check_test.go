package kvtransfer

import (
	"slices"
	"testing"
	"testing/synctest"

	"kvferry/kvcache"
	"kvferry/transport"
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

// known returns how many layers have a digest.
func (d *Digested) known() (n int) {
	for i := range d.sums {
		if d.sums[i] != 0 {
			n++
		}
	}
	return n
}

// TestDigestedWrites: what a peer writes, a layer at a time, is digested as it lands if all rails watch writes, and compared
// so. What is written once more, in part, is read again.
func TestDigestedWrites(t *testing.T) {
	const tokens = 7*4 + 1
	for _, watch := range []bool{true, false} {
		for _, flip := range [][]int{nil, {5}, {6, 2, 4}} { // blocks that are changed once they were sealed
			synctest.Test(t, func(t *testing.T) {
				c := newCouple(t, func(cfg *Config) {
					if !watch {
						cfg.Transport.Rails[0] = struct{ transport.Rail }{cfg.Transport.Rails[0]}
					}
				})
				defer c.close()
				from, to := refs(0, 8), refs(10, 8)
				c.a.fill(kvcache.NewContent(geometry, "", "", prompt(tokens)), from)
				for _, i := range flip {
					c.a.slab.V(from[i].ID, 1)[1] ^= 8
				}
				x := c.a.open(c.b.grant(1, Terms{Op: transport.Write, Blocks: to, Tokens: tokens + 9, Digest: true}).Descriptor(), Options{})
				for l := range geometry.Layers {
					x.Move(Move{Op: transport.Write, Part: Part{Layer: l}, Pairs: kvcache.Pairs(from, x.Descriptor().Blocks, 0), Tokens: tokens, Notify: true, Done: func(Moved) {}})
					synctest.Wait()
				}
				c.a.start(x, transport.Write, Part{Layer: 2, Plane: K}, from[:1], false, 0)
				synctest.Wait()
				c.a.ended(nil)
				known := 0
				if watch {
					known = 7*3 - 1
				}
				for l, a := range c.b.came {
					if n := a.Landed.known(); n != known {
						t.Errorf("watched %v: %d layers were digested as they landed, want %d", watch, n, known)
					}
					check := Check{Blocks: to, Part: Part{Layer: l}, Want: a.Digests, Landed: a.Landed}
					want := Checked{Blocks: 8}
					if l == 1 && len(flip) > 0 {
						want.Bad, want.From = len(flip), slices.Min(flip)
					}
					got := check.run(c.b.slab)
					err := got.Err
					if got.Err = nil; got != want || (err != nil) != (want.Bad > 0) {
						t.Errorf("watched %v, layer %d: %+v, %v, want %+v", watch, l, got, err, want)
					}
				}
				x.Close(true)
			})
		}
	}
}

// TestDigested: what a read brings is digested as it lands, while the rest is under way, and compared so: bytes that were
// wrong then are bad, and what becomes of them afterwards is a later check's to find.
func TestDigested(t *testing.T) {
	const tokens = 7*4 + 1
	for slice, known := range map[int]int{384: 7 * 3, 200: 7 * 2, 100: 0} { // three layers of a block, of 128 bytes; two; none
		for _, flip := range [][]int{nil, {5}, {6, 2, 4}} { // blocks that are changed when their digests are made
			synctest.Test(t, func(t *testing.T) {
				c := newCouple(t, func(cfg *Config) { cfg.Transport.SliceSize = slice })
				defer c.close()
				from, to := refs(0, 8), refs(10, 8)
				c.a.fill(kvcache.NewContent(geometry, "", "", prompt(tokens)), from)
				d := c.a.grant(1, Terms{Op: transport.Read, Blocks: from, Tokens: tokens}).Descriptor()
				for _, i := range flip {
					c.a.slab.V(from[i].ID, 0)[1] ^= 8
				}
				x := c.b.open(d, Options{})
				done := make(chan Moved, 1)
				x.Move(Move{Op: transport.Read, Part: Whole, Pairs: kvcache.Pairs(to, d.Blocks, 0), Digest: true, Done: func(m Moved) { done <- m }})
				m := <-done
				if n := m.Digested.known(); m.Err != nil || n != known {
					t.Errorf("%v, slices of %d bytes: %d layers were digested as they landed, want %d", m.Err, slice, n, known)
				}
				check := Check{Blocks: to, Part: Whole, Want: d.Digests, Landed: m.Digested}
				got := check.run(c.b.slab)
				err := got.Err
				got.Err = nil
				want := Checked{Blocks: 8, Bad: len(flip)}
				if len(flip) > 0 {
					want.From = slices.Min(flip)
				}
				if got != want || (err != nil) != (want.Bad > 0) {
					t.Errorf("slices of %d bytes: %+v, %v, want %+v", slice, got, err, want)
				}
				c.b.slab.V(to[0].ID, 1)[1] ^= 8
				if got := check.run(c.b.slab); got.Bad != len(flip)+1 || got.From != 0 {
					t.Errorf("slices of %d bytes, block 0 has changed: %+v", slice, got)
				}
				x.Close(true)
			})
		}
	}
}
