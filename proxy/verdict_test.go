package proxy

import (
	"errors"
	"strings"
	"testing"
	"time"

	"kvferry/attempt"
	"kvferry/handoff"
	"kvferry/internal/clock"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
	"kvferry/proxy/members"
	"kvferry/proxy/metrics"
)

// TestVerdict: what a decode node found wrong is held against the wire, or the memory of the
// prefill node, as that says; the decode node hears of it if its rails are to blame. The
// request is served by another attempt.
func TestVerdict(t *testing.T) {
	for _, tc := range []struct {
		verdict proto.FailCode
		owner   string
		blames  string // who is in quarantine if it goes on
	}{
		{proto.FailCode_FAIL_SOUND, "wire", `engine="prefill-1",peer="decode-1"`},
		{proto.FailCode_FAIL_CHANGED, "prefill", `engine="prefill-1",peer=""`},
	} {
		for _, hand := range []string{handoff.Pull.Name, handoff.Layerwise.Name} {
			t.Run(tc.owner+"/"+hand, func(t *testing.T) {
				c := newTestCluster(t, Config{Handoff: hand, MaxRetries: 5})
				p, d := c.addPair()
				p.verdict.Store(int32(tc.verdict))
				left := 2
				d.behave(func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
					if left--; left < 0 {
						n.answer(s, send)
						return
					}
					if hand == handoff.Layerwise.Name {
						send(reserve(n, s))
					}
					m := failMessage(s.Id, proto.FailCode_FAIL_CONTENT, true)
					m.Failed[0].Breakdown = &proto.Breakdown{KvBlocksBad: 3}
					time.AfterFunc(time.Millisecond, func() { send(m) })
				})
				status, body, err := c.post("/v1/completions", `{"prompt":"hi there","max_tokens":4,"return_breakdown":true}`)
				if want := testTokenizer.Decode(fakeTokens(helloPrompt, 4)); status != 200 || err != nil || !strings.Contains(body, want) || !strings.Contains(body, `"retries":2}`) {
					t.Errorf("%d %s %v, want %q", status, body, err, want)
				}
				if got := clocktest.Receive(t, p.cancels, "the question"); !got.Doubt || got.BadKv {
					t.Errorf("the prefill node is told %v", got)
				}
				if tc.owner == "wire" {
					if got := clocktest.Receive(t, d.cancels, "the verdict"); !got.BadKv || got.Doubt {
						t.Errorf("the decode node is told %v", got)
					}
				}
				_, metrics := c.get("/metrics")
				for _, owner := range []string{"prefill", "wire", "decode"} {
					n := "0"
					if owner == "wire" && tc.owner == owner {
						n = "6"
					}
					if owner == tc.owner || n == "0" {
						if line := `kvferry:kv_bad_blocks_total{model_name="test-model",owner="` + owner + `"} ` + n; !strings.Contains(metrics, line) {
							t.Errorf("no %s", line)
						}
					}
				}
				if !strings.Contains(metrics, `kvferry:quarantines_total{`+tc.blames) || tc.owner == "prefill" && strings.Contains(metrics, `kvferry:quarantines_total{engine="decode-1"`) {
					t.Errorf("want %s in quarantine", tc.blames)
				}
			})
		}
	}
}

// TestNoVerdict: a prefill node that dies before it has said whose fault it is is not waited for.
func TestNoVerdict(t *testing.T) {
	c := newTestCluster(t, Config{Handoff: handoff.Pull.Name})
	p, d := c.addPair()
	p.verdict.Store(-1)
	d.behave(func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		if s.Kv.NodeId == "prefill-1" {
			send(failMessage(s.Id, proto.FailCode_FAIL_CONTENT, true))
			return
		}
		n.answer(s, send)
	})
	go func() {
		clocktest.Receive(t, p.cancels, "the question")
		c.addNode("prefill-2", proto.Role_ROLE_PREFILL, nil)
		p.kill()
	}()
	status, body, err := c.post("/v1/completions", `{"prompt":"hi there","max_tokens":4}`)
	if want := testTokenizer.Decode(fakeTokens(helloPrompt, 4)); status != 200 || err != nil || !strings.Contains(body, want) {
		t.Errorf("%d %s %v, want %q", status, body, err, want)
	}
}

