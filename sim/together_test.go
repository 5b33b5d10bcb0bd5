package sim

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"kvferry/engine"
	"kvferry/load"
)

// TestTogether: nodes that go through steps and through layers together give the same outcomes, to the last
// bit, as nodes where each is an event, whatever the hand-off, the scheduler, the NICs and the costs.
func TestTogether(t *testing.T) {
	t.Parallel()
	attention, err := engine.LoadProfile("a10-qwen2.5-7b-int4-attention")
	if err != nil {
		t.Fatal(err)
	}
	engines := []engine.Options{{}, {Scheduler: engine.VLLMV1}, {Scheduler: engine.SGLang, PrefillDecodeInterval: 3}}
	coasting, convoys, switches := make([]int, len(engines)), 0, uint64(0)
	seeds := uint64(90)
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		var runs [2]string
		kind := int(seed) % len(engines)
		for i, plain := range []bool{true, false} {
			cfg, spec := randomConfig(t, seed)
			if seed%2 == 0 {
				cfg.Profile = attention
			}
			p := *cfg.Profile
			p.Engine = engines[kind]
			cfg.Profile, cfg.Chunked = &p, cfg.Chunked && kind == 0
			if seed/3%5 == 4 { // steps differ with adapters, and with what is merged
				p.LoRA = engine.LoRA{BytesPerRank: 1 << 16, HostGBS: 25, TokenUSPerRank: 30, AdapterMS: 10, SwitchMS: 5, Merged: engine.MergeDynamic}
				spec.Adapters = load.Adapters{Names: []string{"a", "b", "c"}, Choice: load.AdapterZipf, Alpha: 2}
			}
			cfg.KVBlocks *= 1 + int(seed%5)
			c, err := newCluster(cfg, drawn(t, spec))
			if err != nil {
				t.Fatal(err)
			}
			c.plain = plain
			var b strings.Builder
			c.cfg.OnOutcome = func(o *Outcome) {
				fmt.Fprintf(&b, "%v %+v\n", c.now, *o)
				for _, n := range c.nodes {
					coasting[kind] += n.left
					if n.sending != nil {
						convoys++
					}
				}
			}
			if err := c.run(context.Background()); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%+v\n", c.stats)
			for _, n := range c.nodes {
				switches += n.core.Load().AdapterSwitches
				fmt.Fprintf(&b, "%+v %+v\n", n.stats, n.pool.Stats())
			}
			runs[i] = b.String()
		}
		if runs[0] != runs[1] {
			t.Errorf("seed %d: step by step\n%s\ncoasting\n%s", seed, runs[0], runs[1])
		}
	}
	t.Logf("%d changes of what is merged", switches)
	if switches == 0 {
		t.Error("no adapter is merged")
	}
	if convoys == 0 {
		t.Error("no layers travel in a convoy")
	}
	for kind, n := range coasting {
		if n == 0 {
			t.Errorf("no node coasts under %+v", engines[kind])
		}
	}
}
