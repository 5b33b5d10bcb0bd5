package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
)

// waitEarly waits until so many requests wait for the first node.
func (c *testCluster) waitEarly(n int) {
	c.t.Helper()
	c.poll(fmt.Sprintf("%d requests to wait", n), func() bool {
		waiting, running := c.proxy.Requests()
		return waiting == n && running == 0
	})
}

// TestQueueBeforeTheFirstNode: requests that come before the first node wait in the queue, whose bound holds for
// them, and are served when it comes.
func TestQueueBeforeTheFirstNode(t *testing.T) {
	const places = 10
	c := newTestCluster(t, Config{NodeWait: clocktest.Patience, MaxQueue: places})
	answers := make(chan int, places)
	for range places {
		go func() {
			status, _, _ := c.post("/v1/completions", `{"prompt":"x","max_tokens":3}`)
			answers <- status
		}()
	}
	c.waitEarly(places)
	status, body, _ := c.post("/v1/completions", `{"prompt":"x"}`)
	if m, _, code := errorOf(t, body); status != http.StatusTooManyRequests || code != "queue_full" || !strings.Contains(m, fmt.Sprintf("%d requests wait (--max-queue)", places)) {
		t.Errorf("%d %s", status, body)
	}
	if _, body := c.get("/metrics"); !strings.Contains(body, fmt.Sprintf("kvferry:requests{state=\"waiting\"} %d\n", places)) {
		t.Error("the metrics do not count those that wait for a node")
	}
	c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	for range places {
		if status := clocktest.Receive(t, answers, "an answer"); status != 200 {
			t.Errorf("%d", status)
		}
	}
	c.waitQueue(0, 0)
}

// TestQueueForgetsWhoLeftEarly: a client that leaves before the first node comes gives its place back.
func TestQueueForgetsWhoLeftEarly(t *testing.T) {
	c := newTestCluster(t, Config{NodeWait: clocktest.Patience, MaxQueue: 1})
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if resp, err := c.client.Do(c.request(ctx, "/v1/completions", `{"prompt":"x"}`)); err == nil {
				resp.Body.Close()
			}
		}()
		c.waitEarly(1)
		cancel()
		clocktest.Receive(t, done, "the client's end")
		c.waitEarly(0)
	}
}

// told is a body that tells when it has been read.
type told struct {
	io.ReadCloser
	end chan struct{}
}

func (b told) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		select {
		case b.end <- struct{}{}:
		default:
		}
	}
	return n, err
}

// TestParsingIsNotForThoseThatLeft: a client that leaves while others are parsed does not stay in their line.
func TestParsingIsNotForThoseThatLeft(t *testing.T) {
	for _, path := range []string{"/v1/completions", "/tokenize"} {
		t.Run(path, func(t *testing.T) {
			read, ended := make(chan struct{}, 1), make(chan struct{}, 1)
			c := newTestCluster(t, Config{}, func(p *Proxy) {
				p.parsing = make(chan struct{}, 1)
				inner := p.http.Handler
				p.http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					r.Body = told{r.Body, read}
					inner.ServeHTTP(w, r)
					ended <- struct{}{}
				})
			})
			n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
			c.proxy.parsing <- struct{}{} // a slow one
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				if resp, err := c.client.Do(c.request(ctx, path, `{"prompt":"x","max_tokens":1}`)); err == nil {
					resp.Body.Close()
				}
			}()
			clocktest.Receive(t, read, "the end of the body")
			cancel()
			clocktest.Receive(t, done, "the client's end")
			clocktest.Receive(t, ended, "the handler's end")
			<-c.proxy.parsing
			if len(n.submits) > 0 {
				t.Error("it was parsed and submitted all the same")
			}
		})
	}
}
