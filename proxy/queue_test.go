package proxy

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kvferry/clock/clocktest"
	"kvferry/proto"
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
	for _, handoff := range []string{HandoffV0, HandoffPull, HandoffLayerwise} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%v", handoff, stream), func(t *testing.T) {
				c := newTestCluster(t, Config{Handoff: handoff, MaxQueue: 1})
				p, d := c.addPair()
				open, end := make(chan struct{}), make(chan struct{})
				d.behave(func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
					first := uint32(0)
					if handoff == HandoffLayerwise {
						first = 1
						send(&proto.FromNode{Reserved: []*proto.Reserved{{Id: s.Id, Kv: &proto.KVRef{NodeId: n.info.Id, TransferId: s.Id}}}})
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
				if handoff == HandoffLayerwise {
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
	for _, handoff := range []string{HandoffV0, HandoffPull, HandoffLayerwise} {
		t.Run(handoff, func(t *testing.T) {
			c := newTestCluster(t, Config{Handoff: handoff, MaxRetries: 1})
			p, d := c.addPair()
			empty := func(how string) {
				t.Helper()
				c.waitQueue(0, 0)
				for _, m := range c.proxy.registry.snapshot() {
					if tokens, _, _ := m.backlog.state(c.proxy.clock.Now()); tokens != 0 {
						t.Errorf("%s: %d tokens are left in the backlog of %s", how, tokens, m.info.Id)
					}
				}
				c.proxy.mu.Lock()
				defer c.proxy.mu.Unlock()
				if c.proxy.unplaced != 0 {
					t.Errorf("%s: %d tokens are left unplaced", how, c.proxy.unplaced)
				}
			}
			c.post("/v1/completions", `{"prompt":"hello world","max_tokens":3}`)
			empty("done")
			c.post("/v1/completions", `{"prompt":"hello world","max_tokens":1,"stream":true}`)
			empty("one token")
			fail := func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
				send(failMessage(s.Id, proto.FailCode_FAIL_TRANSFER, true))
			}
			for _, n := range []*fakeNode{p, d} {
				n.behave(fail)
				c.post("/v1/completions", `{"prompt":"hello world","max_tokens":3}`)
				empty("failed at " + n.info.Id)
				n.behave(func(*fakeNode, *proto.Submit, func(*proto.FromNode)) {})
				c.post("/v1/completions", `{"prompt":"hello world","max_tokens":3,"timeout":0.01}`)
				empty("too late at " + n.info.Id)
				n.behave((*fakeNode).answer)
			}
		})
	}
}

// slowNode has the node's backlog show that it has worked off rate tokens a second of
// late.
func (c *testCluster) slowNode(id string, rate float64) {
	c.t.Helper()
	for _, m := range c.proxy.registry.snapshot() {
		if m.info.Id == id {
			m.backlog.mu.Lock()
			m.backlog.done, m.backlog.busy = rate, 1
			m.backlog.mu.Unlock()
			return
		}
	}
	c.t.Fatalf("no node %s", id)
}

// TestMaxQueueTime: 900 tokens wait at a node that does 100 a second. Who comes next
// would wait 9 s, and longer the longer the node does nothing.
func TestMaxQueueTime(t *testing.T) {
	for _, handoff := range []string{"", HandoffPull, HandoffLayerwise} {
		t.Run(handoff, func(t *testing.T) {
			c := newTestCluster(t, Config{Handoff: handoff, MaxQueueTime: 2 * time.Second})
			silent := func(*fakeNode, *proto.Submit, func(*proto.FromNode)) {}
			var n *fakeNode
			if handoff == "" {
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

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }

// near reports whether got is within 1 % of want.
func near(got, want time.Duration) bool {
	return math.Abs(float64(got-want)) <= 0.01*float64(max(want, time.Millisecond))
}

// TestBacklog follows one node in virtual time.
func TestBacklog(t *testing.T) {
	var b backlog
	wait := func(at float64) time.Duration { return roleWait(seconds(at), 0, []*backlog{&b}) }
	if got := wait(0); got != 0 {
		t.Errorf("nothing ahead: %v", got)
	}
	b.enter(seconds(0), 1000)
	if got := wait(0.5); !near(got, seconds(0.49)) { // decayed a little
		t.Errorf("nothing worked off in 0.5 s: %v", got)
	}
	b.enter(seconds(1), 3000)
	b.exit(seconds(1), 1000, true) // 1000 a second
	if got := wait(1); !near(got, seconds(3000./1050)) {
		t.Errorf("3000 tokens at 1000 a second: %v", got)
	}
	b.exit(seconds(1), 3000, false) // the client went away
	if got := wait(1); got != 0 {
		t.Errorf("nothing ahead: %v", got)
	}
	b.enter(seconds(101), 500) // a hundred idle seconds count for nothing
	if got := wait(101); !near(got, seconds(500./1050)) {
		t.Errorf("500 tokens at 1000 a second: %v", got)
	}
	// It becomes twice as slow: after three times its memory that is what counts.
	for i := range 30 {
		b.exit(seconds(102+float64(i)), 500, true)
		b.enter(seconds(102+float64(i)), 500)
	}
	if got := wait(131); got < seconds(0.9) || got > seconds(1.1) {
		t.Errorf("500 tokens at 500 a second: %v", got)
	}
	// It stops: the wait grows by itself.
	if soon, late := wait(132), wait(150); late < 2*soon {
		t.Errorf("%v after a second without progress, %v after nineteen", soon, late)
	}
}

// TestRoleWait is what several nodes make of a queue.
func TestRoleWait(t *testing.T) {
	node := func(tokens int, rate float64) *backlog { return &backlog{tokens: tokens, done: rate, busy: 1} }
	for _, tc := range []struct {
		name  string
		ahead int
		nodes []*backlog
		want  time.Duration
	}{
		{"none", 0, nil, 0},
		{"one", 500, []*backlog{node(500, 1000)}, time.Second},
		{"two", 0, []*backlog{node(3000, 1000), node(1000, 1000)}, 2 * time.Second},
		{"unequal", 0, []*backlog{node(3000, 3000), node(1000, 1000)}, time.Second},
		{"one that is new", 0, []*backlog{node(4000, 1000), node(0, 0)}, 2 * time.Second},
		{"idle", 0, []*backlog{node(0, 1000), node(0, 0)}, 0},
		{"new", 9000, []*backlog{{}, {}}, 0},
		{"new and busy", 0, []*backlog{{tokens: 10, busy: 3}, {tokens: 10, busy: 2}}, 3 * time.Second},
	} {
		if got := roleWait(0, tc.ahead, tc.nodes); !near(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestWaitIsKept simulates twice what a node can do, in virtual time: prompts of 100
// to 1,900 tokens, computed eight at a time as engines do, 20 a second where 10 can be
// served. With a longest wait of 1 s, those admitted wait no longer than that and the
// step under way; without, the queue grows as long as the load lasts. The node has
// as much to do either way.
func TestWaitIsKept(t *testing.T) {
	const rate, load, horizon = 10_000.0, 20.0, 120.0
	run := func(limit time.Duration) (waits []float64, served int) {
		rng := rand.New(rand.NewPCG(1, 2))
		var b backlog
		type prompt struct {
			at     float64
			tokens int
		}
		var queue, step []prompt
		next, ends := 0.0, math.Inf(1)
		for now := 0.0; now < horizon; now = min(next, ends) {
			if now == ends {
				for _, p := range step {
					b.exit(seconds(now), p.tokens, true)
					served++
				}
				ends, step = math.Inf(1), nil
			}
			if now == next {
				p := prompt{now, 100 + rng.IntN(1801)}
				if wait := roleWait(seconds(now), 0, []*backlog{&b}); limit == 0 || wait <= limit {
					b.enter(seconds(now), p.tokens)
					queue = append(queue, p)
				}
				next = now + rng.ExpFloat64()/load
			}
			if step == nil && len(queue) > 0 {
				n := min(8, len(queue))
				step, queue = queue[:n:n], queue[n:]
				work := 0
				for _, p := range step {
					waits = append(waits, now-p.at)
					work += p.tokens
				}
				ends = now + float64(work)/rate
			}
		}
		slices.Sort(waits)
		return waits, served
	}
	waits, served := run(time.Second)
	if p50, worst := waits[len(waits)/2], waits[len(waits)-1]; p50 > 1.2 || worst > 2.5 {
		t.Errorf("with a limit of 1 s: median wait %.2f s, longest %.2f s", p50, worst)
	}
	free, all := run(0)
	if served < all*95/100 {
		t.Errorf("%d served with a limit, %d without", served, all)
	}
	if worst := free[len(free)-1]; worst < 30 {
		t.Errorf("without a limit the longest wait is %.2f s: this load proves nothing", worst)
	}
}

func TestWaitAlarm(t *testing.T) {
	var a waitAlarm
	for i, tc := range []struct {
		wait  float64
		news  bool
		level int
	}{
		{0, false, 0},
		{0.9, false, 0},
		{1, true, 1},
		{0.6, false, 1},
		{1.2, false, 1},
		{12, true, 2},
		{6, false, 2},
		{100, true, 3},
		{40, false, 3},
		{29, true, 2},
		{0.4, true, 0},
		{61, true, 3},
		{4, true, 1},
	} {
		if news := a.step(seconds(tc.wait)); news != tc.news || a.level != tc.level {
			t.Errorf("step %d, %v s: news %v, level %d, want %v, %d", i, tc.wait, news, a.level, tc.news, tc.level)
		}
	}
}

// TestWaitIsLogged: a line when it gets long, and one when it is over.
func TestWaitIsLogged(t *testing.T) {
	var log logBuffer
	c := newTestCluster(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	open, done := c.addBusyNode(10)
	var alarm waitAlarm
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

// TestFreshQueue: what a node says of itself is its rate until it has shown another, and
// one prompt that has ended, of many that came with it, does not.
func TestFreshQueue(t *testing.T) {
	var b backlog
	b.declare(1_000_000) // 1,000 tokens/s
	wait := func(at float64) float64 { return roleWait(seconds(at), 0, []*backlog{&b}).Seconds() }
	for range 10 {
		b.enter(0, 100)
	}
	if got := wait(0); math.Abs(got-1) > 0.01 {
		t.Errorf("10 prompts of 0.1 s are %.3f s before any has ended", got)
	}
	b.exit(seconds(0.9), 100, true) // a step of nine
	if got := wait(0.9); got > 1.8 {
		t.Errorf("9 prompts are %.3f s when one has ended after 0.9 s", got)
	}
	for i := range 300 {
		b.enter(seconds(1+float64(i)/20), 100)
		b.exit(seconds(1.05+float64(i)/20), 100, true) // twice as fast as it said
	}
	if got := wait(16.1); got < 0.4 || got > 0.55 {
		t.Errorf("9 prompts are %.3f s at 2,000 tokens/s", got)
	}
}
