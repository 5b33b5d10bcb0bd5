package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/handoff/handofftest"
	"kvferry/kvcache"
	"kvferry/load"
	"kvferry/placement"
)

// strained draws a cluster whose nodes have too little of everything: pools of one long request and
// some, slots for fewer LoRA adapters than are asked for, tiers that forget, and requests that go
// from node to node at every opportunity.
func strained(tb testing.TB, seed uint64) (Config, load.Spec) {
	rng := rand.New(rand.NewPCG(seed, 2))
	one := func(n int) int { return 1 + rng.IntN(n) }
	p := a10(tb)
	p.Engine = engine.Options{
		Scheduler: engine.Schedulers()[rng.IntN(3)], MaxBatchedTokens: 256 + rng.IntN(1000), MaxNumSeqs: 16, MaxRunningRequests: 16, LongPrefillTokens: rng.IntN(2) * 64,
		ChunkedPrefillSize: []int{-1, 0, 64, 300}[rng.IntN(4)], SchedulePolicy: []string{engine.FCFS, engine.LPM}[rng.IntN(2)], PrefillDecodeInterval: rng.IntN(3),
	}
	p.LoRA = engine.LoRA{BytesPerRank: 1 << 20, HostGBS: 25, DiskGBS: 3, TokenUSPerRank: 0.02, AdapterMS: float64(rng.IntN(3)), MaxLoRAs: rng.IntN(4), SwitchMS: float64(rng.IntN(10)), Merged: engine.Merging(engine.Mergings()[rng.IntN(3)])}
	p.LoRA.MaxCPULoRAs = p.LoRA.MaxLoRAs * rng.IntN(3)
	cfg := Config{
		Profile: p, Placement: placement.Names()[rng.IntN(len(placement.Names()))], PrefixCaching: rng.IntN(2) == 0,
		RPC: time.Duration(rng.IntN(3)) * time.Millisecond, KVBlocks: 60 + rng.IntN(100), NICs: []NIC{{BytesPerSecond: []float64{0.2e9, 1.3e9, 12.5e9}[rng.IntN(3)]}},
		Migration:        placement.MigrationConfig{Policy: placement.Migrations()[rng.IntN(3)], Interval: time.Duration(10+rng.IntN(200)) * time.Millisecond, Threshold: one(3)},
		Oversubscription: float64(rng.IntN(4)),
	}
	if rng.IntN(2) == 0 {
		cfg.Nondisagg, cfg.Chunked = 1+one(3), p.Scheduler() == engine.VLLMV0 && rng.IntN(2) == 0
	} else {
		every := handofftest.Every()
		cfg.Prefill, cfg.Decode, cfg.Handoff = one(2), 1+one(3), every[rng.IntN(len(every))]
		cfg.ConditionalDisaggregation = rng.IntN(2) * 200
	}
	if cfg.PrefixCaching && rng.IntN(2) == 0 {
		cfg.Tiers = kvcache.TierConfig{HostGiB: gib(p, rng.IntN(200)), PCIe: []float64{0.5, 25}[rng.IntN(2)], Disk: 5}
		cfg.Tiers.DiskGiB = float64(rng.IntN(2)) * gib(p, 1000)
	}
	spec := load.Spec{
		Requests: 60, Rate: 2 + 20*rng.Float64(), Burstiness: 0.2 + rng.Float64(), InputLen: 16 + rng.IntN(300), OutputLen: one(200),
		RangeRatio: rng.Float64() * 0.9, PrefixLen: rng.IntN(3) * 32, Seed: seed, Vocab: 1000,
	}
	for i := range rng.IntN(6) {
		spec.Adapters.Names = append(spec.Adapters.Names, fmt.Sprintf("lora-%d", i))
	}
	return cfg, spec
}

// TestStrain: whatever nodes lack, and wherever requests go meanwhile, each has its tokens in the end,
// and nobody is left with anything.
func TestStrain(t *testing.T) {
	t.Parallel()
	seeds := uint64(150)
	if testing.Short() {
		seeds = 40
	}
	moved, preempted, loaded := 0, uint64(0), uint64(0)
	for seed := range seeds {
		cfg, spec := strained(t, seed)
		name := fmt.Sprintf("seed %d", seed)
		c, err := newCluster(cfg, drawn(t, spec))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ended := 0
		c.cfg.OnOutcome = func(o *Outcome) {
			ended++
			if o.Err == nil && (o.Tokens != o.MaxTokens || o.Last < o.First || o.Cached > o.PromptTokens) {
				t.Fatalf("%s: %+v", name, o)
			}
			if need := o.PromptTokens + o.MaxTokens; o.Err != nil && need <= cfg.KVBlocks*16 {
				t.Fatalf("%s: request %d of %d tokens was refused: %v", name, o.Index, need, o.Err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := c.run(ctx); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		cancel()
		if ended != spec.Requests {
			t.Fatalf("%s: %d of %d requests ended", name, ended, spec.Requests)
		}
		for _, n := range c.nodes {
			if n.core.Requests() != 0 || n.pool.Used() != 0 || n.load.InFlight != 0 || n.load.LinkQueuedBytes != 0 || n.coming != 0 || n.comingBlocks != 0 {
				t.Fatalf("%s: %s is left with %d requests, %d blocks, %d legs, %d bytes, %d coming", name, n.name, n.core.Requests(), n.pool.Used(), n.load.InFlight, n.load.LinkQueuedBytes, n.coming)
			}
			preempted += n.core.Load().Preemptions
			loaded += n.tiers.Stats().Loaded
		}
		moved += c.stats.Migrations
	}
	t.Logf("%d migrations, %d preemptions, %d blocks loaded", moved, preempted, loaded)
	if moved == 0 || preempted == 0 || loaded == 0 {
		t.Error("nothing was strained")
	}
}
