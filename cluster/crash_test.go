package cluster

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"kvferry/handoff"
	"kvferry/handoff/handofftest"
	"kvferry/node"
	"kvferry/proxy"
	"kvferry/transport/rails"
)

// TestKilledNode kills nodes with -9 at the worst moments, restarts them under
// their old names and goes on, with every hand-off. A second node of the role
// takes over, and the client cannot tell: the text is the one of an undisturbed
// cluster. Without one the request ends in an error that says so.
func TestKilledNode(t *testing.T) {
	t.Parallel()
	for i, hand := range handoffs {
		for j, spare := range []bool{true, false} {
			if testing.Short() && (i+j)%2 > 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s/spare=%t", hand, spare), func(t *testing.T) {
				t.Parallel()
				testKilledNode(t, nil, hand, spare)
			})
		}
		for j, kind := range []string{rails.CMA, rails.SHM} {
			if testing.Short() && (i+j)%2 > 0 {
				continue
			}
			t.Run(hand+"/"+kind, func(t *testing.T) {
				t.Parallel()
				if r, err := rails.Open(kind, rails.Options{}); err != nil {
					t.Skipf("SKIPPED: %v", err)
				} else if err := r.Close(); err != nil {
					t.Error(err)
				}
				testKilledNode(t, []string{kind}, hand, true)
			})
		}
	}
}

