package sim

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/kvcache"
	"kvferry/load"
)

// other is a prompt that shares no prefix with p.
func other(p []kvcache.Token) []kvcache.Token {
	q := slices.Clone(p)
	slices.Reverse(q)
	return q
}

// gib is so many blocks of the A10's model.
func gib(p *engine.Profile, blocks int) float64 {
	return (float64(blocks) + 0.5) * float64(p.KVGeometry.BlockBytes()) / (1 << 30)
}

// TestTiers: two prompts take turns in a pool that holds one of them. With host memory each is
// found there the next time, and its TTFT is that of a copy instead of a prefill; from the disk it
// takes that copy too. With tiers of no room every outcome is what it is without them.
func TestTiers(t *testing.T) {
	t.Parallel()
	const tokens = 2000
	prof := a10(t)
	one := prompt(t, tokens)
	var asked []load.Request
	for i := range 6 {
		p := one
		if i%2 == 1 {
			p = other(one)
		}
		asked = append(asked, load.Request{At: time.Duration(i) * 10 * time.Second, Prompt: p, MaxTokens: 2})
	}
	run := func(tiers kvcache.TierConfig) ([]*Outcome, *Stats) {
		return simulate(t, Config{Profile: prof, Nondisagg: 1, PrefixCaching: true, KVBlocks: 126, Tiers: tiers}, list(asked...))
	}
	without, stats := run(kvcache.TierConfig{})
	empty, none := run(kvcache.TierConfig{PCIe: 25, Disk: 5})
	if !reflect.DeepEqual(without, empty) || !reflect.DeepEqual(stats, none) {
		t.Error("tiers of no room change figures")
	}
	const blocks = (tokens - 1) / 16
	bytes := float64(blocks * prof.KVGeometry.BlockBytes())
	for _, c := range []struct {
		name       string
		tiers      kvcache.TierConfig
		host, disk uint64
		takes      float64 // s
	}{
		{"host", kvcache.TierConfig{HostGiB: gib(prof, 1000), PCIe: 2}, 4 * blocks * 16, 0, bytes / 2e9},
		{"disk", kvcache.TierConfig{HostGiB: gib(prof, 125), DiskGiB: gib(prof, 1000), PCIe: 2, Disk: 1}, 0, 4 * blocks * 16, bytes/2e9 + bytes/1e9},
	} {
		with, st := run(c.tiers)
		takes := time.Duration(c.takes * 1e9)
		for i := 2; i < 6; i++ {
			if d := with[i].TTFT() - takes; with[i].Cached < tokens-32 || d < 0 || d > without[i].TTFT()/4 {
				t.Errorf("%s: TTFT %v with %d tokens cached, of which the copies take %v; without %v", c.name, with[i].TTFT(), with[i].Cached, takes, without[i].TTFT())
			}
		}
		if n := st.Nodes[0].Tiers; n.HostHits != c.host || n.DiskHits != c.disk || n.Loaded != 4*blocks {
			t.Errorf("%s: %+v, want %d and %d tokens, %d blocks", c.name, n, c.host, c.disk, 4*blocks)
		}
	}
}

// TestTiersPreempted: a sequence that is preempted gets its KV back from host memory, that of its
// output too, and is not computed again.
func TestTiersPreempted(t *testing.T) {
	t.Parallel()
	prof := a10(t)
	one := prompt(t, 800)
	prof.Engine.ScheduleConservativeness = 0.01 // or sglang preempts nobody
	for _, scheduler := range engine.Schedulers() {
		p := prof.WithScheduler(scheduler)
		run := func(host float64) (prefill time.Duration, st NodeStats) {
			// Two of 800 + 300 tokens, and room for 2000: the second is preempted.
			out, stats := simulate(t, Config{Profile: p, Nondisagg: 1, PrefixCaching: true, KVBlocks: 125, Tiers: kvcache.TierConfig{HostGiB: host, PCIe: 25}}, list(
				load.Request{Prompt: one, MaxTokens: 300}, load.Request{Prompt: other(one), MaxTokens: 300}))
			for _, o := range out {
				if o.Tokens != 300 {
					t.Errorf("%s: %d tokens, %v", scheduler, o.Tokens, o.Err)
				}
			}
			return stats.Nodes[0].PrefillBusy, stats.Nodes[0]
		}
		again, without := run(0)
		once, with := run(gib(prof, 1000))
		if without.Preemptions == 0 || with.Preemptions == 0 {
			t.Errorf("%s: %d and %d preemptions", scheduler, without.Preemptions, with.Preemptions)
		}
		if again-once < 20*time.Millisecond || with.Tiers.Loaded < 10 { // most of its prompt is in the pool still, nothing of its output
			t.Errorf("%s: prompts took %v, with host memory %v; %d blocks were loaded", scheduler, again, once, with.Tiers.Loaded)
		}
		if got, want := with.Tiers.Stored, uint64(2*((800+300-1)/16)); got != want { // the last token's KV is not computed
			t.Errorf("%s: %d blocks were stored, want %d", scheduler, got, want)
		}
	}
}