// TestTokenOfChangedKV: the first token, which a prefill node emits, has left when its KV turns
// out to have changed. It is drawn once more: if it is another one now, the request fails.
func TestTokenOfChangedKV(t *testing.T) {
	for _, wrong := range []bool{false, true} {
		c := newTestCluster(t, Config{Handoff: handoff.Layerwise.Name})
		p, d := c.addPair()
		p.verdict.Store(int32(proto.FailCode_FAIL_CHANGED))
		first, said := true, make(chan struct{})
		p.behave(func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
			if first && wrong {
				m := firstTokens(s, 0, 1)
				m.Tokens[0]++
				send(m)
			} else {
				n.answer(s, send)
			}
			if first {
				first = false
				close(said)
			}
		})
		again := false
		d.behave(func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
			if again {
				if s.Prior != 0 {
					t.Errorf("goes on from %d tokens", s.Prior)
				}
				n.answer(s, send)
				return
			}
			again = true
			send(reserve(n, s))
			go func() {
				<-said
				send(failMessage(s.Id, proto.FailCode_FAIL_CONTENT, true))
			}()
		})
		status, body, err := c.post("/v1/completions", `{"prompt":"hi there","max_tokens":4,"stream":true}`)
		switch want := testTokenizer.Decode(fakeTokens(helloPrompt, 4)); {
		case wrong:
			if !cutShort(err) || !strings.Contains(body, `"code":"wrong_token"`) || strings.Contains(body, "[DONE]") {
				t.Errorf("%d %v: %s", status, err, body)
			}
		case status != 200 || err != nil || streamText(t, body) != want:
			t.Errorf("%d %s %v, want %q", status, body, err, want)
		}
	}
}

// TestBothFoundIt: a prefill node that has found its memory changed by itself is heard, though
// what the decode node found came first.
func TestBothFoundIt(t *testing.T) {
	p := newMember(t.Context(), members.Node{Info: &proto.NodeInfo{Id: "prefill-1"}, Incarnation: 1})
	d := newMember(t.Context(), members.Node{Info: &proto.NodeInfo{Id: "decode-1"}, Incarnation: 1})
	f := &flight{inbox: newInbox(1)}
	a := &submission{Attempt: attempt.New(handoff.Layerwise, 4), compute: &leg{id: 1, node: p}, decode: &leg{id: 1, node: d}}
	wrong := report{leg: a.decode, failed: failMessage(1, proto.FailCode_FAIL_CONTENT, true).Failed[0]}
	changed := report{leg: a.compute, failed: failMessage(1, proto.FailCode_FAIL_CHANGED, true).Failed[0]}
	fault := a.fail(a.decode, proto.FailCode_FAIL_CONTENT, true, errors.New("wrong"))
	if f.doubt(a, wrong, []report{{leg: a.decode, failed: changed.failed}}, fault) == nil || a.doubted != nil {
		t.Error("it waits for a node that has nothing to say")
	}
	if err := f.doubt(a, wrong, []report{changed}, fault); err != nil || a.doubted == nil {
		t.Errorf("of the same batch: %v", err)
	}
	a.doubted = nil
	f.inbox.addReport(changed)
	if err := f.doubt(a, wrong, nil, fault); err != nil || a.doubted == nil {
		t.Errorf("of the next batch: %v", err)
	}
}

// TestFinishedWhileAsked: a leg that finishes while its node is asked about the KV stays known until
// the node has answered.
func TestFinishedWhileAsked(t *testing.T) {
	m := newMember(t.Context(), members.Node{Info: &proto.NodeInfo{Id: "prefill-1"}, Incarnation: 1})
	m.metrics, m.clock, m.up = metrics.New().Engine(testModel, "prefill-1"), clock.Precise(), true
	l := &leg{inbox: newInbox(1)}
	if err := m.submit(l, &proto.Submit{}); err != nil {
		t.Fatal(err)
	}
	if !m.doubt(l, "wrong") {
		t.Fatal("the node has no such leg")
	}
	if err := m.receive(&proto.FromNode{Finished: []*proto.Finished{{Id: l.id}}}); err != nil || m.legs[l.id] != l || l.inbox.has(func(report) bool { return true }) {
		t.Errorf("a leg that owes an answer has finished: %v", err)
	}
	if err := m.receive(failMessage(l.id, proto.FailCode_FAIL_CHANGED, true)); err != nil || !l.inbox.has(l.ended) {
		t.Errorf("the answer is not heard: %v", err)
	}
}
