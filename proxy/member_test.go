package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	protobuf "google.golang.org/protobuf/proto"

	"kvferry/handoff"
	"kvferry/handoff/handofftest"
	"kvferry/internal/clock/clocktest"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/members"
	"kvferry/proxy/upstream"
)

// A namesake is another node with the id of one that is there.
func namesake(n *fakeNode, addr string) *proto.NodeInfo {
	info := protobuf.CloneOf(n.info)
	info.GrpcAddr, info.Instance = addr, n.info.Instance+1
	return info
}

// TestNamesake: an id belongs to the node that has it for as long as that lives. The
// other is told whose it is, and the cluster serves on.
func TestNamesake(t *testing.T) {
	c := newTestCluster(t, Config{})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	refused := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), clocktest.Patience)
	defer cancel()
	go func() {
		_, err := c.reg.Register(ctx, &proto.RegisterRequest{Node: namesake(n, "127.0.0.1:9")})
		refused <- err
	}()
	for i := range 7 {
		if status, body, err := c.post("/v1/completions", `{"prompt":"x","max_tokens":3}`); status != 200 || err != nil {
			t.Errorf("request %d of 7: %d %s %v", i+1, status, body, err)
		}
	}
	// It waits for the holder's next heartbeat, and may have asked after the first.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := keepAlive(c, n.lease); err != nil {
				t.Fatal(err)
			}
			continue
		case err := <-refused:
			if s := status.Convert(err); s.Code() != codes.AlreadyExists || !strings.Contains(s.Message(), n.info.GrpcAddr) || !strings.Contains(s.Message(), "--id") {
				t.Errorf("%v: want ALREADY_EXISTS with the holder's address", err)
			}
		}
		break
	}
	if err := keepAlive(c, n.lease); err != nil {
		t.Errorf("the holder: %v", err)
	}
}

// TestSuccessor: a node whose predecessor is dead takes over at once, however long the
// lease.
func TestSuccessor(t *testing.T) {
	for name, dies := range map[string]func(c *testCluster, n *fakeNode) string{
		"its stream broke and its port is closed": func(c *testCluster, n *fakeNode) string {
			n.kill()
			return "127.0.0.1:9"
		},
		"its port is taken over": func(_ *testCluster, n *fakeNode) string { return n.info.GrpcAddr },
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t, Config{LeaseTTL: time.Hour})
			n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
			addr := dies(c, n)
			ctx, cancel := context.WithTimeout(t.Context(), clocktest.Patience)
			defer cancel()
			if _, err := c.reg.Register(ctx, &proto.RegisterRequest{Node: namesake(n, addr)}); err != nil {
				t.Error(err)
			}
			if err := keepAlive(c, n.lease); status.Code(err) != codes.NotFound {
				t.Errorf("the predecessor's lease: %v, want NOT_FOUND", err)
			}
		})
	}
}

// TestSilentHolder: of a machine that is gone no connection breaks; its lease ends.
func TestSilentHolder(t *testing.T) {
	c := newTestCluster(t, Config{LeaseTTL: 200 * time.Millisecond})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	ctx, cancel := context.WithTimeout(t.Context(), clocktest.Patience)
	defer cancel()
	if _, err := c.reg.Register(ctx, &proto.RegisterRequest{Node: namesake(n, "127.0.0.1:9")}); err != nil {
		t.Error(err)
	}
}

// TestAnotherNodesAddress: what answers at a node's address and is not that node gets no
// request, and the node itself does when it is there.
func TestAnotherNodesAddress(t *testing.T) {
	c := newTestCluster(t, Config{})
	n := c.newNode("node-1", proto.Role_ROLE_NONDISAGG, nil)
	n.says.Store(n.info.Instance + 1)
	if err := c.lease(n); err != nil {
		t.Fatal(err)
	}
	up := func() bool {
		return slices.ContainsFunc(c.proxy.nodes.snapshot(), func(m *member) bool {
			_, _, ok := m.usable()
			return ok
		})
	}
	c.poll("the proxy to have tried twice", func() bool { return n.streams.Load() >= 2 })
	if up() {
		t.Error("another node is taken for it")
	}
	n.says.Store(n.info.Instance)
	c.poll("the node to be up", up)
	if status, answer, err := c.post("/v1/completions", `{"prompt":"x","max_tokens":2}`); status != 200 || err != nil {
		t.Errorf("%d %s %v", status, answer, err)
	}
}

