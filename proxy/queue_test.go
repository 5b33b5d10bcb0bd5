package proxy

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"kvferry/handoff"
	"kvferry/handoff/handofftest"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
	"kvferry/proxy/health"
)

// holdFirst is a node that gives a request its first token, if it is one of the first
// n, and its other tokens when open is closed.
func holdFirst(n int, open <-chan struct{}) script {
	return func(node *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		n--
		if n >= 0 {
			send(firstTokens(s, 0, 1))
		}
		go func() { <-open; node.answer(s, send) }()
	}
}

// TestQueueIsOfThoseThatWait: eight requests have had their first token, four wait for
// it: the queue of four is full. Streaming or not, the eight do not count.
func TestQueueIsOfThoseThatWait(t *testing.T) {
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream=%v", stream), func(t *testing.T) {
			c := newTestCluster(t, Config{MaxQueue: 4})
			open := make(chan struct{})
			n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, holdFirst(8, open))
			body := fmt.Sprintf(`{"prompt":"x","max_tokens":3,"stream":%v}`, stream)
			answers := make(chan int, 16)
			begin := func() {
				status, answer, err := c.post("/v1/completions", body)
				if status != 200 || err != nil {
					t.Errorf("%d %s %v", status, answer, err)
				}
				answers <- status
			}
			for i := range 12 {
				go begin()
				clocktest.Receive(t, n.submits, "a request")
				c.waitQueue(max(i-7, 0), i+1)
			}
			status, answer, _ := c.post("/v1/completions", body)
			if m, _, code := errorOf(t, answer); status != http.StatusTooManyRequests || code != "queue_full" || !strings.Contains(m, "4 requests wait (--max-queue)") {
				t.Errorf("%d %s", status, answer)
			}
			if _, body := c.get("/metrics"); !strings.Contains(body, "kvferry:requests{state=\"running\"} 8\n") || !strings.Contains(body, "kvferry:requests{state=\"waiting\"} 4\n") {
				t.Error("the metrics have other counts than 8 and 4")
			}
			close(open)
			for range 12 {
				clocktest.Receive(t, answers, "an answer")
			}
			c.waitQueue(0, 0)
		})
	}
}

// TestQueueUntilItRuns: a request waits until its decode node gives it a token, whatever
// the prefill node has given it. The next is refused until then, and taken on after.
func TestQueueUntilItRuns(t *testing.T) {
	for _, hand := range handoff.Names() {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%v", hand, stream), func(t *testing.T) {
				c := newTestCluster(t, Config{Handoff: hand, MaxQueue: 1})
				p, d := c.addPair()
				open, end := make(chan struct{}), make(chan struct{})
				d.behave(func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
					first := uint32(0)
					if handofftest.PrefillSpeaks(hand) {
						first = 1
					}
					if handofftest.DecodeFirst(hand) {
						send(&proto.FromNode{Reserved: []*proto.Reserved{{Id: s.Id, Kv: n.kv(s)}}})
					}
					out := fakeTokens(promptOf(s), int(s.MaxTokens))
					go func() {
						<-open
						send(tokenMessage(s.Id, first, out[first]))
						<-end
						m := tokenMessage(s.Id, first+1, out[first+1:]...)
						m.Finished = []*proto.Finished{{Id: s.Id, Reason: proto.FinishReason_FINISH_LENGTH}}
						send(m)
					}()
				})
				body := fmt.Sprintf(`{"prompt":"x","max_tokens":5,"stream":%v}`, stream)
				done := make(chan struct{})
				go func() {
					defer close(done)
					if status, answer, err := c.post("/v1/completions", body); status != 200 || err != nil || strings.Contains(answer, "error") {
						t.Errorf("%d %s %v", status, answer, err)
					}
				}()
				clocktest.Receive(t, p.submits, "the prompt")
				clocktest.Receive(t, d.submits, "the decode leg")
				if handofftest.PrefillSpeaks(hand) {
					c.poll("the prefill node's token", func() bool {
						_, metrics := c.get("/metrics")
						return strings.Contains(metrics, "vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"test-model\"} 1\n")
					})
				}
				if status, answer, _ := c.post("/v1/completions", body); status != http.StatusTooManyRequests {
					t.Errorf("while one waits: %d %s", status, answer)
				}
				close(open)
				c.waitQueue(0, 1)
				close(end)
				clocktest.Receive(t, done, "the answer")
				if status, answer, _ := c.post("/v1/completions", body); status != 200 {
					t.Errorf("afterwards: %d %s", status, answer)
				}
			})
		}
	}
}

