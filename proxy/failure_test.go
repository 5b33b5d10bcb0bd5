package proxy

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kvferry/handoff"
	"kvferry/handoff/handofftest"
	"kvferry/internal/clock/clocktest"
	"kvferry/placement"
	"kvferry/proto"
)

// die kills the node without an answer.
func die(n *fakeNode, _ *proto.Submit, _ func(*proto.FromNode)) { go n.kill() }

func firstTokens(s *proto.Submit, from, to int) *proto.FromNode {
	prompt := promptOf(s)
	return tokenMessage(s.Id, uint32(from), fakeTokens(prompt, to)[from:]...)
}

func reserve(n *fakeNode, s *proto.Submit) *proto.FromNode {
	return &proto.FromNode{Reserved: []*proto.Reserved{{Id: s.Id, Kv: n.kv(s)}}}
}

// TestRetry fails the first node a request meets in every phase, and expects
// every token exactly once from the others.
func TestRetry(t *testing.T) {
	const asked = 5
	for _, tc := range []struct {
		name, handoff   string
		prefill, decode script // of the first node of the role; nil answers well
		prior           uint32 // in the second decode node's submit
		untold          bool   // the retry does not reach decode-2
	}{
		{name: "prefill dies in the prompt", handoff: handoff.Pull.Name, prefill: die, untold: true},
		{name: "decode dies before its first token", handoff: handoff.Pull.Name, decode: die},
		{name: "decode dies in mid-stream", handoff: handoff.Pull.Name, prior: 2, decode: func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
			send(firstTokens(s, 0, 2))
			go n.server.GracefulStop() // what was sent gets out; the handler ends with the stream
			go n.kill()
		}},
		{name: "transfer fails", handoff: handoff.Pull.Name, decode: func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
			send(failMessage(s.Id, proto.FailCode_FAIL_TRANSFER, true))
		}},
		{name: "transfer fails after tokens", handoff: handoff.V0.Name, prior: 3, decode: func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
			m := firstTokens(s, 0, 3)
			m.Failed = failMessage(s.Id, proto.FailCode_FAIL_TRANSFER, true).Failed
			send(m)
		}},
		{name: "decode ends short", handoff: handoff.Pull.Name, prior: 2, decode: func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
			m := firstTokens(s, 0, 2)
			m.Finished = []*proto.Finished{{Id: s.Id, Reason: proto.FinishReason_FINISH_LENGTH}}
			send(m)
		}},
		{name: "decode breaks the protocol", handoff: handoff.Pull.Name, decode: func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
			send(&proto.FromNode{Ids: []uint64{s.Id}})
		}},
		{name: "decode emits too much", handoff: handoff.Pull.Name, prior: 5, decode: func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
			send(firstTokens(s, 0, asked+1))
		}, untold: true},
		{name: "prefill fails", handoff: handoff.Layerwise.Name, prefill: func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
			send(failMessage(s.Id, proto.FailCode_FAIL_INTERNAL, true))
		}},
		{name: "prefill dies in the prompt", handoff: handoff.Layerwise.Name, prefill: die},
		{
			name: "prefill dies after its token", handoff: handoff.Layerwise.Name, prior: 1,
			decode: func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) { send(reserve(n, s)) },
			prefill: func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
				m := firstTokens(s, 0, 1)
				m.Failed = failMessage(s.Id, proto.FailCode_FAIL_TRANSFER, true).Failed
				send(m)
			},
		},
		{name: "decode dies before it reserves", handoff: handoff.Layerwise.Name, decode: die},
	} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%s/stream=%v", tc.handoff, tc.name, stream), func(t *testing.T) {
				c := newTestCluster(t, Config{Handoff: tc.handoff, Placement: placement.RoundRobin})
				c.addNode("prefill-1", proto.Role_ROLE_PREFILL, tc.prefill)
				c.addNode("decode-1", proto.Role_ROLE_DECODE, tc.decode)
				c.addNode("prefill-2", proto.Role_ROLE_PREFILL, nil)
				d2 := c.addNode("decode-2", proto.Role_ROLE_DECODE, nil)
				status, body, err := c.post("/v1/completions", fmt.Sprintf(`{"prompt":[1,2,3],"max_tokens":%d,"stream":%v,"return_breakdown":true}`, asked, stream))
				if status != 200 || err != nil {
					t.Fatalf("%d %s %v", status, body, err)
				}
				want := testTokenizer.Decode(fakeTokens([]uint32{1, 2, 3}, asked))
				if stream && streamText(t, body) != want || !strings.Contains(body, `"completion_tokens":5`) {
					t.Errorf("%s, want %q", body, want)
				}
				if !stream && !strings.Contains(body, want) {
					t.Errorf("%s, want %q", body, want)
				}
				if tc.untold {
					return
				}
				if !strings.Contains(body, `"retries":1}`) {
					t.Errorf("not one retry: %s", body)
				}
				s := clocktest.Receive(t, d2.submits, "the retry")
				prompt := promptOf(s)
				// Tokens a dying node sent may be lost with its connection.
				if s.Prior > tc.prior || int(s.Prior) != len(prompt)-3 || int(s.MaxTokens) != asked-int(s.Prior) && s.MaxTokens != 1 {
					t.Errorf("resubmitted with prior %d (want %d), %d tokens of prompt, max_tokens %d", s.Prior, tc.prior, len(prompt), s.MaxTokens)
				}
				if want := append([]uint32{1, 2, 3}, fakeTokens([]uint32{1, 2, 3}, int(s.Prior))...); !slices.Equal(prompt, want) {
					t.Errorf("resubmitted %v, want %v", prompt, want)
				}
			})
		}
	}
}