// TestSameInstance: a node that lost its lease and comes back is no namesake.
func TestSameInstance(t *testing.T) {
	c := newTestCluster(t, Config{LeaseTTL: time.Hour})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	again := namesake(n, "127.0.0.1:9")
	again.Instance = n.info.Instance
	ctx, cancel := context.WithTimeout(t.Context(), clocktest.Patience)
	defer cancel()
	if _, err := c.reg.Register(ctx, &proto.RegisterRequest{Node: again}); err != nil {
		t.Error(err)
	}
}

// TestProxyStoodStill: a proxy that was stopped for a minute has heard nobody, which says
// nothing of the nodes.
func TestProxyStoodStill(t *testing.T) {
	c := newTestCluster(t, Config{LeaseTTL: time.Minute})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	c.proxy.leases.Step(c.proxy.clock.Now() + 2*time.Minute)
	if err := keepAlive(c, n.lease); err != nil {
		t.Errorf("after two minutes in which the proxy stood still: %v", err)
	}
	if status, body, err := c.post("/v1/completions", `{"prompt":"x"}`); status != 200 || err != nil {
		t.Errorf("%d %s %v", status, body, err)
	}
}

// TestStalledNode: one of two nodes holds its lease and answers nothing. Its request goes
// to the other, new ones go there at once, and a sign of life brings it back.
func TestStalledNode(t *testing.T) {
	logs := &clocktest.Log{}
	c := newTestCluster(t, Config{Placement: placement.RoundRobin, RequestTimeout: time.Minute, Logger: slog.New(slog.NewTextHandler(logs, nil))})
	var say func(*proto.FromNode)
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		say = send
		send(&proto.FromNode{Load: &proto.Load{Seq: 1, Running: 1, StepUs: 50_000}, LastSubmit: s.Id})
	})
	c.addNode("both-2", proto.Role_ROLE_NONDISAGG, nil)
	answer := func() string {
		t.Helper()
		status, body, err := c.post("/v1/completions", `{"prompt":"x","max_tokens":3,"return_breakdown":true}`)
		if status != 200 || err != nil {
			t.Fatalf("%d %s %v", status, body, err)
		}
		return body
	}
	if body := answer(); !strings.Contains(body, `"decode_node":"both-2","retries":1}`) {
		t.Errorf("want an answer of both-2 after a retry: %s", body)
	}
	first := clocktest.Receive(t, n.submits, "the first attempt")
	if got := clocktest.Receive(t, n.cancels, "its cancel"); got.Id != first.Id {
		t.Errorf("%d is cancelled, want %d", got.Id, first.Id)
	}
	for range 4 {
		if body := answer(); !strings.Contains(body, `"decode_node":"both-2","retries":0}`) {
			t.Errorf("want an answer of both-2 at once: %s", body)
		}
	}
	if text := logs.String(); !strings.Contains(text, "does not get on") || !strings.Contains(text, "both-1") {
		t.Errorf("the log does not tell:\n%s", text)
	}
	if _, body := c.get("/metrics"); !strings.Contains(body, `kvferry:node_stalls_total{engine="both-1"} 1`) {
		t.Error("/metrics does not tell")
	}
	n.behave((*fakeNode).answer)
	say(&proto.FromNode{Load: &proto.Load{Seq: 2, Progress: 1}})
	c.poll("both-1 to be used again", func() bool { return strings.Contains(answer(), `"decode_node":"both-1","retries":0}`) })
}

