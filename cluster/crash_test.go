package cluster

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"kvferry/node"
	"kvferry/transport/rails"
)

// TestKilledNode kills nodes with -9 at the worst moments, restarts them under
// their old names and goes on, with every hand-off. A second node of the role
// takes over, and the client cannot tell: the text is the one of an undisturbed
// cluster. Without one the request ends in an error that says so.
func TestKilledNode(t *testing.T) {
	for _, handoff := range handoffs {
		for _, spare := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/spare=%t", handoff, spare), func(t *testing.T) {
				t.Parallel()
				testKilledNode(t, "", handoff, spare)
			})
		}
		t.Run(handoff+"/cma", func(t *testing.T) {
			t.Parallel()
			if r, err := rails.Open(rails.CMA, rails.Options{}); err != nil {
				t.Skipf("SKIPPED: %v", err)
			} else if err := r.Close(); err != nil {
				t.Error(err)
			}
			testKilledNode(t, rails.CMA, handoff, true)
		})
	}
}

func testKilledNode(t *testing.T, rail, handoff string, spare bool) {
	n := 1
	if spare {
		n = 2
	}
	// A prompt of 384 tokens takes 0.4 s, its 1.5 MB 0.8 s more.
	c := start(t, Config{
		Prefill: n, Decode: n, Handoff: handoff, Profile: profile(t, cost{PrefillToken: 1, Decode: 20}),
		Link: "rate=2MB/s", LeaseTTL: time.Second, Rail: rail,
	})
	for i, kill := range []struct {
		moment, role string
		prompt       int
		ready        func(name string, s *stream) bool
		mid          bool // the client has read tokens
	}{
		{"prompt", "prefill", 384, func(name string, _ *stream) bool { return c.running(name) > 0 }, false},
		{"transfer", "decode", 384, c.transferring(handoff), false},
		{"stream", "decode", 32, func(name string, s *stream) bool { return s.r.Tokens >= 3 && c.running(name) > 0 }, true},
	} {
		retries := c.metric("kvferry:request_retries_total")
		q := call{Prompt: prompt(i, kill.prompt), MaxTokens: 40, Stream: true}
		s := make(chan *stream, 1)
		got := make(chan result, 1)
		first := make(chan struct{})
		go func() {
			st := c.open(t.Context(), q)
			st.next(3)
			s <- st
			close(first)
			got <- st.rest()
		}()
		st := &stream{}
		if kill.mid {
			<-first
			st = &stream{r: result{Tokens: 3}}
		}
		var victim string
		c.poll("the moment: mid-"+kill.moment, func() bool {
			for k := range n {
				name := fmt.Sprintf("%s-%d", kill.role, k)
				if kill.ready(name, st) {
					victim = name
					return true
				}
			}
			return false
		})
		if err := c.Process(victim).Kill(); err != nil {
			t.Fatal(err)
		}
		var r result
		select {
		case r = <-got:
		case <-time.After(patience):
			t.Fatalf("killed mid-%s: no end", kill.moment)
		}
		switch {
		case spare:
			r.expect(t, q.MaxTokens)
			if r.Text != want(t, q) {
				t.Errorf("killed mid-%s: got %q, want %q", kill.moment, r.Text, want(t, q))
			}
			if got := c.metric("kvferry:request_retries_total"); got <= retries {
				t.Errorf("killed mid-%s: %v retries, were %v", kill.moment, got, retries)
			}
		case kill.mid:
			if !r.broken() || r.Tokens < 3 || !strings.HasPrefix(want(t, q), r.Text) {
				t.Errorf("killed mid-%s: %v, text %q: want an error event and a broken connection after some tokens", kill.moment, r, r.Text)
			}
		default:
			// Layerwise, the prefill node streams the first token while the last layers are
			// on their way.
			if !r.unsent("no_node", "node_lost") && !(handoff == node.HandoffLayerwise && r.Tokens == 1 && r.broken()) {
				t.Errorf("killed mid-%s: %v: want 5xx", kill.moment, r)
			}
		}
		if !strings.Contains(r.Err.Message, kill.role) && !spare {
			t.Errorf("killed mid-%s: %q does not name the %s node", kill.moment, r.Err.Message, kill.role)
		}

		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if err := c.AddNode(ctx, kill.role, victim); err != nil {
			t.Fatal(err)
		}
		cancel()
		c.poll(victim+" to be back", func() bool { return int(c.metric(fmt.Sprintf(`kvferry:nodes{role=%q}`, kill.role))) == n })
		c.quiet()
	}
	q := call{Prompt: prompt(9, 48), MaxTokens: 4}
	r := c.do(q)
	r.expect(t, q.MaxTokens)
	if w := want(t, q); r.Text != w {
		t.Errorf("after all: got %q, want %q", r.Text, w)
	}
	if bad := c.metric("kvferry:kv_blocks_bad_total"); bad != 0 {
		t.Errorf("%v bad blocks", bad)
	}
}

