package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
	"kvferry/proxy/admission"
)

// smallBuffers has the kernel keep little of an answer that nobody reads.
func smallBuffers(p *Proxy) {
	p.timeouts = timeouts{body: clocktest.Patience, answer: 100 * time.Millisecond, grace: 100 * time.Millisecond, idle: clocktest.Patience, end: time.Second}
	p.http.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		_ = conn.(*admission.Connection).SetWriteBuffer(4 << 10)
		return admission.WithConnection(ctx, conn)
	}
}

// countClosed counts the connections that the proxy closes.
func countClosed(n *atomic.Int64) func(*Proxy) {
	return func(p *Proxy) {
		state := p.http.ConnState
		p.http.ConnState = func(c net.Conn, s http.ConnState) {
			state(c, s)
			if s == http.StateClosed {
				n.Add(1)
			}
		}
	}
}

// deaf sends request many times over a connection that reads nothing.
func (c *testCluster) deaf(request string, times int) {
	c.t.Helper()
	// Before it connects, or the window it has announced stays.
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10) })
	}}
	conn, err := d.Dial("tcp", c.proxy.HTTPAddr())
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	go func() { _, _ = conn.Write([]byte(strings.Repeat(request, times))) }()
}

// TestUnreadAnswers: twelve clients of each endpoint that read nothing. All
// connections are given up; all twelve were still held after 40 s when only streams
// had a deadline.
func TestUnreadAnswers(t *testing.T) {
	post := func(path, body string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	}
	get := func(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n" }
	for name, request := range map[string]string{
		"detokenize":  post("/detokenize", `{"tokens":[1`+strings.Repeat(",1", 20_000)+`]}`),
		"tokenize":    post("/tokenize", `{"prompt":"`+strings.Repeat("!", 20_000)+`"}`),
		"metrics":     get("/metrics"),
		"models":      get("/v1/models"),
		"health":      get("/health"),
		"version":     get("/version"),
		"server info": get("/server_info"),
		"not found":   get("/nowhere"),
		"bad request": post("/v1/completions", `{"prompt":7}`),
		"completion":  post("/v1/completions", `{"prompt":"x","max_tokens":900}`),
	} {
		t.Run(name, func(t *testing.T) {
			var closed atomic.Int64
			c := newTestCluster(t, Config{RequestTimeout: 200 * time.Millisecond}, smallBuffers, countClosed(&closed))
			c.addPair()
			for range 12 {
				c.deaf(request, 200_000/len(request))
			}
			c.poll("the end of all connections", func() bool { return closed.Load() == 12 })
		})
	}
}

// TestUnreadStream: a client that stops reading its stream holds a handler until its
// request's deadline at most.
func TestUnreadStream(t *testing.T) {
	var closed atomic.Int64
	c := newTestCluster(t, Config{RequestTimeout: 2 * time.Second}, smallBuffers, countClosed(&closed))
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	body := `{"prompt":"x","max_tokens":900,"stream":true}`
	for range 12 {
		c.deaf(fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body), 1)
	}
	for range 12 {
		clocktest.Receive(t, n.submits, "a request")
	}
	c.poll("the end of all connections", func() bool { return closed.Load() == 12 })
	c.waitInFlight(0)
}

// TestStreamsTakeTheirTime: what bounds other answers, over at once here, does not end a
// request's.
func TestStreamsTakeTheirTime(t *testing.T) {
	c := newTestCluster(t, Config{}, func(p *Proxy) { p.timeouts.answer = time.Nanosecond })
	c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	for _, stream := range []bool{true, false} {
		status, body, err := c.post("/v1/completions", fmt.Sprintf(`{"prompt":"hi there","max_tokens":3,"stream":%v}`, stream))
		if status != 200 || err != nil || strings.Contains(body, "error") {
			t.Errorf("%d %s %v", status, body, err)
		}
	}
}

