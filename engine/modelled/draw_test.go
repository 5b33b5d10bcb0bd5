package modelled

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/engine/batching"
	"kvferry/kvcache"
)

// drawing is an executor that draws its tokens from KV, and the scheduler of its steps: chunks of 5
// tokens, blocks of 4.
type drawing struct {
	t     *testing.T
	m     *Executor
	slab  *kvcache.Slab
	sched engine.Scheduler
	now   time.Duration
}

func newDrawing(t *testing.T, vocab int) *drawing {
	t.Helper()
	p, err := engine.LoadProfile("zero")
	if err != nil {
		t.Fatal(err)
	}
	p = p.WithScheduler(engine.VLLMV1)
	p.KVGeometry.Layers, p.KVGeometry.KVHeads, p.KVGeometry.HeadDim, p.KVGeometry.BlockTokens = 3, 2, 9, 4 // rows of 36 bytes: no whole words
	p.SetBatch(4, 5)
	const blocks = 16
	slab, err := kvcache.NewSlab(p.KVGeometry, make([]byte, blocks*p.KVGeometry.SlotBytes()))
	if err != nil {
		t.Fatal(err)
	}
	for i := range slab.Bytes() {
		slab.Bytes()[i] = 0xa5 // what lies beyond the tokens is nobody's
	}
	m, err := New(&lateClock{}, engine.Costs{}, slab, vocab)
	if err != nil {
		t.Fatal(err)
	}
	m.TokensFromKV = true
	sched, err := batching.NewScheduler(batching.ConfigOf(p, false, kvcache.NewPool(blocks, p.KVGeometry.BlockTokens, false)))
	if err != nil {
		t.Fatal(err)
	}
	return &drawing{t: t, m: m, slab: slab, sched: sched}
}

// answer runs a request, and calls before, if not nil, before each step.
func (d *drawing) answer(r engine.Request, before func(*engine.Step)) (answer []kvcache.Token) {
	d.t.Helper()
	d.m.Admit(r.ID, r.Adapter, r.Salt, r.Prompt, 0)
	defer d.m.Forget(r.ID)
	for step := d.sched.Step(d.now, d.now, engine.Add{Request: r}).Launch; step != nil; {
		if before != nil {
			before(step)
		}
		// Nothing is written after all was read, and what becomes of it then changes no token.
		var kept []byte
		end, tokens, err := d.m.Run(d.t.Context(), step, nil, func() {
			kept = bytes.Clone(d.slab.Bytes())
			clear(d.slab.Bytes())
		})
		if err != nil {
			d.t.Fatal(err)
		}
		if kept == nil || bytes.ContainsFunc(d.slab.Bytes(), func(r rune) bool { return r != 0 }) {
			d.t.Fatal("a step did not say that it had read all KV, or wrote some after that")
		}
		copy(d.slab.Bytes(), kept)
		d.now, answer = end, append(answer, tokens...)
		step = d.sched.Step(end, end, engine.Done{At: end, Tokens: tokens}).Launch
	}
	return answer
}

// TestTokensFromKV: an executor that reads its KV gives the answer that follows from the request alone, by
// its prompt, adapter, salt, variant and words, as a whole or in two parts.
func TestTokensFromKV(t *testing.T) {
	const vocab = 1 << 20
	d := newDrawing(t, vocab)
	g := d.slab.Geometry()
	r := engine.Request{ID: 1, Prompt: []kvcache.Token{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5}, MaxTokens: 12}
	seen := map[string]bool{}
	for _, change := range []func(*engine.Request){
		func(*engine.Request) {},
		func(r *engine.Request) { r.Adapter = "sql" },
		func(r *engine.Request) { r.Salt = "sql" },
		func(r *engine.Request) { r.Variant = 1 },
		func(r *engine.Request) { r.Prompt = r.Prompt[:8] },
		func(r *engine.Request) { r.Words = engine.Words{First: 100, Count: 50} },
	} {
		r := r
		change(&r)
		want := Answer(g, vocab, &r)
		if got := d.answer(r, nil); !slices.Equal(got, want) || len(got) != r.MaxTokens {
			t.Errorf("%+v: %d, want %d", r, got, want)
		}
		if key := string(rune(want[0])) + string(rune(want[1])); seen[key] {
			t.Errorf("%+v has the answer of another request: %d", r, want)
		} else {
			seen[key] = true
		}
		const delivered = 5
		rest := r
		rest.Prompt, rest.MaxTokens = slices.Concat(r.Prompt, want[:delivered]), r.MaxTokens-delivered
		if got := d.answer(rest, nil); !slices.Equal(got, want[delivered:]) {
			t.Errorf("%+v, %d tokens delivered: %d, want %d", r, delivered, got, want[delivered:])
		}
		for _, token := range want {
			if r.Words.Count > 0 && (token < 100 || token >= 150) {
				t.Errorf("token %d is none of %+v", token, r.Words)
			}
		}
	}
	if len(d.m.sequences) > 0 {
		t.Error("something is kept of sequences that are over")
	}
}