// transferring says whether a decode node has blocks and KV is on its way into
// them.
func (c *testCluster) transferring(handoff string) func(string, *stream) bool {
	before := c.metric("kvferry:kv_bytes_total")
	return func(name string, _ *stream) bool {
		m := c.metrics()
		if value(m, ofNode("vllm:kv_cache_usage_perc", name)) == 0 {
			return false
		}
		// Layerwise reserves blocks before there is anything to move.
		return handoff != node.HandoffLayerwise || value(m, "kvferry:kv_bytes_total") > before
	}
}

// TestKilledProxy restarts nothing: the nodes must notice, let go of what they
// were working on, and be there for the next proxy. (That they register again is
// tested in package node, where a proxy's port can be kept.)
func TestKilledProxy(t *testing.T) {
	t.Parallel()
	c := start(t, Config{Prefill: 1, Decode: 1, Profile: profile(t, cost{Decode: 20}), LeaseTTL: time.Second})
	s := c.open(t.Context(), call{Prompt: prompt(1, 64), MaxTokens: 500, Stream: true})
	if !s.next(3) {
		t.Fatal(s.r)
	}
	before := descriptors(t, c.Process("decode-0"))
	if err := c.Process("proxy").Kill(); err != nil {
		t.Fatal(err)
	}
	if r := s.rest(); r.Done || r.Cut == nil {
		t.Errorf("%v: want a broken connection", r)
	}
	if resp, err := c.http.Get(c.URL() + "/health"); err == nil {
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("a killed proxy is healthy")
		}
	}
	c.poll("decode-0 to close the proxy's connection", func() bool { return descriptors(t, c.Process("decode-0")) < before })
}

// TestFrozenNode stops a decode node with SIGSTOP: its connections stay open and
// nothing comes any more, as when a machine hangs. The lease tells. Woken up, the
// node lets go of what it was working on and joins again.
func TestFrozenNode(t *testing.T) {
	for _, handoff := range handoffs {
		t.Run(handoff, func(t *testing.T) {
			t.Parallel()
			c := start(t, Config{
				Prefill: 1, Decode: 2, Handoff: handoff, Profile: profile(t, cost{PrefillToken: 0.1, Decode: 20}), LeaseTTL: time.Second,
			})
			q := call{Prompt: prompt(1, 64), MaxTokens: 60, Stream: true}
			s := c.open(t.Context(), q)
			if !s.next(3) {
				t.Fatal(s.r)
			}
			var frozen string
			c.poll("the stream to run", func() bool {
				for _, frozen = range []string{"decode-0", "decode-1"} {
					if c.running(frozen) == 1 {
						return true
					}
				}
				return false
			})
			pid := c.Process(frozen).Pid()
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }() // a stopped process does not end
			r := s.rest()
			r.expect(t, q.MaxTokens)
			if w := want(t, q); r.Text != w {
				t.Errorf("got %q, want %q", r.Text, w)
			}
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			c.poll(frozen+" to be back", func() bool { return c.metric(`kvferry:nodes{role="decode"}`) == 2 })
			c.quiet()
		})
	}
}
