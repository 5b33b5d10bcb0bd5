package proxy

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
)

// TestRefusedOnce: an answer to a request that needs no node is one JSON object, also if
// it is a refusal.
func TestRefusedOnce(t *testing.T) {
	c := newTestCluster(t, Config{})
	expect := func(path, body string, want int) {
		t.Helper()
		status, got, err := c.post(path, body)
		var one struct{ Error struct{ Message string } }
		if status != want || err != nil || json.Unmarshal([]byte(got), &one) != nil || one.Error.Message == "" {
			t.Errorf("%s %s: %d %v %q, want %d and an error", path, body, status, err, got, want)
		}
	}
	expect("/tokenize", `{"prompt":"x"}`, http.StatusServiceUnavailable)
	expect("/detokenize", `{"tokens":[1]}`, http.StatusServiceUnavailable)
	c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	expect("/detokenize", `{"tokens":"x"}`, http.StatusBadRequest)
	expect("/detokenize", `{"tokens":[-1]}`, http.StatusBadRequest)
	expect("/tokenize", `{"prompt":7}`, http.StatusBadRequest)
}

// TestDrainClosesConnections: a client that keeps its connection is told that there is
// nothing more to come over it.
func TestDrainClosesConnections(t *testing.T) {
	c := newTestCluster(t, Config{})
	open := make(chan struct{})
	c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		<-open
		n.answer(s, send)
	})
	done := make(chan int, 1)
	go func() {
		status, _, _ := c.post("/v1/completions", `{"prompt":"x","max_tokens":3}`)
		done <- status
	}()
	c.waitInFlight(1)
	c.stop()
	c.waitDraining()
	ctx, cancel := context.WithTimeout(t.Context(), clocktest.Patience)
	defer cancel()
	resp, err := c.client.Do(c.request(ctx, "/v1/completions", `{"prompt":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || !resp.Close {
		t.Errorf("%s, closes: %v, want 503 and Connection: close", resp.Status, resp.Close)
	}
	close(open)
	if status := clocktest.Receive(t, done, "the running request"); status != http.StatusOK {
		t.Errorf("the running request: %d", status)
	}
}
