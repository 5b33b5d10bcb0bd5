package proxy

import (
	"strings"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
)

// TestExcused: that a node said nothing while the proxy stood still is not held against it,
// though another one could serve its request.
func TestExcused(t *testing.T) {
	c := newTestCluster(t, Config{LeaseTTL: time.Minute})
	held, goOn := make(chan struct{}, 1), make(chan struct{})
	hold := func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		held <- struct{}{}
		go func() {
			<-goOn
			n.answer(s, send)
		}()
	}
	c.addNode("both-1", proto.Role_ROLE_NONDISAGG, hold)
	c.addNode("both-2", proto.Role_ROLE_NONDISAGG, hold)
	answer := make(chan string, 1)
	go func() {
		_, body, _ := c.post("/v1/completions", `{"prompt":"x","max_tokens":3,"return_breakdown":true}`)
		answer <- body
	}()
	clocktest.Receive(t, held, "the request")
	all := c.proxy.nodes
	all.step(all.clock.Now() + 2*time.Minute)
	for _, m := range all.snapshot() {
		if _, stalled, _ := m.usable(); stalled {
			t.Errorf("%s is left", m.info.Id)
		}
	}
	close(goOn)
	if body := clocktest.Receive(t, answer, "the answer"); !strings.Contains(body, `"retries":0`) {
		t.Errorf("want an answer without a retry: %s", body)
	}
}
