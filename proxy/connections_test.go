package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
)

// dialFrom connects to the proxy from an address of the loopback network: a client
// of its own.
func (c *testCluster) dialFrom(addr string) net.Conn {
	c.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}}
	conn, err := d.Dial("tcp", c.proxy.HTTPAddr())
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	return conn
}

// clientAt is an HTTP client at such an address, without connections of its own
// between requests.
func clientAt(addr string) *http.Client {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}}
	return &http.Client{Timeout: clocktest.Patience, Transport: &http.Transport{DialContext: d.DialContext, DisableKeepAlives: true}}
}

// slowBodies opens n requests from addr that declare length bytes and send one.
func (c *testCluster) slowBodies(addr string, n, length int) (conns []net.Conn) {
	c.t.Helper()
	for range n {
		conn := c.dialFrom(addr)
		if _, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{", length); err != nil {
			c.t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	return conns
}

// waitConnections waits until the proxy has so many.
func (c *testCluster) waitConnections(running, pending int) {
	c.t.Helper()
	var r, p int
	defer func() {
		if c.t.Failed() {
			c.t.Logf("there are %d with a request and %d pending", r, p)
		}
	}()
	c.poll(fmt.Sprintf("%d connections with a request and %d pending", running, pending), func() bool {
		r, p, _ = c.proxy.connections.Counts()
		return r == running && p == pending
	})
}

// complete asks for two tokens from addr.
func (c *testCluster) complete(addr string) error {
	resp, err := clientAt(addr).Post(c.url("/v1/completions"), "application/json", strings.NewReader(`{"prompt":"x","max_tokens":2}`))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK || err != nil {
		return fmt.Errorf("%d %s %w", resp.StatusCode, body, err)
	}
	return nil
}

// readResponse reads one answer from a connection.
func readResponse(t testing.TB, conn net.Conn) (status int, body string) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(clocktest.Patience))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode, readAll(t, resp)
}

// ends tells of each connection that is closed by the other side.
func ends(conns ...net.Conn) <-chan struct{} {
	closed := make(chan struct{}, len(conns))
	for _, conn := range conns {
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			closed <- struct{}{}
		}()
	}
	return closed
}

// TestSlowBodiesTakeNoQueue: a hundred requests that never get whole, sixteen places
// in the queue. Twenty of twenty others are served, from the same address and from
// another. When a body took its place before it was read, all were answered 429.
func TestSlowBodiesTakeNoQueue(t *testing.T) {
	for _, length := range []int{100, 4 << 20} {
		c := newTestCluster(t, Config{MaxQueue: 16})
		c.addPair()
		c.slowBodies("127.0.0.1", 100, length)
		c.waitConnections(0, 100)
		for i := range 20 {
			if err := c.complete(fmt.Sprintf("127.0.0.%d", 1+i%2)); err != nil {
				t.Errorf("beside bodies of %d bytes: %v", length, err)
			}
		}
	}
}

// noGrace has a pending connection make room at once.
func noGrace(p *Proxy) { p.connections.Grace = 0 }

// TestConnectionsMakeRoom: pending connections make room for new ones, those of the
// client that has most of them first, the longest first.
func TestConnectionsMakeRoom(t *testing.T) {
	c := newTestCluster(t, Config{MaxConnections: 16}, noGrace)
	c.addPair()
	slow := c.slowBodies("127.0.0.1", 12, 100) // its whole share
	c.waitConnections(0, 12)
	closed := ends(slow...)
	idle := c.dialFrom("127.0.0.2")
	c.waitConnections(0, 13)
	if err := c.complete("127.0.0.1"); err != nil {
		t.Errorf("beyond the client's share: %v", err)
	}
	clocktest.Receive(t, closed, "the end of a slow request")
	c.waitConnections(0, 12)
	c.slowBodies("127.0.0.3", 4, 100)
	c.waitConnections(0, 16)
	if err := c.complete("127.0.0.4"); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	clocktest.Receive(t, closed, "the end of another")
	c.waitConnections(0, 15)
	if _, err := fmt.Fprint(idle, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if resp, err := http.ReadResponse(bufio.NewReader(idle), nil); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("a connection of a client that has one: %v", err)
	}
	if _, _, dropped := c.proxy.connections.Counts(); dropped != 2 {
		t.Errorf("%d connections were dropped, want 2", dropped)
	}
}

// TestRunningRequestsKeepTheirConnections: those that have none may wait, and a
// client beyond its share is turned away, but nobody's stream is cut for another.
func TestRunningRequestsKeepTheirConnections(t *testing.T) {
	c := newTestCluster(t, Config{MaxConnections: 4})
	open := make(chan struct{})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		go func() { <-open; n.answer(s, send) }()
	})
	answers := make(chan error, 8)
	begin := func(addr string, n int) {
		for range n {
			go func() { answers <- c.complete(addr) }()
		}
	}
	begin("127.0.0.1", 3)
	c.waitConnections(3, 0)
	if fourth, err := net.Dial("tcp", c.proxy.HTTPAddr()); err == nil { // from 127.0.0.1; it may be reset at once
		defer fourth.Close()
		clocktest.Receive(t, ends(fourth), "the end of a fourth connection")
	}
	begin("127.0.0.2", 1)
	c.waitConnections(4, 0)
	begin("127.0.0.3", 2) // wait in the kernel's queue
	for range 4 {
		clocktest.Receive(t, n.submits, "a request that runs")
	}
	close(open)
	for range 6 {
		if err := clocktest.Receive(t, answers, "an answer"); err != nil {
			t.Error(err)
		}
	}
}

// TestIdleConnectionsMakeRoom: of a client that keeps as many as it may.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	c := newTestCluster(t, Config{MaxConnections: 8}, noGrace)
	c.addPair()
	for range 6 {
		conn := c.dialFrom("127.0.0.1")
		if _, err := fmt.Fprint(conn, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
			t.Fatal(err)
		}
	}
	c.waitConnections(0, 6)
	for range 12 {
		if err := c.complete("127.0.0.1"); err != nil {
			t.Error(err)
		}
	}
}

// TestStopWhileConnectionsWait: a proxy that has no room for a connection still ends.
func TestStopWhileConnectionsWait(t *testing.T) {
	c := newTestCluster(t, Config{MaxConnections: 1, DrainTimeout: 10 * time.Millisecond})
	c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(*fakeNode, *proto.Submit, func(*proto.FromNode)) {})
	answers := make(chan error, 2)
	go func() { answers <- c.complete("127.0.0.1") }()
	c.waitConnections(1, 0)
	go func() { answers <- c.complete("127.0.0.2") }()
	c.poll("a connection to wait for room", func() bool {
		return c.proxy.connections.Full()
	})
	c.stop()
	for range 2 {
		if err := clocktest.Receive(t, answers, "an answer"); err == nil {
			t.Error("a request was served by a proxy that stops")
		}
	}
}
