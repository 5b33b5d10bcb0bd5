package cluster

import (
	"context"
	"sync"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/kvcache"
	"kvferry/load"
	"kvferry/sim"
)

// TestFrontEnd: a burst goes through the serial front end of a real node as through that of a
// simulated one: its last token is out no sooner, and unless this machine is very busy
// not much later; without the front end it would all be over in a tenth of the time.
func TestFrontEnd(t *testing.T) {
	t.Parallel()
	const n, tokens = 12, 4
	path := profile(t, cost{PrefillToken: 0.01, Decode: 2})
	p, err := engine.LoadProfile(path)
	if err != nil {
		t.Fatal(err)
	}
	p.Costs.FrontEndInMS, p.Costs.FrontEndOutMS = 40, 25
	var requests load.List
	for i := range n {
		var ids []kvcache.Token
		for _, id := range prompt(i, 50) {
			ids = append(ids, kvcache.Token(id))
		}
		requests = append(requests, load.Request{Prompt: ids, MaxTokens: tokens})
	}
	virtual, err := sim.Run(context.Background(), sim.Config{Profile: p, Nondisagg: 1}, load.Load{Source: &requests})
	if err != nil {
		t.Fatal(err)
	}
	if least := n * tokens * 25 * time.Millisecond; virtual.Duration < least {
		t.Fatalf("virtual time took %v, the tokens alone %v", virtual.Duration, least)
	}

	c := start(t, Spec{Nondisagg: 1, Profile: write(t, p)})
	began := time.Now()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { c.do(call{Prompt: prompt(i, 50), MaxTokens: tokens, Stream: true}).expect(t, tokens) })
	}
	all.Wait()
	took := time.Since(began)
	t.Logf("virtual %v, real %v", virtual.Duration, took)
	if took < virtual.Duration || took > virtual.Duration+10*time.Second {
		t.Errorf("a real node took %v, a simulated one %v", took, virtual.Duration)
	}
}
