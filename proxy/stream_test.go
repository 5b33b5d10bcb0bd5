package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"kvferry/attempt"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
)

const streamBody = `{"prompt":"hi there","max_tokens":3,"stream":true}`

func rawPost(version, header, body string) string {
	return fmt.Sprintf("POST /v1/completions %s\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", version, header, len(body), body)
}

// answer reads one answer from what a connection brings.
func answerFrom(t testing.TB, conn net.Conn, r *bufio.Reader) (*http.Response, string) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(clocktest.Patience))
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp, readAll(t, resp)
}

// TestStreamGivesBack: a connection serves streams and other requests one after another,
// sent when the last was answered or all at once.
func TestStreamGivesBack(t *testing.T) {
	for _, pipelined := range []bool{false, true} {
		t.Run(fmt.Sprintf("pipelined=%v", pipelined), func(t *testing.T) {
			c := newTestCluster(t, Config{})
			c.addPair()
			conn := c.dialFrom("127.0.0.1")
			r := bufio.NewReader(conn)
			requests := []string{
				rawPost("HTTP/1.1", "", streamBody), rawPost("HTTP/1.1", "", streamBody), "GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
				rawPost("HTTP/1.1", "", `{"prompt":7,"stream":true}`), rawPost("HTTP/1.1", "", `{"prompt":"x","max_tokens":2}`), rawPost("HTTP/1.1", "", streamBody),
			}
			send := func(s string) {
				if _, err := io.WriteString(conn, s); err != nil {
					t.Fatal(err)
				}
			}
			if pipelined {
				send(strings.Join(requests, ""))
			}
			for i, request := range requests {
				if !pipelined {
					send(request)
				}
				resp, body := answerFrom(t, conn, r)
				bad := strings.Contains(request, `"prompt":7`)
				if (resp.StatusCode == 200) == bad || strings.Contains(request, `"stream":true`) && !bad && !strings.HasSuffix(body, "data: [DONE]\n\n") {
					t.Errorf("request %d: %d %s", i, resp.StatusCode, body)
				}
				if resp.Close || (resp.Header.Get("X-Request-Id") == "") == strings.HasPrefix(request, "POST") {
					t.Errorf("request %d: %v", i, resp.Header)
				}
			}
			c.waitConnections(0, 1)
		})
	}
}

// TestStreamHeaders: what a stream says of itself, to clients of either version.
func TestStreamHeaders(t *testing.T) {
	c := newTestCluster(t, Config{})
	c.addPair()
	for _, tc := range []struct {
		version, header string
		chunked, closes bool
	}{
		{"HTTP/1.1", "", true, false},
		{"HTTP/1.1", "Connection: close\r\n", true, true},
		{"HTTP/1.0", "", false, true},
		{"HTTP/1.0", "Connection: keep-alive\r\n", false, true},
	} {
		conn := c.dialFrom("127.0.0.1")
		if _, err := io.WriteString(conn, rawPost(tc.version, tc.header+"X-Request-Id: mine\r\n", streamBody)); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(conn)
		resp, body := answerFrom(t, conn, r)
		h := resp.Header
		if resp.StatusCode != 200 || h.Get("Content-Type") != "text/event-stream; charset=utf-8" || h.Get("Cache-Control") != "no-cache" || h.Get("X-Request-Id") != "mine" ||
			(len(resp.TransferEncoding) == 1) != tc.chunked || resp.Close != tc.closes {
			t.Errorf("%+v: %d %v, %v, closes %v", tc, resp.StatusCode, h, resp.TransferEncoding, resp.Close)
		}
		if at, err := http.ParseTime(h.Get("Date")); err != nil || time.Since(at).Abs() > time.Hour {
			t.Errorf("%+v: Date %q: %v", tc, h.Get("Date"), err)
		}
		if strings.Count(body, "data: ") != 4 || !strings.HasSuffix(body, "data: [DONE]\n\n") {
			t.Errorf("%+v: %q", tc, body)
		}
		if tc.closes {
			if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("%+v: %v after the answer, want its end", tc, err)
			}
		}
	}
}

// TestStreamRefused: a stream that fails before its first token has a status, and the
// connection goes on.
func TestStreamRefused(t *testing.T) {
	c := newTestCluster(t, Config{MaxRetries: -1})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		send(failMessage(s.Id, proto.FailCode_FAIL_INTERNAL, true))
	})
	conn := c.dialFrom("127.0.0.1")
	r := bufio.NewReader(conn)
	for range 2 {
		if _, err := io.WriteString(conn, rawPost("HTTP/1.1", "", streamBody)); err != nil {
			t.Fatal(err)
		}
		resp, body := answerFrom(t, conn, r)
		if resp.StatusCode != 502 || resp.ContentLength != int64(len(body)) || !strings.Contains(body, "scripted") || resp.Close {
			t.Errorf("%d, %d bytes, closes %v: %s", resp.StatusCode, resp.ContentLength, resp.Close, body)
		}
	}
	n.behave((*fakeNode).answer)
	if _, err := io.WriteString(conn, rawPost("HTTP/1.1", "", streamBody)); err != nil {
		t.Fatal(err)
	}
	if resp, body := answerFrom(t, conn, r); resp.StatusCode != 200 || !strings.HasSuffix(body, "data: [DONE]\n\n") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// TestConnectionsAfterStreams: a connection that waits after a stream for its next request
