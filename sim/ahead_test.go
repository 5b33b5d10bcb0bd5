package sim

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/load"
	"kvferry/placement"
)

// TestAhead: where a message takes long, the prompt is computed while the decode node is asked for
// blocks; where it takes longer than that, what is computed waits for the destination.
func TestAhead(t *testing.T) {
	const n, rate = 250, 1.5e9 // prompt tokens; of the NIC
	p := a10(t)
	ms := func(v float64) time.Duration { return time.Duration(v * 1e6) }
	front := ms(p.Costs.RequestMS)
	prefill := engine.NewCostModel(p.Costs, p.KVGeometry).Run(&engine.Step{Kind: engine.Prefill, Tokens: n})
	decode := ms(p.Disagg.DecodeStepMS + p.Costs.DecodeSeqMS)
	kv := n * p.KVGeometry.TokenBytes()
	wire := func(bytes int) time.Duration { return time.Duration(float64(bytes) / rate * 1e9) }
	last := map[string]time.Duration{handoff.Push.Name: wire(kv), handoff.Layerwise.Name: wire(kv / p.KVGeometry.Layers)}
	for _, h := range []handoff.Handoff{handoff.Push, handoff.Layerwise} {
		for _, rpc := range []time.Duration{5 * time.Millisecond, (front + prefill) / 4, front + prefill, 500 * time.Millisecond} {
			t.Run(fmt.Sprintf("%v/%v", h, rpc), func(t *testing.T) {
				cfg := pair(t, h, rate/1e9)
				cfg.RPC = rpc
				all, _ := simulate(t, cfg, list(load.Request{Prompt: prompt(t, n), MaxTokens: 2}))
				computed := rpc + front + prefill
				moved := computed + last[h.Name]
				if told := 3 * rpc; told > computed { // all waited
					computed, moved = told, told+wire(kv)
				}
				want := []time.Duration{computed + rpc, moved + decode + rpc}
				for i, at := range all[0].TokenTimes {
					if d := at - want[i]; d.Abs() > 20*time.Microsecond {
						t.Errorf("token %d at %v: want %v", i, at, want[i])
					}
				}
			})
		}
	}
}

// TestAheadUndirected: a decode node that fills up while a prompt is on its way to it keeps that
// waiting. If it is long, the prompt is computed once more.
func TestAheadUndirected(t *testing.T) {
	const n = 250 // prompt tokens
	cfg := pair(t, handoff.Layerwise, 1.5)
	cfg.RPC = 500 * time.Millisecond
	once, twice := 0, 0
	for more := range 40 {
		cfg.KVBlocks = cfg.Profile.KVGeometry.Blocks(n) + 18 + more
		all, stats := simulate(t, cfg, list(
			load.Request{Prompt: prompt(t, n), MaxTokens: 280},
			load.Request{Prompt: prompt(t, n), MaxTokens: 3, At: 3 * time.Second},
		))
		for _, o := range all {
			if o.Err != nil || o.Tokens != o.MaxTokens {
				t.Errorf("%d blocks: request %d has %d of %d tokens: %v", cfg.KVBlocks, o.Index, o.Tokens, o.MaxTokens, o.Err)
			}
		}
		switch steps := stats.Nodes[0].PrefillSteps; steps {
		case 2:
			once++
		case 3:
			twice++
		default:
			t.Errorf("%d blocks: %d prefill steps", cfg.KVBlocks, steps)
		}
	}
	if once == 0 || twice == 0 {
		t.Errorf("with %d sizes of the pool the prompt was computed once, with %d twice", once, twice)
	}
}

// TestAheadRefused: a request that went ahead and does not fit is refused alone, by whichever of
// its two nodes says so first.
func TestAheadRefused(t *testing.T) {
	for _, h := range []handoff.Handoff{handoff.Push, handoff.Layerwise} {
		cfg := pair(t, h, 1.5)
		cfg.RPC, cfg.KVBlocks, cfg.Placement = 5*time.Millisecond, 40, placement.LeastLoaded
		all, stats := simulate(t, cfg, list(
			load.Request{Prompt: prompt(t, 250), MaxTokens: 1000},
			load.Request{Prompt: prompt(t, 250), MaxTokens: 3, At: time.Second},
		))
		if stats.Failed != 1 || stats.Ended != 2 || !errors.Is(all[0].Err, engine.ErrPoolSize) || all[1].Err != nil || all[1].Tokens != 3 {
			t.Errorf("%v: %+v, %+v", h, stats, all)
		}
	}
}

// TestAheadTooFar: a prompt does not go ahead where it would be given up before its destination can
// be there.
func TestAheadTooFar(t *testing.T) {
	cfg := pair(t, handoff.Layerwise, 1.5)
	cfg.RPC = 900 * time.Millisecond
	_, stats := simulate(t, cfg, list(load.Request{Prompt: prompt(t, 250), MaxTokens: 2}))
	if n := stats.Nodes[0].PrefillSteps; n != 1 {
		t.Errorf("computed in %d steps", n)
	}
}