// TestUnreadBodies: net/http reads to its end a body that no handler asked for. One
// that does not come holds its connection no longer than an answer may take.
func TestUnreadBodies(t *testing.T) {
	c := newTestCluster(t, Config{}, smallBuffers)
	c.addPair()
	for _, request := range []string{
		"GET /metrics", "GET /health", "DELETE /v1/models", "POST /nowhere", "GET /v1/completions",
	} {
		conn := c.dialFrom("127.0.0.1")
		if _, err := fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", request); err != nil {
			t.Fatal(err)
		}
	}
	c.waitConnections(0, 0)
}

// TestSlowAnswersInPieces: a long answer may take longer than answerTimeout as long as
// its client goes on reading.
func TestSlowAnswersInPieces(t *testing.T) {
	c := newTestCluster(t, Config{}, smallBuffers, func(p *Proxy) { p.timeouts.answer = clocktest.Patience })
	c.addPair()
	word, _ := testTokenizer.Words()
	ids := fmt.Sprintf("[%d%s]", word, strings.Repeat(fmt.Sprintf(",%d", word), 50_000))
	status, body, err := c.post("/detokenize", `{"tokens":`+ids+`}`)
	if want := strings.Repeat(testTokenizer.Decode([]uint32{word}), 50_001); status != 200 || err != nil || body != `{"prompt":"`+want+"\"}\n" {
		t.Errorf("%d, %v, %d bytes, want %d", status, err, len(body), len(want))
	}
	status, body, err = c.post("/tokenize", `{"prompt":"`+strings.Repeat(testTokenizer.Decode([]uint32{word}), 50_001)+`"}`)
	if status != 200 || err != nil || body != `{"tokens":`+ids+`,"count":50001,"max_model_len":1000}`+"\n" {
		t.Errorf("%d, %v, %d bytes", status, err, len(body))
	}
}

// TestTooLargeIsToldAtOnce: by its declared length, before it is sent.
func TestTooLargeIsToldAtOnce(t *testing.T) {
	c := newTestCluster(t, Config{MaxBodyBytes: 1 << 10})
	c.addPair()
	conn := c.slowBodies("127.0.0.1", 1, 1025)[0]
	if status, body := readResponse(t, conn); status != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %s", status, body)
	}
	// And when it does not say how long it is.
	conn = c.dialFrom("127.0.0.1")
	if _, err := fmt.Fprintf(conn, "POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n401\r\n%s\r\n", strings.Repeat("x", 1025)); err != nil {
		t.Fatal(err)
	}
	if status, body := readResponse(t, conn); status != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %s", status, body)
	}
}

// TestTooLargeIsRead: a client that sends all of a body before it reads the answer learns that it
// was too long, whether it said how long it is or not, or packed it.
func TestTooLargeIsRead(t *testing.T) {
	c := newTestCluster(t, Config{MaxBodyBytes: 1 << 10}, func(p *Proxy) { p.timeouts.answer = clocktest.Patience })
	c.addPair()
	const size = 20 << 20 // more than both ends' buffers hold
	body := strings.Repeat("x", 1<<20)
	for name, head := range map[string]string{
		"with its length": fmt.Sprintf("Content-Length: %d\r\n\r\n", size), "in chunks": "Transfer-Encoding: chunked\r\n\r\n",
		"packed": fmt.Sprintf("Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n", size),
	} {
		for _, path := range []string{"/v1/completions", "/generate", "/tokenize"} {
			conn := c.dialFrom("127.0.0.1")
			if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\n%s", path, head); err != nil {
				t.Fatal(err)
			}
			var err error
			for n := 0; n < size && err == nil; n += len(body) {
				if strings.Contains(head, "chunked") {
					_, err = fmt.Fprintf(conn, "%x\r\n%s\r\n", len(body), body)
				} else {
					_, err = io.WriteString(conn, body)
				}
			}
			if err != nil {
				t.Errorf("%s %s: %v", path, name, err)
				continue
			}
			if status, body := readResponse(t, conn); status != http.StatusRequestEntityTooLarge || !strings.Contains(body, "--max-body") {
				t.Errorf("%s %s: %d %s", path, name, status, body)
			}
		}
	}
}
