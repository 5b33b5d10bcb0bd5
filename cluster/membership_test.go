package cluster

import (
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"kvferry/handoff"
	"kvferry/proxy"
)

// TestDoubledIDs starts a second decode node under each of the ids that are there. They
// end with an error that says whose the id is; the first ones serve on, undisturbed.
func TestDoubledIDs(t *testing.T) {
	t.Parallel()
	c := start(t, Spec{Prefill: 1, Decode: 2, Profile: profile(t, cost{PrefillToken: 0.1, Decode: 2}), Proxy: proxy.Config{Handoff: handoff.Layerwise.Name, LeaseTTL: 4 * time.Second}})
	first := []*Process{c.Process("decode-0"), c.Process("decode-1")}
	for _, p := range first {
		if err := c.AddNode(t.Context(), "decode", p.Name); err != nil {
			t.Fatal(err)
		}
		c.Process(p.Name).Signal(0) // it ends by itself, as it should: its cluster is not to complain
	}
	for i := range 7 {
		q := call{Prompt: prompt(i, 64), MaxTokens: 20, Stream: true}
		r := c.do(q)
		r.expect(t, q.MaxTokens)
		if r.Text != want(t, q) {
			t.Errorf("request %d: %q, want %q", i, r.Text, want(t, q))
		}
	}
	for _, p := range first {
		second := c.Process(p.Name)
		if second == p {
			t.Fatalf("no second %s", p.Name)
		}
		wait(t, second)
		select {
		case <-p.Done():
			t.Errorf("the first %s has ended", p.Name)
		default:
		}
	}
	if n := c.metric("kvferry:request_retries_total"); n != 0 {
		t.Errorf("%v requests were placed again", n)
	}
	if text := c.logs.String(); strings.Count(text, "belongs to a live node at") < 2 {
		t.Errorf("the nodes do not say why they end:\n%s", text)
	}
}

// TestStoppedProxy stops the proxy's process for two leases while requests wait for
// their nodes. It has heard nobody meanwhile; every request is answered all the same.
func TestStoppedProxy(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second // longer than a node gets no CPU where the machine is busy, which is no fault of the proxy's
	c := start(t, Spec{Prefill: 2, Decode: 2, Profile: profile(t, cost{PrefillToken: 5, Decode: 10}), Proxy: proxy.Config{Handoff: handoff.Pull.Name, LeaseTTL: ttl}})
	const requests = 50
	results := make([]result, requests)
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() { results[i] = c.do(call{Prompt: prompt(i, 64), MaxTokens: 4}) })
	}
	c.poll("requests to be on the nodes", func() bool { return c.running("prefill-0")+c.running("prefill-1") > requests/2 })
	p := c.Process("proxy")
	if err := syscall.Kill(p.Pid(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	c.poll("two leases to pass", func() bool { return time.Since(stopped) > 2*ttl })
	if err := syscall.Kill(p.Pid(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for i, r := range results {
		if r.Status != 200 || !r.Done || r.Tokens != 4 {
			t.Errorf("request %d: %v", i, r)
		}
	}
	if text := c.logs.String(); strings.Contains(text, "lease expired") || !strings.Contains(text, "stood still") {
		t.Error("nodes were taken for dead, or the proxy does not say that it stood still")
	}
}