// waitQueue waits until so many requests wait, of all.
func (c *testCluster) waitQueue(waiting, all int) {
	c.t.Helper()
	c.poll(fmt.Sprintf("%d waiting requests of %d", waiting, all), func() bool {
		c.proxy.mu.Lock()
		defer c.proxy.mu.Unlock()
		return c.proxy.waiting == waiting && c.proxy.inFlight == all
	})
}

// TestQueueCountsEveryEnd: however a request ends, it is counted out, of the queue and
// of the nodes' backlogs.
func TestQueueCountsEveryEnd(t *testing.T) {
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			c := newTestCluster(t, Config{Handoff: hand, MaxRetries: 1})
			p, d := c.addPair()
			empty := func(how string) {
				t.Helper()
				c.waitQueue(0, 0)
				for _, m := range c.proxy.nodes.snapshot() {
					if tokens, _, _ := m.backlog.State(c.proxy.clock.Now()); tokens != 0 {
						t.Errorf("%s: %d tokens are left in the backlog of %s", how, tokens, m.info.Id)
					}
				}
				c.proxy.mu.Lock()
				defer c.proxy.mu.Unlock()
				if c.proxy.unplaced != 0 {
					t.Errorf("%s: %d tokens are left unplaced", how, c.proxy.unplaced)
				}
			}
			c.post("/v1/completions", `{"prompt":"hi there","max_tokens":3}`)
			empty("done")
			c.post("/v1/completions", `{"prompt":"hi there","max_tokens":1,"stream":true}`)
			empty("one token")
			fail := func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
				send(failMessage(s.Id, proto.FailCode_FAIL_TRANSFER, true))
			}
			for _, n := range []*fakeNode{p, d} {
				n.behave(fail)
				c.post("/v1/completions", `{"prompt":"hi there","max_tokens":3}`)
				empty("failed at " + n.info.Id)
				n.behave(func(*fakeNode, *proto.Submit, func(*proto.FromNode)) {})
				c.post("/v1/completions", `{"prompt":"hi there","max_tokens":3,"timeout":0.01}`)
				empty("too late at " + n.info.Id)
				n.behave((*fakeNode).answer)
			}
		})
	}
}

// slowNode has a node's backlog go by rate tokens a second, as if the node had said so.
func (c *testCluster) slowNode(id string, rate float64) {
	c.t.Helper()
	for _, m := range c.proxy.nodes.snapshot() {
		if m.info.Id == id {
			m.backlog.Declare(uint32(1e9 / rate))
			return
		}
	}
	c.t.Fatalf("no node %s", id)
}

