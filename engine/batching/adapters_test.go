package batching

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/kvcache"
)

// TestAskedAdapters: a scheduler says whose requests run and whose wait, and how long it has loaded
// adapters.
func TestAskedAdapters(t *testing.T) {
	s, err := NewScheduler(Config{
		Pool: kvcache.NewPool(16, 4, false), MaxModelLen: 16, MaxNumSeqs: 8, MaxBatchedTokens: 16, ChunkTokens: 8,
		LoRA: engine.LoRA{MaxLoRAs: 1, BytesPerRank: 1e6, HostGBS: 1, DiskGBS: 0.1}, // 1 ms a unit of rank from host memory, 10 ms more from disk
	})
	if err != nil {
		t.Fatal(err)
	}
	var now time.Duration
	expect := func(what, running, waiting string, loading time.Duration) {
		t.Helper()
		r, w := s.AskedAdapters()
		split := func(names string) (all []string) {
			for _, name := range names {
				all = append(all, string(name))
			}
			return all
		}
		if l := s.Load(); !slices.Equal(r, split(running)) || !slices.Equal(w, split(waiting)) || l.AdapterLoading != loading {
			t.Errorf("%s: %q run and %q wait, want %q and %q; loading took %v, want %v", what, r, w, running, waiting, l.AdapterLoading, loading)
		}
	}
	add := func(id uint64, adapter string, keep bool) {
		s.Step(now, 0, engine.Add{Request: engine.Request{ID: id, Prompt: []kvcache.Token{1, 2}, MaxTokens: 2, Adapter: adapter, AdapterRank: 2, Keep: keep}})
	}
	step := func() {
		t.Helper()
		if s.Current() == nil {
			t.Fatal("no step is under way")
		}
		now++
		s.Step(now, 0, engine.Done{At: now, Tokens: generate(s.Current(), nil, vocab)})
	}
	expect("nothing has come", "", "", 0)
	add(1, "", false)
	add(2, "a", true)
	add(3, "b", false)
	add(4, "a", false)
	expect("the model's own prompt is computed", "", "ab", 0)
	step()
	expect("a has the slot", "a", "b", 22*time.Millisecond)
	step() // prompts of a
	step() // and their last tokens
	expect("b has the slot; blocks of 2 are kept, and nothing of it runs", "b", "", 44*time.Millisecond)
	step()
	step()
	expect("all is done", "", "", 44*time.Millisecond)
}

// TestAdaptersAreForgotten: names that come and go take no more memory than so many, whether a profile bounds
// adapters or not.
func TestAdaptersAreForgotten(t *testing.T) {
	for _, cfg := range []engine.LoRA{{}, {Merged: engine.MergeAlways}, {MaxLoRAs: 2}, {MaxLoRAs: 2, MaxCPULoRAs: 3}} {
		a := newAdapters(cfg)
		a.any = true
		step := func(name string) {
			q := engine.NewSequence(engine.Request{Adapter: name, AdapterRank: 8})
			a.turn = name
			a.prepare(&engine.Step{Works: []engine.Work{{Seq: q, N: 1}}})
		}
		for i := range maxKept - 50 { // quickly
			for _, c := range []*adapterCache{&a.slots, &a.host, &a.served} {
				c.use(fmt.Sprint("old-", i), func(string) bool { return false })
			}
		}
		for i := range 200 {
			step(fmt.Sprint("lora-", i))
			if i%7 == 0 {
				step("kept")
			}
		}
		slots, host := cmp.Or(cfg.MaxLoRAs, maxKept), cmp.Or(cfg.MaxCPULoRAs, maxKept)
		if len(a.slots.used) > slots || len(a.shown) > slots || len(a.host.used) > host || len(a.served.used) > maxKept {
			t.Errorf("%+v: %d in slots, %d in host memory, %d were served", cfg, len(a.slots.used), len(a.host.used), len(a.served.used))
		}
		if _, kept := a.slots.used["kept"]; cfg.MaxLoRAs == 0 && !kept {
			t.Errorf("%+v: what was used now is forgotten", cfg)
		}
	}
}
