package kvcache

import "testing"

// BenchmarkContent fills one layer of one block (32 KiB), hot, and whole slots
// of a touched slab of 256 MiB (cold: larger than the L3 cache).
func BenchmarkContent(b *testing.B) {
	c := NewContent(qwen, "", "", testTokens(qwen.BlockTokens))
	layer := make([]byte, qwen.LayerBytes())
	hidden := make([]byte, qwen.HiddenBytes())
	c.Fill(layer, 0, 1)
	c.FillHidden(hidden, 0)

	run := func(name string, bytes int, f func(i int)) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(bytes))
			for i := 0; b.Loop(); i++ {
				f(i)
			}
		})
	}
	run("fill/hot", len(layer), func(int) { c.Fill(layer, 0, 1) })
	run("fillhidden/hot", len(hidden), func(int) { c.FillHidden(hidden, 0) })

	const blocks = 256
	s, err := NewSlab(qwen, make([]byte, blocks*qwen.SlotBytes()))
	if err != nil {
		b.Fatal(err)
	}
	fill := func(i int) {
		for l := range qwen.Layers {
			c.Fill(s.Layer(BlockID(i%blocks), l), 0, l)
		}
	}
	for i := range blocks {
		fill(i)
	}
	run("fill/cold", qwen.BlockBytes(), fill)
}

// BenchmarkNewContent is the price of a prompt of 1,024 tokens before its first
// block can be filled.
func BenchmarkNewContent(b *testing.B) {
	tokens := testTokens(1024)
	b.ReportAllocs()
	for b.Loop() {
		NewContent(qwen, "", "", tokens)
	}
}

// BenchmarkPrefixHashes is a prompt of 1,024 tokens: 64 blocks.
func BenchmarkPrefixHashes(b *testing.B) {
	tokens := testTokens(1024)
	b.ReportAllocs()
	for b.Loop() {
		PrefixHashes(Hash{}, tokens, 16)
	}
}

// BenchmarkPool is one request of 64 blocks: allocated, committed, released,
// matched and released again.
func BenchmarkPool(b *testing.B) {
	p := NewPool(1024, 16, true)
	hashes := PrefixHashes(Hash{}, testTokens(1024), 16)
	b.ReportAllocs()
	for b.Loop() {
		refs, ok := p.Alloc(len(hashes))
		if !ok {
			b.Fatal("pool exhausted")
		}
		mustCheck(b, p.Commit(refs, hashes))
		mustCheck(b, p.Release(refs))
		mustCheck(b, p.Release(p.Match(hashes)))
	}
}

func mustCheck(b *testing.B, err error) {
	if err != nil {
		b.Fatal(err)
	}
}