// TestDecodeLostInMidStream kills decode only once the client has read tokens,
// in every hand-off: they must not come twice.
func TestDecodeLostInMidStream(t *testing.T) {
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			c := newTestCluster(t, Config{Handoff: hand, Placement: placement.RoundRobin})
			c.addNode("prefill-1", proto.Role_ROLE_PREFILL, nil)
			d1 := c.addNode("decode-1", proto.Role_ROLE_DECODE, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
				from := 0
				if handofftest.DecodeFirst(hand) {
					send(reserve(n, s))
				}
				if handofftest.PrefillSpeaks(hand) {
					from = 1
				}
				send(firstTokens(s, from, 3))
			})
			d2 := c.addNode("decode-2", proto.Role_ROLE_DECODE, nil)
			resp, err := c.client.Do(c.request(context.Background(), "/v1/completions", `{"prompt":[1,2,3],"max_tokens":6,"stream":true}`))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			read := readEvents(t, resp, 3)
			d1.kill()
			body := read + readAll(t, resp)
			if want := testTokenizer.Decode(fakeTokens([]uint32{1, 2, 3}, 6)); streamText(t, body) != want {
				t.Errorf("%s, want %q", body, want)
			}
			if s := clocktest.Receive(t, d2.submits, "the retry"); s.Prior != 3 || s.MaxTokens != 3 {
				t.Errorf("resubmitted with prior %d, max_tokens %d", s.Prior, s.MaxTokens)
			}
		})
	}
}

// TestPrefillLostBeforeDecodeHasKV: the decode node would wait in vain.
func TestPrefillLostBeforeDecodeHasKV(t *testing.T) {
	c := newTestCluster(t, Config{Handoff: handoff.Pull.Name, Placement: placement.RoundRobin})
	p1 := c.addNode("prefill-1", proto.Role_ROLE_PREFILL, nil)
	d := c.addNode("decode-1", proto.Role_ROLE_DECODE, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		if s.Kv.NodeId == "prefill-1" {
			go p1.kill() // and wait for its KV
			return
		}
		n.answer(s, send)
	})
	c.addNode("prefill-2", proto.Role_ROLE_PREFILL, nil)
	status, body, err := c.post("/v1/completions", `{"prompt":[1,2,3],"max_tokens":6,"stream":true}`)
	if want := testTokenizer.Decode(fakeTokens([]uint32{1, 2, 3}, 6)); status != 200 || err != nil || streamText(t, body) != want {
		t.Fatalf("%d %s %v", status, body, err)
	}
	first := clocktest.Receive(t, d.submits, "first decode leg")
	if got := clocktest.Receive(t, d.cancels, "cancel of the first decode leg"); got.Id != first.Id {
		t.Errorf("cancelled %d, want %d", got.Id, first.Id)
	}
}

// TestRetriesEnd: a request that every node fails ends in a clear error, and
// if tokens are out already, in one that no client can take for the end.
func TestRetriesEnd(t *testing.T) {
	fail := func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		send(failMessage(s.Id, proto.FailCode_FAIL_TRANSFER, true))
	}
	c := newTestCluster(t, Config{Handoff: handoff.Pull.Name})
	c.addNode("prefill-1", proto.Role_ROLE_PREFILL, nil)
	d := c.addNode("decode-1", proto.Role_ROLE_DECODE, fail)
	status, body, _ := c.post("/v1/completions", `{"prompt":"x","stream":true}`)
	if m, _, code := errorOf(t, body); status != http.StatusBadGateway || code != "kv_transfer" || !strings.Contains(m, "after 2 retries") || !strings.Contains(m, "decode-1") || !strings.Contains(m, "req-1") {
		t.Errorf("%d %s", status, body)
	}
	for i := range 3 {
		clocktest.Receive(t, d.submits, fmt.Sprintf("attempt %d", i))
	}

	d.behave(func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		if s.Prior > 0 {
			fail(nil, s, send)
			return
		}
		m := firstTokens(s, 0, 2)
		m.Failed = failMessage(s.Id, proto.FailCode_FAIL_TRANSFER, true).Failed
		send(m)
	})
	status, body, err := c.post("/v1/completions", `{"prompt":"x","stream":true}`)
	if status != 200 || !cutShort(err) {
		t.Fatalf("%d %v: want a stream cut short\n%s", status, err, body)
	}
	evs := events(t, body)
	if len(evs) != 3 || strings.Contains(body, "[DONE]") {
		t.Fatalf("want two tokens and an error:\n%s", body)
	}
	if _, _, code := errorOf(t, evs[2]); code != "kv_transfer" {
		t.Error(evs[2])
	}
}

