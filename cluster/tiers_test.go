package cluster

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"kvferry/bench/client"
	"kvferry/engine"
	"kvferry/kvcache"
	"kvferry/load"
	"kvferry/node"
	"kvferry/sim"
)

// TestTiers: three prompts take turns on a node whose pool holds one of them. What a real node
// finds in host memory and on its disk is what a simulated one does, and is counted under vLLM's
// names; it takes no less time than there, and unless this machine is very busy not much more.
func TestTiers(t *testing.T) {
	t.Parallel()
	const tokens, rounds = 1600, 3
	path := profile(t, cost{PrefillToken: 0.2, Decode: 2})
	p, err := engine.LoadProfile(path)
	if err != nil {
		t.Fatal(err)
	}
	gib := float64(p.KVGeometry.BlockBytes()) / (1 << 30) // of a block; a prompt takes either way 65 ms
	tiers := kvcache.TierConfig{HostGiB: 250.5 * gib, DiskGiB: 1000 * gib, PCIe: 0.1, Disk: 0.1}
	var requests load.List
	for i := range 3 * rounds {
		var ids []kvcache.Token
		for _, id := range prompt(i%3, tokens) {
			ids = append(ids, kvcache.Token(id))
		}
		requests = append(requests, load.Request{Prompt: ids, MaxTokens: 2})
	}
	other := slices.Clone(requests)
	var virtual []time.Duration
	stats, err := sim.Run(t.Context(), sim.Config{
		Profile: p, Nondisagg: 1, PrefixCaching: true, KVBlocks: 105, Tiers: tiers, RPC: sim.DefaultRPC,
		OnOutcome: func(o *sim.Outcome) { virtual = append(virtual, o.TTFT()) },
	}, load.Load{Source: &requests, InFlight: 1})
	if err != nil {
		t.Fatal(err)
	}
	want := stats.Nodes[0].Tiers
	if want.HostHits == 0 || want.DiskHits == 0 || want.Loaded == 0 {
		t.Fatalf("virtual time: %+v", want)
	}

	c := start(t, Spec{Nondisagg: 1, Profile: path, Node: node.Config{PrefixCaching: true, KVBlocks: 105, Tiers: tiers}})
	asker := client.New(client.Config{URL: c.URL(), Timeout: patience})
	defer asker.Close()
	var real []time.Duration
	if _, err := asker.Run(t.Context(), model, load.Load{Source: &other, InFlight: 1}, func(r *client.Record) {
		if r.Failure() != "" {
			t.Errorf("request %d: %s", r.Index, r.Failure())
		}
		real = append(real, time.Duration((r.FirstToken-r.Sent)*1e9))
	}); err != nil {
		t.Fatal(err)
	}
	var sum, least time.Duration
	for i := range virtual {
		least, sum = least+virtual[i], sum+real[i]
	}
	t.Logf("virtual %v, real %v; %+v", least, sum, want)
	if sum < least-10*time.Millisecond || sum > least+10*time.Second {
		t.Errorf("a real node took %v to the first tokens, a simulated one %v", sum, least)
	}
	for source, want := range map[string]uint64{"host": want.HostHits, "disk": want.DiskHits} {
		series := fmt.Sprintf(`vllm:prompt_tokens_cached_by_source_total{engine="nondisagg-0",model_name=%q,source=%q}`, model, source)
		c.poll(fmt.Sprintf("%s to be %d, as in virtual time", series, want), func() bool { return c.metric(series) == float64(want) })
	}
}
