package sim

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"kvferry/engine"
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
	coasting, convoys := make([]int, len(engines)), 0
	for seed := range uint64(90) {
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
				fmt.Fprintf(&b, "%+v %+v\n", n.stats, n.pool.Stats())
			}
			runs[i] = b.String()
		}
		if runs[0] != runs[1] {
			t.Errorf("seed %d: step by step\n%s\ncoasting\n%s", seed, runs[0], runs[1])
		}
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