// TestNowhereToGo: with no other node, waiting is all there is.
func TestNowhereToGo(t *testing.T) {
	c := newTestCluster(t, Config{})
	answers := make(chan func(), 1)
	c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		answers <- func() { n.answer(s, send) }
	})
	done := make(chan string, 1)
	go func() {
		_, body, _ := c.post("/v1/completions", `{"prompt":"x","max_tokens":3,"return_breakdown":true}`)
		done <- body
	}()
	answer := clocktest.Receive(t, answers, "the request")
	all := c.proxy.nodes
	all.mu.Lock()
	all.leaveStalled(all.clock.Now() + time.Hour)
	all.mu.Unlock()
	answer()
	if body := clocktest.Receive(t, done, "the answer"); !strings.Contains(body, `"retries":0}`) {
		t.Error(body)
	}
}

// TestDecodeWaitsForPrefill: under layerwise the decode node has reserved its blocks and
// can do nothing until the prefill node is done; it is not the one that does not get on.
func TestDecodeWaitsForPrefill(t *testing.T) {
	c := newTestCluster(t, Config{Handoff: handoff.Layerwise.Name, Placement: placement.RoundRobin})
	answers := make(chan func(), 1)
	c.addNode("prefill-1", proto.Role_ROLE_PREFILL, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		answers <- func() { n.answer(s, send) }
	})
	finish := make(chan func(), 1)
	c.addNode("decode-1", proto.Role_ROLE_DECODE, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		send(reserve(n, s))
		finish <- func() {
			m := firstTokens(s, 1, int(s.MaxTokens))
			m.Finished = []*proto.Finished{{Id: s.Id}}
			send(m)
		}
	})
	c.addNode("decode-2", proto.Role_ROLE_DECODE, nil)
	done := make(chan string, 1)
	go func() {
		_, body, _ := c.post("/v1/completions", `{"prompt":"x","max_tokens":3,"return_breakdown":true}`)
		done <- body
	}()
	answer, decode := clocktest.Receive(t, answers, "the prefill leg"), clocktest.Receive(t, finish, "the decode leg")
	stuck := func() (all []string) {
		now := c.proxy.clock.Now() + time.Minute
		for _, m := range c.proxy.nodes.snapshot() {
			if m.stuck(now, now) {
				all = append(all, m.info.Id)
			}
		}
		return all
	}
	if got := fmt.Sprint(stuck()); got != "[prefill-1]" {
		t.Errorf("%s do not get on, want prefill-1", got)
	}
	answer()
	c.poll("decode-1 to owe its tokens", func() bool { return fmt.Sprint(stuck()) == "[decode-1]" })
	decode()
	if body := clocktest.Receive(t, done, "the answer"); !strings.Contains(body, `"retries":0}`) {
		t.Error(body)
	}
}

// TestOlderLoad: a heartbeat may overtake an iteration's message, and a load may have
// been drawn up before a prompt came in.
func TestOlderLoad(t *testing.T) {
	c := newTestCluster(t, Config{})
	held := make(chan func(*proto.FromNode), 2)
	c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) { held <- send })
	m := c.proxy.nodes.snapshot()[0]
	ctx, cancel := context.WithCancel(t.Context())
	var requests sync.WaitGroup
	defer requests.Wait()
	defer cancel()
	for range 2 {
		requests.Go(func() {
			if resp, err := c.client.Do(c.request(ctx, "/v1/completions", `{"prompt":[1,2,3,4,5]}`)); err == nil {
				resp.Body.Close()
			}
		})
	}
	say := clocktest.Receive(t, held, "a request")
	clocktest.Receive(t, held, "another")
	waiting := func() int { c, _, _ := m.usable(); return c.WaitingTokens }
	if got := waiting(); got != 10 {
		t.Fatalf("%d tokens wait, want 10", got)
	}
	say(&proto.FromNode{Load: &proto.Load{Seq: 2, WaitingTokens: 4}, LastSubmit: 1})
	c.poll("the first prompt to be counted once", func() bool { return waiting() == 9 })
	m.reported(members.Node{Load: &proto.Load{Seq: 1}}) // from before
	if got := waiting(); got != 9 {
		t.Errorf("%d tokens wait after an older heartbeat, want 9", got)
	}
	both := &proto.Load{Seq: 3, WaitingTokens: 7} // who watches the membership sees this, too
	m.reported(members.Node{Load: both})
	if both.WaitingTokens != 7 {
		t.Errorf("the heartbeat was changed to %v", both)
	}
	if got := waiting(); got != 9 {
		t.Errorf("%d tokens wait after a heartbeat, want 9", got)
	}
	// The heartbeat has overtaken this one, which alone says what it counts.
	say(&proto.FromNode{Load: &proto.Load{Seq: 2, WaitingTokens: 8}, LastSubmit: 2})
	c.poll("both prompts to be counted", func() bool { return waiting() == 8 })
}

