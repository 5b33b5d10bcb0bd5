package kvcache

import (
	"errors"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
)

func sealedSlab(t testing.TB, g Geometry, blocks int) *Slab {
	t.Helper()
	s, err := NewSlab(g, make([]byte, blocks*g.SlotBytes()))
	if err != nil {
		t.Fatal(err)
	}
	s.KeepDigests()
	return s
}

var digestGeometry = Geometry{Layers: 3, KVHeads: 2, HeadDim: 12, ElemBytes: 2, BlockTokens: 4, HiddenSize: 10}

// TestSealGrows: however a block comes to its rows, one at a time or several, its digest is the
// one that another node computes from the same bytes, and any bit of its rows counts. What lies
// behind them does not.
func TestSealGrows(t *testing.T) {
	g := digestGeometry
	rng := rand.New(rand.NewPCG(1, 2))
	s := sealedSlab(t, g, 4)
	for gen := range uint32(200) {
		ref := Ref{ID: BlockID(rng.IntN(3)), Gen: gen + 1}
		layer := rng.IntN(g.Layers + 1)
		src := s.layerOrHidden(ref.ID, layer)
		for i := range src {
			src[i] = byte(rng.Uint32())
		}
		rows := 0
		for last := 1 + rng.IntN(g.BlockTokens); rows < last; {
			rows += 1 + rng.IntN(last-rows)
			s.Seal(ref, layer, rows)
		}
		sum, n := s.Sealed(ref, layer)
		if n != rows || sum != s.Digest(ref.ID, layer, rows) {
			t.Fatalf("%d rows of layer %d: sealed %x of %d rows, computed %x", rows, layer, sum, n, s.Digest(ref.ID, layer, rows))
		}
		plane, row := len(src), g.HiddenTokenBytes()
		if layer < g.Layers {
			plane, row = g.planeBytes(), g.rowBytes()
		}
		at := rng.IntN(len(src))
		inside := at%plane < rows*row
		src[at] ^= 1 << rng.IntN(8)
		if _, err := s.Verify(ref, 7, layer, layer+1); (err != nil) != inside {
			t.Fatalf("%d rows of layer %d, byte %d of %d: %v", rows, layer, at, len(src), err)
		}
		if _, n := s.Sealed(Ref{ID: ref.ID, Gen: gen + 2}, layer); n != 0 {
			t.Fatal("the next tenant has a digest")
		}
	}
}

// TestSealKeepsChange: a row that is added to a block does not make bytes right that have
// changed since they were sealed, nor does the last one that fills it.
func TestSealKeepsChange(t *testing.T) {
	g := digestGeometry
	s := sealedSlab(t, g, 1)
	for at := 1; at < g.BlockTokens; at++ {
		ref := Ref{Gen: uint32(at)}
		clear(s.Layer(0, 0))
		s.Seal(ref, 0, at)
		s.K(0, 0)[0] ^= 1
		for rows := at + 1; rows <= g.BlockTokens; rows++ {
			s.Seal(ref, 0, rows)
			known, err := s.Verify(ref, 5, 0, 1)
			var digest *DigestError
			if !known && err == nil || !errors.As(err, &digest) || digest.Index != 5 || digest.Layer != 0 {
				t.Errorf("sealed with %d rows, changed, and with %d rows: %v", at, rows, err)
			}
		}
	}
}

// TestNoDigests: a slab that keeps none has none, and finds nothing.
func TestNoDigests(t *testing.T) {
	s, err := NewSlab(digestGeometry, make([]byte, digestGeometry.SlotBytes()))
	if err != nil {
		t.Fatal(err)
	}
	ref := Ref{Gen: 1}
	s.Seal(ref, 0, 4)
	s.Land(ref, 0, 4, 9)
	if known, err := s.Verify(ref, 0, 0, 1); known || err != nil {
		t.Errorf("known: %t, %v", known, err)
	}
}