func testKilledNode(t *testing.T, over []string, hand string, spare bool) {
	k := killing{nodes: 1, handoff: hand}
	lease := 5 * time.Second // which a request waits for another node; also the silence of a busy one
	if spare {
		k.nodes, lease = 2, patience
	}
	// A prompt of 384 tokens takes 0.4 s, its 1.5 MB 0.8 s more.
	k.testCluster = start(t, Spec{Prefill: k.nodes, Decode: k.nodes, Profile: profile(t, cost{PrefillToken: 1, Decode: 20}), Link: "rate=2MB/s", Proxy: proxy.Config{Handoff: hand, LeaseTTL: lease}, Node: node.Config{Rails: over}})
	c := k.testCluster
	for i, m := range []moment{
		{"prompt", "prefill", 384, c.working, false},
		{"transfer", "decode", 384, func() func(string) bool { return c.transferring(hand) }, false},
		{"stream", "decode", 32, c.working, true},
	} {
		longer := 1
		for !k.at(m, call{Prompt: prompt(i, m.prompt*longer), MaxTokens: 40 * longer, Stream: true}) {
			if longer *= 2; longer > longest {
				t.Fatalf("killed mid-%s: nobody saw the moment", m.name)
			}
		}
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

// A killing is that of nodes of a cluster that has some of each role.
type killing struct {
	*testCluster
	nodes   int
	handoff string
}

// A moment of a request is when a node of a role is to be killed.
type moment struct {
	name, role string
	prompt     int
	watch      func() func(name string) bool // from before the request: is it there, on that node?
	mid        bool                          // the client has read tokens
}

// at sends a call, kills the node that works on it at the moment, looks at how the
// call ends, and starts the node again. It is false if the call was over before that, or had got further.
func (k *killing) at(m moment, q call) bool {
	c, t := k.testCluster, k.t
	t.Helper()
	retries := c.metric("kvferry:request_retries_total")
	here := m.watch()
	f := c.fly(t.Context(), q, 3)
	if m.mid {
		<-f.first
	}
	var victim string
	c.poll("the moment: mid-"+m.name, func() bool {
		over := f.over()
		for i := range k.nodes {
			if name := fmt.Sprintf("%s-%d", m.role, i); here(name) {
				victim = name
				return true
			}
		}
		return over
	})
	if victim == "" {
		f.result(t).expect(t, q.MaxTokens)
		return false
	}
	c.Process(victim).Kill()
	r := f.result(t)
	again := c.metric("kvferry:request_retries_total") > retries
	missed := r.Done && !again
	late := k.nodes == 1 && !m.mid && !missed && r.Tokens > 1 // it was decoding when it was dead
	switch {
	case missed:
		r.expect(t, q.MaxTokens)
	case k.nodes > 1:
		r.expect(t, q.MaxTokens)
		if r.Text != want(t, q) {
			t.Errorf("killed mid-%s: got %q, want %q", m.name, r.Text, want(t, q))
		}
	case m.mid, late:
		if !r.broken() || m.mid && r.Tokens < 3 || !strings.HasPrefix(want(t, q), r.Text) {
			t.Errorf("killed mid-%s: %v, text %q: want an error event and a broken connection after some tokens", m.name, r, r.Text)
		}
	default:
		// Where the prefill node streams the first token, KV may be on its way still.
		if !r.unsent("no_node", "node_lost") && !(handofftest.PrefillSpeaks(k.handoff) && r.Tokens == 1 && r.broken()) {
			t.Errorf("killed mid-%s: %v: want 5xx", m.name, r)
		}
	}
	if k.nodes == 1 && !missed && !strings.Contains(r.Err.Message, m.role) {
		t.Errorf("killed mid-%s: %q does not name the %s node", m.name, r.Err.Message, m.role)
	}

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.AddNode(ctx, m.role, victim); err != nil {
		t.Fatal(err)
	}
	c.poll(victim+" to be back", func() bool { return int(c.metric(fmt.Sprintf(`kvferry:nodes{role=%q}`, m.role))) == k.nodes })
	c.quiet()
	return !missed && !late
}

// working says whether a node runs a request.
func (c *testCluster) working() func(string) bool {
	return func(name string) bool { return c.running(name) > 0 }
}

// transferring says whether a decode node has blocks and KV is on its way into
// them.
func (c *testCluster) transferring(hand string) func(string) bool {
	h, err := handoff.Parse(hand)
	if err != nil {
		c.t.Fatal(err)
	}
	// Who is asked first reserves blocks before there is anything to move. Of layers, the
	// first have moved then; what goes in one piece is on its way once the prompt is computed,
	// which the first token tells.
	sign := ""
	switch {
	case h.First == handoff.PrefillLeg:
	case h.Parts == handoff.Layers:
		sign = "kvferry:kv_bytes_total"
	default:
		sign = "vllm:time_to_first_token_seconds_count"
	}
	before := 0.
	if sign != "" {
		before = c.metric(sign)
	}
	return func(name string) bool {
		m := c.metrics()
		return value(m, ofNode("vllm:kv_cache_usage_perc", name)) > 0 && (sign == "" || value(m, sign) > before)
	}
}

// TestKilledProxy restarts nothing: the nodes must notice, let go of what they
// were working on, and be there for the next proxy. (That they register again is
// tested in package node, where a proxy's port can be kept.)
func TestKilledProxy(t *testing.T) {
	t.Parallel()
	c := start(t, Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{Decode: 20})})
	s := c.open(t.Context(), call{Prompt: prompt(1, 64), MaxTokens: 3000, Stream: true})
	if !s.next(3) {
		t.Fatal(s.r)
	}
	before := descriptors(t, c.Process("decode-0"))
	c.Process("proxy").Kill()
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
	t.Parallel()
	for _, hand := range handoffs {
		t.Run(hand, func(t *testing.T) {
			t.Parallel()
			c := start(t, Spec{Prefill: 1, Decode: 2, Profile: profile(t, cost{PrefillToken: 0.1, Decode: 20}), Proxy: proxy.Config{Handoff: hand, LeaseTTL: 5 * time.Second}})
			var frozen string
			f := c.catch("a decode node runs the stream", 3, func(longer int) call {
				return call{Prompt: prompt(1, 64), MaxTokens: 60 * longer, Stream: true}
			}, func() bool {
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
			r := f.result(t)
			r.expect(t, f.call.MaxTokens)
			if w := want(t, f.call); r.Text != w {
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
