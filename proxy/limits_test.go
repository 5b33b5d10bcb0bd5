package proxy

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"kvferry/handoff"
	"kvferry/handoff/handofftest"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
)

func TestClientGone(t *testing.T) {
	for _, tc := range []struct {
		handoff string
		stream  bool
	}{{handoff.Pull.Name, true}, {handoff.Pull.Name, false}, {handoff.Layerwise.Name, true}} {
		t.Run(fmt.Sprintf("%s/stream=%v", tc.handoff, tc.stream), func(t *testing.T) {
			c := newTestCluster(t, Config{Handoff: tc.handoff})
			p := c.addNode("prefill-1", proto.Role_ROLE_PREFILL, nil)
			d := c.addNode("decode-1", proto.Role_ROLE_DECODE, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
				if handofftest.DecodeFirst(tc.handoff) {
					send(reserve(n, s))
					send(firstTokens(s, 1, 2))
					return
				}
				send(firstTokens(s, 0, 1))
			})
			ctx, cancel := context.WithCancel(context.Background())
			if tc.stream {
				resp, err := c.client.Do(c.request(ctx, "/v1/completions", `{"prompt":"x","stream":true}`))
				if err != nil {
					t.Fatal(err)
				}
				readEvents(t, resp, 1)
				cancel()
				resp.Body.Close()
			} else {
				go func() {
					clocktest.Receive(t, d.submits, "the decode leg")
					cancel()
				}()
				if resp, err := c.client.Do(c.request(ctx, "/v1/completions", `{"prompt":"x"}`)); err == nil {
					resp.Body.Close()
					t.Fatal("answered")
				}
			}
			clocktest.Receive(t, d.cancels, "decode's cancel")
			clocktest.Receive(t, p.cancels, "prefill's cancel")
		})
	}
}

func TestDeadline(t *testing.T) {
	silent := func(*fakeNode, *proto.Submit, func(*proto.FromNode)) {}
	for name, ask := range map[string]func(d time.Duration) (Config, string){
		"the proxy's": func(d time.Duration) (Config, string) {
			return Config{RequestTimeout: d}, `{"prompt":"x","stream":true}`
		},
		"the client's": func(d time.Duration) (Config, string) {
			return Config{}, fmt.Sprintf(`{"prompt":"x","timeout":%g}`, d.Seconds())
		},
	} {
		t.Run(name, func(t *testing.T) {
			clocktest.Growing(t, 20*time.Millisecond, func(d time.Duration) bool {
				cfg, ask := ask(d)
				c := newTestCluster(t, cfg)
				n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, silent)
				status, body, _ := c.post("/v1/completions", ask)
				if m, _, code := errorOf(t, body); status != http.StatusGatewayTimeout || code != "deadline_exceeded" || !strings.Contains(m, d.String()) {
					t.Errorf("%d %s", status, body)
				}
				select {
				case <-n.cancels:
					return true
				case <-time.After(d): // it may not have been placed in its time
					return false
				}
			})
		})
	}
}

func TestOverload(t *testing.T) {
	const held, extra = 4, 400
	c := newTestCluster(t, Config{MaxQueue: held})
	open := make(chan struct{})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		go func() { <-open; n.answer(s, send) }()
	})
	var running sync.WaitGroup
	for range held {
		running.Go(func() {
			if status, body, err := c.post("/v1/completions", `{"prompt":"x"}`); status != 200 || err != nil {
				t.Errorf("%d %s %v", status, body, err)
			}
		})
	}
	for range held {
		clocktest.Receive(t, n.submits, "a request to be held")
	}
	var refused sync.WaitGroup
	for range 20 {
		refused.Go(func() {
			for range extra / 20 {
				resp, err := c.client.Do(c.request(context.Background(), "/v1/completions", `{"prompt":"x","stream":true}`))
				if err != nil {
					t.Error(err)
					return
				}
				body := readAll(t, resp)
				resp.Body.Close()
				if _, _, code := errorOf(t, body); resp.StatusCode != http.StatusTooManyRequests || code != "queue_full" || resp.Header.Get("Retry-After") == "" {
					t.Errorf("%d %s", resp.StatusCode, body)
				}
			}
		})
	}
	refused.Wait()
	close(open)
	running.Wait()
}

func TestDrain(t *testing.T) {
	c := newTestCluster(t, Config{})
	open := make(chan struct{})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		<-open
		n.answer(s, send)
	})
	done := make(chan string, 1)
	go func() {
		_, body, _ := c.post("/v1/completions", `{"prompt":"hi there","max_tokens":3}`)
		done <- body
	}()
	// The submit is recorded after the script, so wait for it at the proxy.
	c.waitInFlight(1)
	c.stop()
	c.waitDraining()
	status, body, _ := c.post("/v1/completions", `{"prompt":"x"}`)
	if _, _, code := errorOf(t, body); status != 503 || code != "draining" {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := c.get("/health"); status != 503 {
		t.Errorf("healthy while draining: %d", status)
	}
	if err := keepAlive(c, n.lease); err != nil {
		t.Errorf("nodes must keep their leases while requests run: %v", err)
	}
	close(open)
	if body := clocktest.Receive(t, done, "the running request"); !strings.Contains(body, testTokenizer.Decode(fakeTokens(helloPrompt, 3))) {
		t.Error(body)
	}
}

func TestDrainLimit(t *testing.T) {
	c := newTestCluster(t, Config{DrainTimeout: 20 * time.Millisecond})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		send(firstTokens(s, 0, 1))
	})
	resp, err := c.client.Do(c.request(context.Background(), "/v1/completions", `{"prompt":"x","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	read := readEvents(t, resp, 1)
	clocktest.Receive(t, n.submits, "submit")
	c.stop()
	rest, err := readRest(resp)
	if !cutShort(err) {
		t.Errorf("the stream ended with %v, want it cut short", err)
	}
	evs := events(t, read+rest)
	if _, _, code := errorOf(t, evs[len(evs)-1]); code != "draining" {
		t.Error(evs)
	}
}

// waitInFlight waits until the proxy holds n requests.
func (c *testCluster) waitInFlight(n int) {
	c.t.Helper()
	c.poll(fmt.Sprintf("%d requests in flight", n), func() bool {
		c.proxy.mu.Lock()
		defer c.proxy.mu.Unlock()
		return c.proxy.inFlight == n
	})
}

func (c *testCluster) waitDraining() {
	c.t.Helper()
	c.poll("the drain", func() bool {
		c.proxy.mu.Lock()
		defer c.proxy.mu.Unlock()
		return c.proxy.draining
	})
}

// poll is for conditions nothing announces.
func (c *testCluster) poll(what string, cond func() bool) {
	c.t.Helper()
	clocktest.Until(c.t, what, cond)
}