// is pending, makes room for a new one, and has an end.
func TestConnectionsAfterStreams(t *testing.T) {
	for _, tc := range []struct {
		name string
		tune func(*Proxy)
		end  func(*testCluster)
	}{
		{"room", func(p *Proxy) { p.connections.Grace = 0 }, func(c *testCluster) { c.dialFrom("127.0.0.2") }},
		{"idle", func(p *Proxy) { p.timeouts.idle = 10 * time.Millisecond }, func(*testCluster) {}},
		{"drain", func(*Proxy) {}, func(c *testCluster) { c.stop() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newTestCluster(t, Config{MaxConnections: 1}, tc.tune)
			c.addPair()
			conn := c.dialFrom("127.0.0.1")
			if _, err := io.WriteString(conn, rawPost("HTTP/1.1", "", streamBody)); err != nil {
				t.Fatal(err)
			}
			if status, body := readResponse(t, conn); status != 200 {
				t.Fatal(status, body)
			}
			if tc.name != "idle" {
				c.waitConnections(0, 1)
			}
			tc.end(c)
			clocktest.Receive(t, ends(conn), "the end of the connection")
		})
	}
}

// panics is a log that cannot bear a warning.
type panics struct{ slog.Handler }

func (h panics) Handle(ctx context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn && r.Message == "request failed" {
		panic("a fault of the proxy's own")
	}
	return h.Handler.Handle(ctx, r)
}

// TestStreamPanics: a fault in one stream ends that one, as it does in net/http.
func TestStreamPanics(t *testing.T) {
	var log clocktest.Log
	c := newTestCluster(t, Config{MaxRetries: -1, Logger: slog.New(panics{slog.NewTextHandler(&log, nil)})})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		send(failMessage(s.Id, proto.FailCode_FAIL_INTERNAL, true))
	})
	conn := c.dialFrom("127.0.0.1")
	if _, err := io.WriteString(conn, rawPost("HTTP/1.1", "", streamBody)); err != nil {
		t.Fatal(err)
	}
	clocktest.Receive(t, ends(conn), "the end of the connection")
	c.waitInFlight(0)
	if got := log.String(); !strings.Contains(got, "panic serving a stream") || !strings.Contains(got, "a fault of the proxy's own") {
		t.Error(got)
	}
	n.behave((*fakeNode).answer)
	if status, body, err := c.post("/v1/completions", streamBody); status != 200 || err != nil {
		t.Errorf("%d %s %v", status, body, err)
	}
}

// slow is a log that takes its time for a warning.
type slow struct{ slog.Handler }

func (h slow) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "request failed" {
		wait := time.NewTimer(50 * time.Millisecond)
		defer wait.Stop()
		<-wait.C
	}
	return h.Handler.Handle(ctx, r)
}

// TestStreamIsToldOfTheEnd: a stream that is still there when draining has taken too long
// gets an event that says so, before its connection is closed.
func TestStreamIsToldOfTheEnd(t *testing.T) {
	c := newTestCluster(t, Config{DrainTimeout: time.Millisecond, Logger: slog.New(slow{slog.NewTextHandler(io.Discard, nil)})}, func(p *Proxy) { p.timeouts.end = clocktest.Patience })
	c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		send(firstTokens(s, 0, 1))
	})
	conn := c.dialFrom("127.0.0.1")
	if _, err := io.WriteString(conn, rawPost("HTTP/1.1", "", streamBody)); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(clocktest.Patience))
	var first strings.Builder // up to its first token: before that there is no stream to tell
	for one := make([]byte, 1); !strings.HasSuffix(first.String(), "}\n\n"); first.Write(one) {
		if _, err := io.ReadFull(conn, one); err != nil {
			t.Fatalf("after %q: %v", first.String(), err)
		}
	}
	c.stop()
	rest, err := io.ReadAll(conn)
	if got := first.String() + string(rest); err != nil || strings.Count(got, "data: ") != 2 || !strings.Contains(got, attempt.Ending.Error()) || strings.HasSuffix(got, "\r\n0\r\n\r\n") {
		t.Errorf("%v %s", err, got)
	}
}
