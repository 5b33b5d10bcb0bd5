//go:build house

package proxy

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/openai"
)

// panicking is a stream whose first token panics.
type panicking struct{ eventStream }

func (panicking) Tokens(int, openai.Tokens) error { panic("a token that cannot be written") }

// TestPanicReleasesLegs: a panic while tokens are written tells the node to drop the request, and takes its prompt
// off the node's backlog.
func TestPanicReleasesLegs(t *testing.T) {
	c := newTestCluster(t, Config{}, func(p *Proxy) {
		served := p.http.Handler
		broken := completions
		events := broken.events
		broken.events = func(req *openai.Request, id string, created time.Time) eventStream {
			return panicking{events(req, id, created)}
		}
		p.http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/panic" {
				p.serveGeneration(w, r, broken)
				return
			}
			served.ServeHTTP(w, r)
		})
	})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		send(firstTokens(s, 0, 1))
	})
	if _, err := c.client.Do(c.request(t.Context(), "/panic", `{"prompt":"x","max_tokens":3,"stream":true}`)); err == nil {
		t.Log("the answer had begun")
	}
	submit := clocktest.Receive(t, n.submits, "the request")
	select {
	case got := <-n.cancels:
		if got.Id != submit.Id {
			t.Errorf("%d is cancelled, want %d", got.Id, submit.Id)
		}
	case <-time.After(5 * time.Second):
		t.Error("the node is not told that nobody waits for the request any more")
	}
	c.waitFor("the backlog to be empty", func() bool {
		for _, m := range c.proxy.nodes.snapshot() {
			m.mu.Lock()
			legs := len(m.legs)
			m.mu.Unlock()
			if legs > 0 {
				return false
			}
		}
		return true
	})
}

// TestStalledAfterDeregister: a node that has left in order, and then stops with a request open, loses it
// to another node by the progress deadline, as a node that is still a member does.
func TestStalledAfterDeregister(t *testing.T) {
	c := newTestCluster(t, Config{Placement: placement.RoundRobin, RequestTimeout: 20 * time.Second})
	begun := make(chan struct{})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		send(&proto.FromNode{Load: &proto.Load{Seq: 1, Running: 1, StepUs: 50_000}, LastSubmit: s.Id})
		send(firstTokens(s, 0, 1))
		close(begun)
	})
	c.addNode("both-2", proto.Role_ROLE_NONDISAGG, nil)
	done := make(chan string, 1)
	go func() {
		_, body, _ := c.post("/v1/completions", `{"prompt":"x","max_tokens":3,"return_breakdown":true}`)
		done <- body
	}()
	clocktest.Receive(t, begun, "the first token")
	c.deregister(n)
	if body := clocktest.Receive(t, done, "the answer"); !strings.Contains(body, `"decode_node":"both-2","retries":1`) {
		t.Errorf("want an answer of both-2 after a retry: %s", body)
	}
}