// TestWaitForNodes: requests that come before the nodes are served once those are there.
func TestWaitForNodes(t *testing.T) {
	logs := &clocktest.Log{}
	c := newTestCluster(t, Config{NodeWait: clocktest.Patience, Logger: slog.New(slog.NewTextHandler(logs, nil))})
	const requests = 5
	answers := make(chan string, requests)
	for range requests {
		go func() {
			_, body, _ := c.post("/v1/completions", `{"prompt":"x","max_tokens":3,"return_breakdown":true}`)
			answers <- body
		}()
	}
	wait := func(n int) {
		t.Helper()
		c.poll(fmt.Sprintf("%d requests to wait", n), func() bool {
			all := c.proxy.nodes
			all.mu.Lock()
			defer all.mu.Unlock()
			return all.waiting == n
		})
	}
	wait(requests)
	c.addNode("prefill-1", proto.Role_ROLE_PREFILL, nil)
	wait(requests) // now they know the model, and what is missing
	c.addNode("decode-1", proto.Role_ROLE_DECODE, nil)
	for range requests {
		if body := clocktest.Receive(t, answers, "an answer"); !strings.Contains(body, `"retries":0`) {
			t.Error(body)
		}
	}
	if n := strings.Count(logs.String(), "requests wait for nodes"); n < 1 || n > 2 {
		t.Errorf("%d log lines of waiting, want one for each reason:\n%s", n, logs)
	}
}

// TestNodeWaitEnds: the wait is bounded, and its end says what is missing.
func TestNodeWaitEnds(t *testing.T) {
	c := newTestCluster(t, Config{NodeWait: 20 * time.Millisecond})
	for _, step := range []string{"no prefill and decode node is up", "a decode node is missing"} {
		status, body, _ := c.post("/v1/completions", `{"prompt":"x"}`)
		if m, _, code := errorOf(t, body); status != http.StatusServiceUnavailable || code != "no_node" || !strings.Contains(m, step) || !strings.Contains(m, "--node-wait") {
			t.Errorf("%d %s", status, body)
		}
		if len(c.nodes) == 0 {
			c.addNode("prefill-1", proto.Role_ROLE_PREFILL, nil)
		}
	}
}

// TestRequestTimeoutEndsNodeWait: a request's deadline holds while it waits for nodes and engines too.
func TestRequestTimeoutEndsNodeWait(t *testing.T) {
	ill := newFakeEngine(t)
	ill.ill.Store(true)
	for missing, upstreams := range map[string]upstream.URLs{"no prefill and decode node is up": {}, "no engine can take it": {Both: urls(ill)}} {
		c := newTestCluster(t, Config{NodeWait: clocktest.Patience, RequestTimeout: 30 * time.Millisecond, Upstreams: upstreams})
		for _, stream := range []string{"false", "true"} {
			status, body, _ := c.post("/v1/completions", `{"prompt":"x","stream":`+stream+`}`)
			if m, _, code := errorOf(t, body); status != http.StatusGatewayTimeout || code != "deadline_exceeded" || !strings.Contains(m, "30ms") || !strings.Contains(m, missing) {
				t.Errorf("%d %s, want %s", status, body, missing)
			}
		}
	}
}

