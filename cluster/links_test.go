package cluster

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/kvcache"
	"kvferry/load"
	"kvferry/placement"
	"kvferry/proxy"
	"kvferry/sim"
)

// TestWritersMeet: what several prefill processes write into one decode node shares its modelled
// NIC in real time as in virtual time. It comes no sooner, and unless this machine is very busy not
// much later; were each paced by its own NIC alone, all would be over in a quarter of the time.
func TestWritersMeet(t *testing.T) {
	t.Parallel()
	const n, tokens, link = 4, 512, "rate=4MB/s,latency=0s" // 2 MiB of KV each
	path := profile(t, cost{})
	p, err := engine.LoadProfile(path)
	if err != nil {
		t.Fatal(err)
	}
	var requests load.List
	for i := range n {
		var ids []kvcache.Token
		for _, id := range prompt(i, tokens) {
			ids = append(ids, kvcache.Token(id))
		}
		requests = append(requests, load.Request{Prompt: ids, MaxTokens: 2})
	}
	virtual, err := sim.Run(context.Background(), sim.Config{
		Profile: p, Prefill: n, Decode: 1, Handoff: handoff.Push, Placement: placement.RoundRobin, NICs: []sim.NIC{{BytesPerSecond: 4e6}},
	}, load.Load{Source: &requests})
	if err != nil {
		t.Fatal(err)
	}
	if least := time.Duration(n*tokens*p.KVGeometry.TokenBytes()) * time.Second / 4e6; virtual.Duration < least {
		t.Fatalf("virtual time took %v, the link alone %v", virtual.Duration, least)
	}

	c := start(t, Spec{Prefill: n, Decode: 1, Profile: path, Link: link, Proxy: proxy.Config{Handoff: handoff.Push.Name, Placement: placement.RoundRobin}})
	began := time.Now()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { c.do(call{Prompt: prompt(i, tokens), MaxTokens: 2, Stream: true}).expect(t, 2) })
	}
	all.Wait()
	took := time.Since(began)
	t.Logf("virtual %v, real %v", virtual.Duration, took)
	if took < virtual.Duration*95/100 || took > virtual.Duration+10*time.Second {
		t.Errorf("real nodes took %v, simulated ones %v", took, virtual.Duration)
	}
	if _, err := os.Stat(c.ledger.Name()); !os.IsNotExist(err) {
		t.Errorf("%s: %v, want none", c.ledger.Name(), err)
	}
}