// TestBadBlockIsTold: a block that was found wrong is in the account of the request, though
// another node has then served it well.
func TestBadBlockIsTold(t *testing.T) {
	c := newTestCluster(t, Config{Handoff: handoff.Pull.Name})
	_, d := c.addPair()
	c.addNode("decode-2", proto.Role_ROLE_DECODE, nil)
	d.behave(func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		m := failMessage(s.Id, proto.FailCode_FAIL_CONTENT, true)
		m.Failed[0].Breakdown = &proto.Breakdown{WireUs: 7, KvBytes: 1 << 20, KvBlocksChecked: 2, KvBlocksBad: 1}
		send(m)
	})
	status, body, err := c.post("/v1/completions", `{"prompt":"x","max_tokens":2,"return_breakdown":true}`)
	for _, want := range []string{`"wire_us":47,`, `"kv_bytes":2097152,"kv_blocks_checked":9,"kv_blocks_bad":1,`, `"decode_node":"decode-2","retries":1}`} {
		if status != 200 || err != nil || !strings.Contains(body, want) {
			t.Errorf("%d %s %v, want %s", status, body, err, want)
		}
	}
}

func TestRefusedByNode(t *testing.T) {
	c := newTestCluster(t, Config{})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		send(failMessage(s.Id, proto.FailCode_FAIL_INVALID, false))
	})
	status, body, _ := c.post("/v1/completions", `{"prompt":"x"}`)
	if _, _, code := errorOf(t, body); status != 400 || code != "invalid" {
		t.Errorf("%d %s", status, body)
	}
	if len(n.submits) > 1 {
		t.Errorf("submitted %d times", len(n.submits))
	}
}

// TestStreamBreaks: the stream goes, the lease stays; the proxy opens another
// and the request goes on where it was.
func TestStreamBreaks(t *testing.T) {
	c := newTestCluster(t, Config{})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		if s.Prior == 0 {
			send(firstTokens(s, 0, 2))
			n.hangUp.Store(true)
			return
		}
		n.answer(s, send)
	})
	status, body, err := c.post("/v1/completions", `{"prompt":"hi there","max_tokens":5,"stream":true}`)
	if want := testTokenizer.Decode(fakeTokens(helloPrompt, 5)); status != 200 || err != nil || streamText(t, body) != want {
		t.Fatalf("%d %s %v", status, body, err)
	}
	clocktest.Receive(t, n.submits, "the first attempt")
	if s := clocktest.Receive(t, n.submits, "the second"); s.Prior != 2 || s.MaxTokens != 3 {
		t.Errorf("resubmitted with prior %d, max_tokens %d", s.Prior, s.MaxTokens)
	}
}

// TestNodeDrains: a node that takes nothing new costs no retry.
func TestNodeDrains(t *testing.T) {
	draining := func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		send(failMessage(s.Id, proto.FailCode_FAIL_DRAINING, true))
	}
	c := newTestCluster(t, Config{Placement: placement.RoundRobin, MaxRetries: -1})
	c.addNode("both-1", proto.Role_ROLE_NONDISAGG, draining)
	c.addNode("both-2", proto.Role_ROLE_NONDISAGG, draining)
	c.addNode("both-3", proto.Role_ROLE_NONDISAGG, nil)
	status, body, _ := c.post("/v1/completions", `{"prompt":"x","max_tokens":3,"return_breakdown":true}`)
	if status != 200 || !strings.Contains(body, `"decode_node":"both-3","retries":0}`) {
		t.Fatalf("%d %s", status, body)
	}
}