// TestEveryByteCounts: a flipped bit in any byte of the KV of any token changes what is drawn, one beyond the
// tokens or in the next block nothing. A step repairs nothing that an earlier one has computed, also in the
// middle of a block.
func TestEveryByteCounts(t *testing.T) {
	const vocab = 1 << 31
	d := newDrawing(t, vocab)
	g := d.slab.Geometry()
	r := engine.Request{ID: 1, Prompt: []kvcache.Token{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5}, MaxTokens: 3}
	want := Answer(g, vocab, &r)
	row, plane := g.LayerBytes()/2/g.BlockTokens, g.LayerBytes()/2
	bytes, steps := 0, 0
	got := d.answer(r, func(step *engine.Step) {
		steps++
		w := step.Works[0]
		if steps < 5 {
			return
		}
		const n = 12 // three blocks to the last byte, and one token less
		for _, n := range []int{n, n - 1} {
			right := d.m.draw(w.Seq, n)
			for _, ref := range w.Seq.Table.Refs() {
				block := d.slab.Bytes()[g.BlockOffset(ref.ID):][:g.SlotBytes()]
				index := slices.Index(w.Seq.Table.Refs(), ref)
				for i := range block {
					token := index*g.BlockTokens + i%plane/row
					counts := i < g.BlockBytes() && token < n
					block[i] ^= 1 << (i % 8)
					if changed := d.m.draw(w.Seq, n) != right; changed != counts {
						t.Fatalf("block %d, byte %d, of token %d of %d: the token changes: %t", index, i, token, n, changed)
					}
					block[i] ^= 1 << (i % 8)
					bytes++
				}
			}
		}
	})
	if !slices.Equal(got, want) || bytes == 0 {
		t.Errorf("%d, want %d; %d bytes were flipped", got, want, bytes)
	}

	// Token 4 is the first of its block, and in the first chunk; 5 to 7 come with the second.
	for _, flipped := range []int{0, 4} {
		steps = 0
		got = d.answer(r, func(step *engine.Step) {
			if steps++; steps == 2 {
				w := step.Works[0]
				if w.From != 5 || !w.Prompt {
					t.Fatalf("the second step computes from token %d on", w.From)
				}
				d.slab.Layer(w.Seq.Table.Refs()[flipped/g.BlockTokens].ID, 1)[flipped%g.BlockTokens*row] ^= 1
			}
		})
		if got[0] == want[0] {
			t.Errorf("a flip of token %d before the second chunk changes nothing", flipped)
		}
	}
}

// BenchmarkDraw reads the KV of 1,024 tokens of a 7B model, 59 MB.
func BenchmarkDraw(b *testing.B) {
	g := kvcache.Geometry{Layers: 28, KVHeads: 4, HeadDim: 128, ElemBytes: 2, BlockTokens: 16}
	block := make([]byte, g.BlockBytes()*64)
	b.SetBytes(int64(len(block)))
	for b.Loop() {
		state := uint64(0)
		for i := range 64 {
			state = fold(state, g, block[i*g.BlockBytes():], 16)
		}
	}
}
