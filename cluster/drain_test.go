package cluster

import (
	"context"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"kvferry/proxy"
)

// TestDrainNode asks a decode or prefill node to end while it works on a stream:
// the stream completes, new requests go elsewhere or are told that there is
// nobody, and the process ends well.
func TestDrainNode(t *testing.T) {
	t.Parallel()
	for _, handoff := range handoffs {
		t.Run(handoff, func(t *testing.T) {
			t.Parallel()
			c := start(t, Spec{Prefill: 1, Decode: 2, Profile: profile(t, cost{PrefillToken: 0.1, Decode: 20}), Proxy: proxy.Config{Handoff: handoff}})
			retries := "kvferry:request_retries_total"
			ask := func(longer int) call { return call{Prompt: prompt(1, 64), MaxTokens: 60 * longer, Stream: true} }
			var busy, other string
			f := c.catch("a decode node runs the stream", 3, ask, func() bool {
				busy, other = "decode-0", "decode-1"
				if c.running(other) == 1 {
					busy, other = other, busy
				}
				return c.running(busy) == 1
			})
			c.Process(busy).Signal(syscall.SIGTERM)
			c.poll("the proxy to know of the drain", func() bool { return c.metric(`kvferry:nodes{role="decode"}`) == 1 })
			for i := range 3 {
				c.do(call{Prompt: prompt(2+i, 64), MaxTokens: 2}).expect(t, 2)
			}
			r := f.result(t) // whole, and below: of one attempt
			r.expect(t, f.call.MaxTokens)
			if r.Text != want(t, f.call) {
				t.Errorf("got %q, want %q", r.Text, want(t, f.call))
			}
			c.ended(busy)

			// The last one, with nobody to go to.
			f = c.fly(t.Context(), f.call, 3)
			<-f.first
			c.Process(other).Signal(syscall.SIGTERM)
			c.poll("the proxy to know of the drain", func() bool { return c.metric(`kvferry:nodes{role="decode"}`) == 0 })
			if r := c.do(call{Prompt: prompt(5, 64), MaxTokens: 2}); r.Status != http.StatusServiceUnavailable || !strings.Contains(r.Err.Message, "decode") {
				t.Errorf("%v: want 503 that names the decode node", r)
			}
			f.result(t).expect(t, f.call.MaxTokens)
			c.ended(other)
			if n := c.metric(retries); n != 0 {
				t.Errorf("%v requests were placed again: a drain must lose none", n)
			}
			for line := range strings.Lines(c.logs.String()) {
				if strings.Contains(line, "level=WARN") && !strings.Contains(line, "a decode node is missing") {
					t.Errorf("a warning about an orderly leave: %s", line)
				}
			}
		})
	}
}

// TestDrainPrefillNode: a prompt that is being computed is handed off before the
// node ends.
func TestDrainPrefillNode(t *testing.T) {
	t.Parallel()
	for _, handoff := range handoffs {
		t.Run(handoff, func(t *testing.T) {
			t.Parallel()
			c := start(t, Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{PrefillToken: 1, Decode: 20}), Proxy: proxy.Config{Handoff: handoff}})
			f := c.catch("the prompt is computed", 0, func(longer int) call {
				return call{Prompt: prompt(1, 256*longer), MaxTokens: 8, Stream: true}
			}, func() bool { return c.running("prefill-0") == 1 })
			c.Process("prefill-0").Signal(syscall.SIGTERM)
			r := f.result(t)
			r.expect(t, f.call.MaxTokens)
			if r.Text != want(t, f.call) {
				t.Errorf("got %q, want %q", r.Text, want(t, f.call))
			}
			c.ended("prefill-0")
		})
	}
}

// TestDrainProxy: SIGTERM lets streams end and refuses what comes after it.
func TestDrainProxy(t *testing.T) {
	t.Parallel()
	c := start(t, Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{Decode: 20})})
	q := call{Prompt: prompt(1, 64), MaxTokens: 60, Stream: true}
	// Another, of a minute, holds the proxy until its client leaves.
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	f, long := c.fly(t.Context(), q, 3), c.fly(ctx, call{Prompt: prompt(3, 64), MaxTokens: 3000, Stream: true}, 3)
	<-f.first
	<-long.first
	c.Process("proxy").Signal(syscall.SIGTERM)
	c.poll("the proxy to refuse", func() bool {
		resp, err := c.http.Get(c.URL() + "/health")
		if err != nil {
			t.Fatal(err) // it listens until its last stream has ended
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusServiceUnavailable
	})
	if r := c.do(call{Prompt: prompt(2, 64), MaxTokens: 2}); r.Status != http.StatusServiceUnavailable || r.Err.Code != "draining" {
		t.Errorf("%v: want 503 draining", r)
	}
	f.result(t).expect(t, q.MaxTokens)
	leave()
	c.ended("proxy")
	for _, name := range []string{"prefill-0", "decode-0"} {
		select {
		case <-c.Process(name).Done():
			t.Errorf("%s ended with its proxy: nodes wait for the next one", name)
		default:
		}
	}
}

// TestClose ends a cluster with a stream in it: nodes drain, and all is over within
// the limit.
func TestClose(t *testing.T) {
	t.Parallel()
	c := start(t, Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{Decode: 10})})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	s := c.open(ctx, call{Prompt: prompt(1, 64), MaxTokens: 30, Stream: true})
	if !s.next(3) {
		t.Fatal(s.r)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	s.rest().expect(t, 30)
	for _, p := range c.Processes() {
		c.ended(p.Name)
	}
}

// ended waits for a daemon's end and wants status 0.
func (c *testCluster) ended(name string) {
	c.t.Helper()
	p := c.Process(name)
	wait(c.t, p)
	if err := p.Wait(); err != nil {
		c.t.Errorf("%s: %v", name, err)
	}
}