// TestEvict: a block that is evicted is matched no more, and not committed again while it is
// held; recycled, it is as good as any. Others stay, and so does whoever holds it.
func TestEvict(t *testing.T) {
	p := NewPool(4, 4, true)
	hashes := PrefixHashes(Root("", ""), make([]Token, 12), 4)
	refs, _ := p.Alloc(3)
	if err := p.Commit(refs, hashes); err != nil {
		t.Fatal(err)
	}
	p.Evict(refs[1:])
	if n := p.Lookup(hashes); n != 1 {
		t.Errorf("%d blocks are found, want 1", n)
	}
	if err := p.Commit(refs, hashes); err != nil {
		t.Error(err)
	}
	if n := p.Lookup(hashes); n != 1 || !p.Valid(refs[2]) || p.Prefixes() != 1 {
		t.Errorf("%d blocks are found after a Commit, want 1; held: %t; %d prefixes", n, p.Valid(refs[2]), p.Prefixes())
	}
	if err := p.Release(refs); err != nil {
		t.Fatal(err)
	}
	if p.Free() != 4 || p.Cached() != 1 {
		t.Errorf("%d free, %d cached", p.Free(), p.Cached())
	}
	p.Evict(refs) // of what nobody holds
	p.Evict(refs)
	if p.Free() != 4 || p.Cached() != 0 || p.Prefixes() != 0 {
		t.Errorf("%d free, %d cached, %d prefixes", p.Free(), p.Cached(), p.Prefixes())
	}
	again, _ := p.Alloc(4)
	if p.Current(refs[0]) || !p.Current(again[0]) {
		t.Error("a block is current that was recycled")
	}
	p.Evict(refs) // long gone
	slices.SortFunc(again, func(a, b Ref) int { return int(a.ID) - int(b.ID) })
	if err := p.Commit(again[:3], hashes); err != nil || p.Lookup(hashes) != 3 {
		t.Errorf("%d blocks are found once recycled, %v", p.Lookup(hashes), err)
	}
}

// BenchmarkDigest measures the CPU time of digests in seconds a GB of KV. write is the time that the
// modelled GPU takes to write the KV; seal, of a block right after it was written; land, of the 16
// blocks of a prompt of 256 tokens when a layer of all has been written; check, of bytes out
// of memory.
func BenchmarkDigest(b *testing.B) {
	g := Geometry{Layers: 28, KVHeads: 4, HeadDim: 128, ElemBytes: 2, BlockTokens: 16}
	const blocks = 256 // 235 MB: more than any cache has
	s := sealedSlab(b, g, blocks)
	content := NewContent(g, "", "", make([]Token, blocks*g.BlockTokens))
	cpu := func() float64 {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			b.Fatal(err)
		}
		return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
	}
	pass := func(gen uint32, do func(ref Ref, i, layer int)) float64 {
		began := cpu()
		for l := range g.Layers {
			for i := range blocks {
				do(Ref{ID: BlockID(i), Gen: gen}, i, l)
			}
		}
		return (cpu() - began) / float64(blocks*g.BlockBytes()) * 1e9
	}
	var write, seal, land, check []float64
	gen := uint32(0)
	for b.Loop() {
		gen++
		w := pass(gen, func(ref Ref, i, l int) { content.Fill(s.Layer(ref.ID, l), i, l) })
		both := pass(gen, func(ref Ref, i, l int) {
			content.Fill(s.Layer(ref.ID, l), i, l)
			s.Seal(ref, l, g.BlockTokens)
		})
		write, seal = append(write, w), append(seal, both-w)
		gen++
		land = append(land, pass(gen, func(ref Ref, i, l int) {
			content.Fill(s.Layer(ref.ID, l), i, l)
			for j := i - 15; i%16 == 15 && j <= i; j++ {
				s.Land(Ref{ID: BlockID(j), Gen: gen}, l, g.BlockTokens, s.Digest(BlockID(j), l, g.BlockTokens))
			}
		})-w)
		check = append(check, pass(gen, func(ref Ref, i, l int) {
			if _, err := s.Verify(ref, i, l, l+1); err != nil {
				b.Fatal(err)
			}
		}))
	}
	median := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	b.ReportMetric(median(write), "write-s/GB")
	b.ReportMetric(median(seal), "seal-s/GB")
	b.ReportMetric(median(land), "land-s/GB")
	b.ReportMetric(median(check), "check-s/GB")
	b.ReportMetric(0, "ns/op")
}