// TestTiersShareBus: what a NIC sends from a GPU shares the bus with what goes to host memory
// meanwhile: here the same prompt. A bus that has room for both holds nothing up.
func TestTiersShareBus(t *testing.T) {
	t.Parallel()
	one := prompt(t, 4000)
	run := func(pcie float64, tiers bool, asked ...load.Request) []*Outcome {
		cfg := pair(t, handoff.Pull, 4)
		cfg.PrefixCaching = true
		if tiers {
			cfg.Tiers = kvcache.TierConfig{HostGiB: 8, PCIe: pcie}
		}
		out, _ := simulate(t, cfg, list(asked...))
		return out
	}
	alone := load.Request{Prompt: one, MaxTokens: 2}
	bytes := float64(4000 * a10(t).KVGeometry.TokenBytes())
	nic := time.Duration(bytes / 4e9 * 1e9)
	for _, c := range []struct {
		pcie float64
		want time.Duration
	}{{100, nic}, {1, 8 * nic}} {
		without, with := run(0, false, alone)[0], run(c.pcie, true, alone)[0]
		if d := with.First - without.First - (c.want - nic); d < -time.Millisecond || d > time.Millisecond {
			t.Errorf("a bus of %v GB/s holds a transfer up by %v, want %v", c.pcie, with.First-without.First, c.want-nic)
		}
	}
}

// TestNever: links and buses that bring nothing within anybody's life end a run with an error.
func TestNever(t *testing.T) {
	for _, slow := range []func(*Config){
		func(c *Config) { c.NICs = []NIC{{BytesPerSecond: 1e-9}} },
		func(c *Config) {
			c.PrefixCaching, c.Tiers = true, kvcache.TierConfig{HostGiB: 1, PCIe: 1e-300}
		},
	} {
		cfg := pair(t, handoff.Pull, 1)
		slow(&cfg)
		spec := load.Spec{Requests: 5, Rate: 4, Burstiness: 1, InputLen: 300, OutputLen: 8, Seed: 1, Vocab: 1000}
		if _, err := Run(t.Context(), cfg, drawn(t, spec)); err == nil || !strings.Contains(err.Error(), "use faster links") {
			t.Errorf("%v", err)
		}
	}
}

// TestPreemptedIsNotCached: what a sequence gets back after it was preempted, out of the pool or a
// tier, counts as no cached prompt.
func TestPreemptedIsNotCached(t *testing.T) {
	cfg := Config{Profile: a10(t), Nondisagg: 1, PrefixCaching: true, KVBlocks: 80}
	for _, cfg.Tiers = range []kvcache.TierConfig{{}, {HostGiB: 2, PCIe: 25}} {
		cfg.OnOutcome = func(o *Outcome) {
			if o.Cached != 0 || o.Err != nil {
				t.Errorf("%d of %d prompt tokens were cached, and none came twice: %v", o.Cached, o.PromptTokens, o.Err)
			}
		}
		spec := load.Spec{Requests: 20, Rate: 10, Burstiness: 1, InputLen: 100, OutputLen: 200, Seed: 1, Vocab: 100000}
		stats, err := Run(t.Context(), cfg, drawn(t, spec))
		if err != nil {
			t.Fatal(err)
		}
		if stats.Nodes[0].Preemptions == 0 {
			t.Error("nothing was preempted")
		}
	}
}