// TestMaxQueueTime: 900 tokens wait at a node that does 100 a second. Who comes next
// would wait 9 s, and longer the longer the node does nothing.
func TestMaxQueueTime(t *testing.T) {
	for _, hand := range []string{"", handoff.Pull.Name, handoff.Layerwise.Name} {
		t.Run(hand, func(t *testing.T) {
			c := newTestCluster(t, Config{Handoff: hand, MaxQueueTime: 2 * time.Second})
			silent := func(*fakeNode, *proto.Submit, func(*proto.FromNode)) {}
			var n *fakeNode
			if hand == "" {
				n = c.addNode("node-1", proto.Role_ROLE_NONDISAGG, silent)
			} else {
				n = c.addNode("node-1", proto.Role_ROLE_PREFILL, silent)
				c.addNode("decode-1", proto.Role_ROLE_DECODE, nil)
			}
			prompt := "1" + strings.Repeat(",1", 899)
			ask := func(ctx context.Context) (*http.Response, error) {
				return c.client.Do(c.request(ctx, "/v1/completions", `{"prompt":[`+prompt+`],"max_tokens":2}`))
			}
			ctx, cancel := context.WithCancel(context.Background())
			first := make(chan struct{})
			go func() {
				defer close(first)
				if resp, err := ask(ctx); err == nil {
					resp.Body.Close()
					t.Errorf("the first: %d", resp.StatusCode)
				}
			}()
			clocktest.Receive(t, n.submits, "the first request")
			c.slowNode("node-1", 100)
			resp, err := ask(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
			if m, _, code := errorOf(t, string(body)); resp.StatusCode != http.StatusTooManyRequests || code != "queue_too_long" || after < 7 || !strings.Contains(m, "(--max-queue-time); try again in "+resp.Header.Get("Retry-After")+" s") {
				t.Errorf("%d, Retry-After %d, %s", resp.StatusCode, after, body)
			}
			_, metrics := c.get("/metrics")
			_, rest, _ := strings.Cut(metrics, "\nkvferry:expected_queue_seconds ")
			value, _, _ := strings.Cut(rest, "\n")
			if v, err := strconv.ParseFloat(value, 64); err != nil || v < 9 {
				t.Errorf("kvferry:expected_queue_seconds is %q, want 9 or more", value)
			}
			cancel()
			clocktest.Receive(t, first, "the first request's end")
			c.waitQueue(0, 0)
			n.behave((*fakeNode).answer)
			if status, body, err := c.post("/v1/completions", `{"prompt":"x"}`); status != 200 || err != nil {
				t.Errorf("with nothing ahead: %d %s %v", status, body, err)
			}
		})
	}
}

// addBusyNode adds a node that does so many tokens a second and has a prompt of 400. It
// answers when open is closed; done is closed at the request's end.
func (c *testCluster) addBusyNode(rate float64) (open, done chan struct{}) {
	c.t.Helper()
	open, done = make(chan struct{}), make(chan struct{})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, holdFirst(0, open))
	go func() {
		defer close(done)
		c.post("/v1/completions", `{"prompt":[1`+strings.Repeat(",1", 399)+`],"max_tokens":2}`)
	}()
	clocktest.Receive(c.t, n.submits, "a request")
	c.slowNode("both-1", rate)
	return open, done
}

// TestRetryAfterOfAFullQueue is the time until those ahead have been served.
func TestRetryAfterOfAFullQueue(t *testing.T) {
	c := newTestCluster(t, Config{MaxQueue: 1})
	open, done := c.addBusyNode(100)
	resp, err := c.client.Do(c.request(context.Background(), "/v1/completions", `{"prompt":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if after, _ := strconv.Atoi(resp.Header.Get("Retry-After")); resp.StatusCode != http.StatusTooManyRequests || after < 4 {
		t.Errorf("%d, Retry-After %d, want 4 or more", resp.StatusCode, after)
	}
	close(open)
	clocktest.Receive(t, done, "the first request")
}

// TestWaitIsLogged: a line when it gets long, and one when it is over.
func TestWaitIsLogged(t *testing.T) {
	var log clocktest.Log
	c := newTestCluster(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	open, done := c.addBusyNode(10)
	var alarm health.Alarm
	for range 3 {
		c.proxy.reportQueue(&alarm)
	}
	close(open)
	clocktest.Receive(t, done, "the request")
	for range 3 {
		c.proxy.reportQueue(&alarm)
	}
	if got := log.String(); strings.Count(got, "requests wait for their turn") < 1 || strings.Count(got, "requests wait for their turn") > 2 || // the proxy's own watch may see it too
		strings.Count(got, "requests wait less again") < 1 || !strings.Contains(got, "waiting=1 running=0") {
		t.Error(got)
	}
}