// TestQuarantinedPair: a pair of nodes between which nearly every transfer fails is left
// alone, and tried again. Each of the two works with another partner.
func TestQuarantinedPair(t *testing.T) {
	for _, code := range []proto.FailCode{proto.FailCode_FAIL_TRANSFER, proto.FailCode_FAIL_CONTENT} {
		t.Run(code.String(), func(t *testing.T) {
			c := newTestCluster(t, Config{Handoff: handoff.Pull.Name, Placement: placement.RoundRobin})
			bad := true
			var mu sync.Mutex
			fails := func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
				mu.Lock()
				defer mu.Unlock()
				if bad && n.info.Id == "decode-1" && s.Kv.NodeId == "prefill-1" {
					send(failMessage(s.Id, code, true))
					return
				}
				n.answer(s, send)
			}
			p := c.addNode("prefill-1", proto.Role_ROLE_PREFILL, nil)
			c.addNode("prefill-2", proto.Role_ROLE_PREFILL, nil)
			c.addNode("decode-1", proto.Role_ROLE_DECODE, fails)
			c.addNode("decode-2", proto.Role_ROLE_DECODE, fails)
			failed := 0
			ask := func() (breakdown string) {
				t.Helper()
				status, body, err := c.post("/v1/completions", `{"prompt":"x","max_tokens":3,"return_breakdown":true}`)
				if status != 200 || err != nil {
					t.Fatalf("%d %s %v", status, body, err)
				}
				failed += strings.Count(body, `"retries":1}`)
				return body
			}
			for range 40 {
				ask()
			}
			// Two before the rest, and one for each second that the forty took.
			if failed < 2 || failed > 6 {
				t.Errorf("%d of 40 requests met the bad pair", failed)
			}
			if len(p.submits) < 8 {
				t.Errorf("prefill-1 has had %d of 40: it is the pair that is bad", len(p.submits))
			}
			for len(p.cancels) > 0 {
				if got := <-p.cancels; got.Doubt != (code == proto.FailCode_FAIL_CONTENT) || got.BadKv {
					t.Errorf("prefill-1 is told %v", got)
				}
			}
			if _, body := c.get("/metrics"); !strings.Contains(body, `kvferry:quarantines_total{engine="prefill-1",peer="decode-1"}`) || !strings.Contains(body, `kvferry:quarantined{engine="prefill-1",peer="decode-1"}`) {
				t.Error("/metrics does not tell")
			}
			mu.Lock()
			bad = false
			mu.Unlock()
			c.poll("the pair to serve again", func() bool {
				return strings.Contains(ask(), `"prefill_node":"prefill-1","decode_node":"decode-1","retries":0}`)
			})
		})
	}
}

// TestFailureNamesBothEnds: the error of a transfer names the node at the other end, also
// under layerwise, where the decode node does not know who writes.
func TestFailureNamesBothEnds(t *testing.T) {
	for _, tc := range []struct{ handoff, want string }{
		{handoff.Pull.Name, "decode leg on decode-1, KV from prefill-1: transfer"},
		{handoff.Layerwise.Name, "decode leg on decode-1, KV from prefill-1: transfer"},
	} {
		c := newTestCluster(t, Config{Handoff: tc.handoff, MaxRetries: -1})
		said := make(chan struct{})
		c.addNode("prefill-1", proto.Role_ROLE_PREFILL, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
			if !handofftest.DecodeFirst(tc.handoff) {
				n.answer(s, send)
			}
			close(said)
		})
		c.addNode("decode-1", proto.Role_ROLE_DECODE, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
			if handofftest.DecodeFirst(tc.handoff) {
				send(reserve(n, s))
			}
			go func() {
				<-said
				send(failMessage(s.Id, proto.FailCode_FAIL_TRANSFER, true))
			}()
		})
		if _, body, _ := c.post("/v1/completions", `{"prompt":"x"}`); !strings.Contains(body, tc.want) {
			t.Errorf("%s: %s, want %q", tc.handoff, body, tc.want)
		}
	}
}
