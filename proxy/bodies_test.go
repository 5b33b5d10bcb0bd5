package proxy

import (
	"strings"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
)

// TestLargeSlowBodies: a hundred uploads of the largest size that do not come. A
// request of the usual size is served at once, and what they declare is not taken.
func TestLargeSlowBodies(t *testing.T) {
	c := newTestCluster(t, Config{})
	c.addPair()
	closed := ends(c.slowBodies("127.0.0.1", 100, 4<<20)...)
	c.waitConnections(0, 100)
	if err := c.complete("127.0.0.1"); err != nil {
		t.Error(err)
	}
	// Another large one does not wait until they have timed out.
	if status, body, _ := c.post("/tokenize", `{"prompt":"`+strings.Repeat("x", 3<<20)+`"}`); status != 200 {
		t.Errorf("%d %.200s", status, body)
	}
	clocktest.Receive(t, closed, "the end of a slow body")
}

// TestSlowBodyIsTold: in an answer, with what to do.
func TestSlowBodyIsTold(t *testing.T) {
	c := newTestCluster(t, Config{}, func(p *Proxy) { p.timeouts.body = 50 * time.Millisecond })
	c.addPair()
	conn := c.slowBodies("127.0.0.1", 1, 100)[0]
	status, body := readResponse(t, conn)
	if m, _, code := errorOf(t, body); status != 408 || code != "body_too_slow" || !strings.Contains(m, "50ms") {
		t.Errorf("%d %s", status, body)
	}
	clocktest.Receive(t, ends(conn), "the connection's end")
}
