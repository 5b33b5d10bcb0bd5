package modelled

import (
	"testing"

	"kvferry/engine"
	"kvferry/engine/batching"
	"kvferry/kvcache"
)

// TestAnswers: of a request that may go on elsewhere all KV is in its blocks but the last token's,
// whatever step computed it; of another that of the prompt alone.
func TestAnswers(t *testing.T) {
	p, err := engine.LoadProfile("zero")
	if err != nil {
		t.Fatal(err)
	}
	p.KVGeometry.Layers, p.KVGeometry.KVHeads, p.KVGeometry.BlockTokens = 3, 2, 4
	const blocks = 5
	for _, use := range []engine.Use{engine.Fetched, engine.Fetched | engine.Movable} {
		slab, err := kvcache.NewSlab(p.KVGeometry, make([]byte, blocks*p.KVGeometry.SlotBytes()))
		if err != nil {
			t.Fatal(err)
		}
		m, err := New(&lateClock{}, engine.Costs{}, slab, p.Vocab)
		if err != nil {
			t.Fatal(err)
		}
		pool := kvcache.NewPool(blocks, p.KVGeometry.BlockTokens, false)
		sched, err := batching.NewScheduler(batching.ConfigOf(p, false, pool))
		if err != nil {
			t.Fatal(err)
		}
		prompt := []kvcache.Token{3, 1, 4, 1, 5, 9}
		m.Admit(1, "", "", prompt, use)
		step := sched.Step(0, 0, engine.Add{Request: engine.Request{ID: 1, Prompt: prompt, MaxTokens: 12}}).Launch
		var seq *engine.Sequence
		for range 9 {
			seq = step.Works[0].Seq
			end, tokens, err := m.Run(t.Context(), step, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			step = sched.Step(end, 0, engine.Done{At: end, Tokens: tokens}).Launch
		}
		right := 0 // blocks
		content := kvcache.NewContent(p.KVGeometry, "", "", seq.Tokens(0)[:seq.Held])
		for i, ref := range seq.Table.Refs()[:p.KVGeometry.Blocks(seq.Held)] {
			good := true
			for l := range p.KVGeometry.Layers {
				good = good && holds(content, slab.Layer(ref.ID, l), i, l)
			}
			if good {
				right++
			}
		}
		if want := map[bool]int{false: 1, true: 4}[use&engine.Movable != 0]; right != want || seq.Held != 14 {
			t.Errorf("use %v: %d blocks hold their KV of %d tokens, want %d of 14", use, right, seq.Held, want)
		}
		m.Forget(1)
		if len(m.sequences) > 0 {
			t.Error("something is kept of a sequence that is over")
		}
	}
}