// TestDeregister: a node that leaves in order keeps its running requests.
func TestDeregister(t *testing.T) {
	c := newTestCluster(t, Config{})
	leave, left := make(chan struct{}), make(chan struct{})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		send(firstTokens(s, 0, 1))
		close(leave)
		<-left
		m := firstTokens(s, 1, 3)
		m.Finished = []*proto.Finished{{Id: s.Id, Reason: proto.FinishReason_FINISH_LENGTH}}
		send(m)
	})
	done := make(chan string, 1)
	go func() {
		_, body, _ := c.post("/v1/completions", `{"prompt":"x","max_tokens":3,"return_breakdown":true}`)
		done <- body
	}()
	clocktest.Receive(t, leave, "the request's first token")
	c.deregister(n)
	if c.proxy.Ready() == nil {
		t.Error("ready without a node")
	}
	close(left)
	if body := clocktest.Receive(t, done, "the answer"); !strings.Contains(body, `"completion_tokens":3`) || !strings.Contains(body, `"retries":0`) {
		t.Error(body)
	}
}

func TestLeaseExpiry(t *testing.T) {
	clocktest.Growing(t, 100*time.Millisecond, func(ttl time.Duration) bool {
		c := newTestCluster(t, Config{LeaseTTL: ttl})
		n := c.newNode("both-1", proto.Role_ROLE_NONDISAGG, func(*fakeNode, *proto.Submit, func(*proto.FromNode)) {})
		if err := c.lease(n); err != nil {
			t.Fatal(err)
		}
		// No heartbeat comes: the request is lost with the lease, and no other
		// node turns up within another.
		var body string
		for {
			var got int
			got, body, _ = c.post("/v1/completions", `{"prompt":"x"}`)
			if _, _, code := errorOf(t, body); got != http.StatusServiceUnavailable || code != "no_node" {
				t.Fatalf("%d %s", got, body)
			}
			if err := keepAlive(c, n.lease); err != nil {
				break // until then it was not up
			}
		}
		if err := keepAlive(c, n.lease); status.Code(err) != codes.NotFound {
			t.Errorf("KeepAlive after the end: %v", err)
		}
		if err := c.lease(n); err != nil {
			t.Fatal(err)
		}
		// A busy machine may get to neither in the length of a lease.
		m, _, _ := errorOf(t, body)
		return strings.Contains(m, "lease expired") && keepAlive(c, n.lease) == nil
	})
}

func keepAlive(c *testCluster, lease uint64) error {
	_, err := c.reg.KeepAlive(context.Background(), &proto.KeepAliveRequest{Lease: lease, Load: &proto.Load{}})
	return err
}

// TestRejoin: the only node of its role dies in mid-request and comes back
// under the same name within a lease.
func TestRejoin(t *testing.T) {
	c := newTestCluster(t, Config{LeaseTTL: clocktest.Patience})
	died := make(chan struct{})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		go func() { n.kill(); close(died) }()
	})
	done := make(chan string, 1)
	go func() {
		_, body, _ := c.post("/v1/completions", `{"prompt":"hi there","max_tokens":3,"return_breakdown":true}`)
		done <- body
	}()
	clocktest.Receive(t, n.submits, "the first attempt")
	clocktest.Receive(t, died, "the end of the node")
	c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	if body := clocktest.Receive(t, done, "the answer"); !strings.Contains(body, testTokenizer.Decode(fakeTokens(helloPrompt, 3))) || !strings.Contains(body, `"retries":1`) {
		t.Error(body)
	}
}

// TestFirstTokenIsDrawnAgain: a prefill node's token is compared with another node's if its KV has not
// landed. A client that has the wrong one is told; one that has nothing yet gets the right answer.
func TestFirstTokenIsDrawnAgain(t *testing.T) {
	for _, stream := range []bool{true, false} {
		c := newTestCluster(t, Config{Handoff: handoff.Layerwise.Name, Placement: placement.RoundRobin})
		c.addNode("prefill-1", proto.Role_ROLE_PREFILL, func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
			send(tokenMessage(s.Id, 0, 7))
			send(failMessage(s.Id, proto.FailCode_FAIL_TRANSFER, true))
		})
		c.addNode("decode-1", proto.Role_ROLE_DECODE, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) { send(reserve(n, s)) })
		c.addNode("prefill-2", proto.Role_ROLE_PREFILL, nil)
		c.addNode("decode-2", proto.Role_ROLE_DECODE, nil)
		status, body, err := c.post("/v1/completions", fmt.Sprintf(`{"prompt":[1,2,3],"max_tokens":5,"stream":%v}`, stream))
		switch {
		case !stream && (status != 200 || !strings.Contains(body, testTokenizer.Decode(fakeTokens([]uint32{1, 2, 3}, 5)))):
			t.Errorf("%d %s %v", status, body, err)
		case stream && (!strings.Contains(body, `"code":"wrong_token"`) || !strings.Contains(body, "token 0 of the answer is 7") || strings.Contains(body, "[DONE]")):
			t.Errorf("%d %s %v, want a wrong token told", status, body, err)
		}
	}
}
