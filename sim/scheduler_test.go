package sim

import (
	"fmt"
	"strings"
	"testing"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/load"
)

// TestSchedulers: the profile's scheduler forms the steps, whatever the hand-off; a prompt may
// be computed in several of them, and the radix cache is the nodes' prefix cache.
func TestSchedulers(t *testing.T) {
	tokens := prompt(t, 1000)
	for _, c := range []struct {
		options       engine.Options
		steps, cached int
	}{
		{engine.Options{}, 2, 0},
		{engine.Options{Scheduler: engine.VLLMV1, MaxBatchedTokens: 300}, 8, 0},
		{engine.Options{Scheduler: engine.SGLang, ChunkedPrefillSize: 300}, 8, 0},
		{engine.Options{Scheduler: engine.SGLang, ChunkedPrefillSize: -1, MaxPrefillTokens: 300}, 2, 0},
		{engine.Options{Scheduler: engine.SGLang, RadixCache: true}, 2, 992},
	} {
		p := a10(t)
		p.Engine = c.options
		for _, h := range append(handoff.All(), handoff.None) {
			t.Run(fmt.Sprintf("%+v/%v", c.options, h), func(t *testing.T) {
				cfg := pair(t, h, 1)
				if h == handoff.None {
					cfg.Prefill, cfg.Decode, cfg.Nondisagg, cfg.NICs = 0, 0, 1, nil
				}
				cfg.Profile = p
				out, stats := simulate(t, cfg, list(load.Request{Prompt: tokens, MaxTokens: 3}, load.Request{At: 1e9, Prompt: tokens, MaxTokens: 3}))
				if n := stats.Nodes[0]; n.PrefillSteps != c.steps || out[1].Cached != c.cached || out[0].Tokens != 3 || out[1].Tokens != 3 {
					t.Errorf("%d prefill steps, %d tokens cached, %d and %d tokens", n.PrefillSteps, out[1].Cached, out[0].Tokens, out[1].Tokens)
				}
			})
		}
	}
	p := a10(t)
	p.Engine.Scheduler = engine.SGLang
	if err := (Config{Profile: p, Nondisagg: 1, Chunked: true}).Validate(); err == nil || !strings.Contains(err.Error(), "Chunked: is a setting of vllm-v0") {
		t.Errorf("%v", err)
	}
}
