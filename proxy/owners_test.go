package proxy

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	protobuf "google.golang.org/protobuf/proto"

	"kvferry/attempt"
	"kvferry/handoff"
	"kvferry/handoff/handofftest"
	"kvferry/internal/clock/clocktest"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/members"
)

// addChanged is addNode of a node whose info change changes.
func (c *testCluster) addChanged(id string, role proto.Role, s script, change func(*proto.NodeInfo)) *fakeNode {
	c.t.Helper()
	n := c.newNode(id, role, s)
	change(n.info)
	c.register(n)
	return n
}

// reaching gives a node rails that reach those of the same place.
func reaching(place string) func(*proto.NodeInfo) {
	return func(n *proto.NodeInfo) { n.Rails, n.Reach = []string{"shm/0"}, []string{"shm of " + place} }
}

// TestEveryFaultHasAnOwner reports each code of the protocol from a node and compares the client's answer with
// the owner of the fault: only the client's own is a 400.
func TestEveryFaultHasAnOwner(t *testing.T) {
	status := map[attempt.Owner]int{attempt.Client: http.StatusBadRequest, attempt.Node: http.StatusBadGateway, attempt.Pair: http.StatusBadGateway}
	for number, name := range proto.FailCode_name {
		if number > 0 && attempt.Reported(number) != attempt.Fault(number) {
			t.Errorf("%s is no fault of package attempt", name)
		}
	}
	for number, name := range proto.FailCode_name {
		code, fault := proto.FailCode(number), attempt.Reported(number)
		want := status[fault.Owner()]
		switch code {
		case proto.FailCode_FAIL_DEADLINE:
			want = http.StatusGatewayTimeout
		case proto.FailCode_FAIL_DRAINING:
			continue // TestNodeDrains
		case proto.FailCode_FAIL_TOO_LARGE: // for the only node there is
			want = http.StatusBadRequest
		}
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t, Config{})
			n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
				send(failMessage(s.Id, code, fault.Owner() != attempt.Client))
			})
			got, body, _ := c.post("/v1/completions", `{"prompt":"x"}`)
			if code == proto.FailCode_FAIL_UNDIRECTED { // breaks the protocol, as nothing went ahead
				want = http.StatusBadGateway
			}
			if got != want || (want == http.StatusBadRequest) != strings.Contains(body, "invalid_request_error") {
				t.Errorf("%d %s, want %d", got, body, want)
			}
			tries := map[attempt.Owner]int{attempt.Client: 1, attempt.Cluster: 1, attempt.Node: 3, attempt.Pair: 3}[fault.Owner()]
			if code == proto.FailCode_FAIL_TOO_LARGE {
				tries = 1
			}
			for i := range tries {
				clocktest.Receive(t, n.submits, fmt.Sprintf("attempt %d of %d", i+1, tries))
			}
			if len(n.submits) > 0 {
				t.Errorf("submitted more than %d times", tries)
			}
		})
	}
}

// TestNodeFaultGoesElsewhere: what one node cannot do, another is asked for, and the client sees nothing of it.
func TestNodeFaultGoesElsewhere(t *testing.T) {
	for _, code := range []proto.FailCode{proto.FailCode_FAIL_TOO_LARGE, proto.FailCode_FAIL_UNSUPPORTED, proto.FailCode_FAIL_NO_PATH, 99} {
		for _, hand := range []string{handoff.Pull.Name, handoff.Layerwise.Name} {
			t.Run(fmt.Sprintf("%v/%s", code, hand), func(t *testing.T) {
				c := newTestCluster(t, Config{Handoff: hand, Placement: placement.RoundRobin})
				writes := code == proto.FailCode_FAIL_NO_PATH && handofftest.DecodeFirst(hand) // it is the prefill node that finds no path
				c.addNode("prefill-1", proto.Role_ROLE_PREFILL, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
					if writes && s.Kv.NodeId == "decode-1" {
						send(failMessage(s.Id, code, true))
						return
					}
					n.answer(s, send)
				})
				bad := c.addNode("decode-1", proto.Role_ROLE_DECODE, func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
					if writes {
						n.answer(s, send)
						return
					}
					send(failMessage(s.Id, code, true))
				})
				c.addNode("decode-2", proto.Role_ROLE_DECODE, nil)
				for range 33 {
					if status, body, err := c.post("/v1/completions", `{"prompt":"x","max_tokens":3}`); status != 200 || err != nil {
						t.Fatalf("%d %s %v", status, body, err)
					}
				}
				if code == proto.FailCode_FAIL_TOO_LARGE {
					return // other requests may fit
				}
				if n := len(bad.submits); n > 8 {
					t.Errorf("decode-1 was asked %d times", n)
				}
				if _, body := c.get("/metrics"); code == proto.FailCode_FAIL_NO_PATH && (strings.Contains(body, `kvferry:quarantined{engine="decode-1",peer=""}`) ||
					strings.Contains(body, `kvferry:quarantined{engine="prefill-1",peer=""}`) || !strings.Contains(body, `kvferry:quarantines_total{engine="prefill-1",peer="decode-1"}`)) {
					t.Error("not the pair alone is blamed")
				}
			})
		}
	}
}

// TestSmallPool: a node gets only requests that its KV pool holds, and a request that no pool holds is the
// client's fault, with both numbers.
func TestSmallPool(t *testing.T) {
	for _, hand := range []string{handoff.Pull.Name, handoff.Layerwise.Name} {
		t.Run(hand, func(t *testing.T) {
			logs := &clocktest.Log{}
			c := newTestCluster(t, Config{Handoff: hand, Placement: placement.RoundRobin, Logger: slog.New(slog.NewTextHandler(logs, nil))})
			prompt := func(n int) string { return "[" + strings.Repeat("1,", n-1) + "1]" }
			blocks := func(n uint32) func(*proto.NodeInfo) { return func(i *proto.NodeInfo) { i.KvBlocks = n } }
			c.addChanged("prefill-1", proto.Role_ROLE_PREFILL, nil, blocks(8))
			small := c.addChanged("decode-1", proto.Role_ROLE_DECODE, nil, blocks(4))
			large := c.addChanged("decode-2", proto.Role_ROLE_DECODE, nil, blocks(8))
			if !strings.Contains(logs.String(), `pool_tokens=64 max_model_len=1000`) {
				t.Error("nothing said of the small pool:", logs)
			}
			for range 17 {
				if status, body, err := c.post("/v1/completions", fmt.Sprintf(`{"prompt":%s,"max_tokens":8}`, prompt(57))); status != 200 || err != nil {
					t.Fatalf("%d %s %v", status, body, err)
				}
			}
			for range 17 { // each is noted a moment after its answer
				clocktest.Receive(t, large.submits, "a request of 65 tokens")
			}
			if len(small.submits) != 0 {
				t.Errorf("of 65 tokens the pool of 64 was given %d", len(small.submits))
			}
			for range 2 {
				if status, body, err := c.post("/v1/completions", fmt.Sprintf(`{"prompt":%s,"max_tokens":8}`, prompt(56))); status != 200 || err != nil {
					t.Fatalf("%d %s %v", status, body, err)
				}
			}
			clocktest.Receive(t, small.submits, "one of two requests of 64 tokens")
			status, body, _ := c.post("/v1/completions", fmt.Sprintf(`{"prompt":%s,"max_tokens":9}`, prompt(120)))
			if m, _, _ := errorOf(t, body); status != 400 || !strings.Contains(m, "129 tokens, too many for every decode node") || !strings.Contains(m, "KV pool holds 128 (--kv-blocks)") {
				t.Errorf("%d %s", status, body)
			}
		})
	}
}

// TestMixedCluster: prefill and decode nodes that reach each other only in pairs serve everything, and no leg
// goes to a node that the other leg's node does not reach.
func TestMixedCluster(t *testing.T) {
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			c := newTestCluster(t, Config{Handoff: hand, Placement: placement.RoundRobin})
			c.addChanged("prefill-1", proto.Role_ROLE_PREFILL, nil, reaching("a"))
			p2 := c.addChanged("prefill-2", proto.Role_ROLE_PREFILL, nil, reaching("b"))
			c.addChanged("decode-1", proto.Role_ROLE_DECODE, nil, reaching("a"))
			c.addChanged("decode-2", proto.Role_ROLE_DECODE, nil, reaching("b"))
			c.addChanged("decode-3", proto.Role_ROLE_DECODE, nil, reaching("b"))
			pairs := map[string]int{}
			ask := func(n int) {
				t.Helper()
				clear(pairs)
				for range n {
					status, body, err := c.post("/v1/completions", `{"prompt":"x","max_tokens":3,"return_breakdown":true}`)
					if status != 200 || err != nil || !strings.Contains(body, `"retries":0`) {
						t.Fatalf("%d %s %v", status, body, err)
					}
					_, nodes, _ := strings.Cut(body, `"prefill_node":`)
					nodes, _, _ = strings.Cut(nodes, `,"retries"`)
					pairs[strings.ReplaceAll(nodes, `"`, "")]++
				}
			}
			ask(33)
			one, other := pairs["prefill-1,decode_node:decode-1"], pairs["prefill-2,decode_node:decode-2"]+pairs["prefill-2,decode_node:decode-3"]
			if one == 0 || other == 0 || one+other != 33 {
				t.Errorf("served by %v", pairs)
			}
			c.deregister(p2)
			ask(6)
			if len(pairs) != 1 || pairs["prefill-1,decode_node:decode-1"] != 6 {
				t.Errorf("without prefill-2 served by %v", pairs)
			}
			for _, n := range c.nodes {
				if n.info.Id == "decode-1" {
					c.deregister(n)
				}
			}
			if err := c.proxy.Ready(); err == nil || !strings.Contains(err.Error(), "no KV can move between them (--rail)") {
				t.Errorf("a pair without a path is ready: %v", err)
			}
		})
	}
}

// unknownField is a field of the future, number 63, as protobuf has it on the wire.
var unknownField = []byte{63<<3&0x7f | 0x82, 63 >> 4, 1, 7}

// TestUnknownReport: a report that the proxy does not know fails the legs that it is about, which other nodes take
// over; one that is about none is logged once. The stream stays.
func TestUnknownReport(t *testing.T) {
	logs := &clocktest.Log{}
	c := newTestCluster(t, Config{Placement: placement.RoundRobin, Logger: slog.New(slog.NewTextHandler(logs, nil))})
	strange := func(legs ...uint64) *proto.FromNode {
		m := &proto.FromNode{Legs: legs}
		m.ProtoReflect().SetUnknown(unknownField)
		return m
	}
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		send(firstTokens(s, 0, 1))
		send(strange(s.Id))
	})
	c.addNode("both-2", proto.Role_ROLE_NONDISAGG, nil)
	status, body, err := c.post("/v1/completions", `{"prompt":"x","max_tokens":3,"return_breakdown":true}`)
	if status != 200 || err != nil || !strings.Contains(body, `"decode_node":"both-2","retries":1`) {
		t.Fatalf("%d %s %v", status, body, err)
	}
	clocktest.Receive(t, n.cancels, "cancel of the leg")
	n.behave(func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		send(strange())
		n.answer(s, send)
	})
	for range 4 {
		if status, body, err := c.post("/v1/completions", `{"prompt":"x","max_tokens":3,"return_breakdown":true}`); status != 200 || err != nil || !strings.Contains(body, `"retries":0`) {
			t.Fatalf("%d %s %v", status, body, err)
		}
	}
	if n.streams.Load() != 1 {
		t.Errorf("%d streams to both-1", n.streams.Load())
	}
	if got := strings.Count(logs.String(), "node's message refused"); got != 1 || !strings.Contains(logs.String(), "message kind 63 is not in protocol 1") {
		t.Errorf("%d lines in the log:\n%s", got, logs)
	}
}

// TestMessagesNameTheirLeg: a node that does not know the kind of a message still learns which leg it is about.
func TestMessagesNameTheirLeg(t *testing.T) {
	c := newTestCluster(t, Config{})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	m := c.proxy.nodes.member(n.info.Id)
	m.mu.Lock()
	l := &leg{node: m, id: 1 << 40, inbox: newInbox(1)}
	m.legs[l.id] = l
	m.mu.Unlock()
	move := &proto.ToNode{Kind: &proto.ToNode_Migrate{Migrate: &proto.Migrate{Id: l.id}}}
	m.tell(l, move)
	if got := clocktest.Receive(t, n.moves, "the message"); got.Leg != l.id || !protobuf.Equal(got, move) {
		t.Errorf("%v, want leg %d", got, l.id)
	}
	m.release(l)
}

// TestSeriesOfGoneNodes: nodes that register under ever new ids and leave do not add to the metrics for ever.
func TestSeriesOfGoneNodes(t *testing.T) {
	l := newListed(t, Config{})
	series := func() int {
		_, body := l.get("/metrics")
		return strings.Count(body, `engine="both-`)
	}
	pass := func(from, to int) int {
		for i := from; i < to; i++ {
			n := l.newNode(fmt.Sprint("both-", i), proto.Role_ROLE_NONDISAGG, nil)
			l.incarnation[n] = l.list.Join(n.info)
			l.up(n.info.Id)
			l.list.Leave(l.incarnation[n], members.ErrLeft)
			l.up()
			n.kill()
		}
		return series()
	}
	if first, last := pass(0, 70), pass(70, 100); last > first {
		t.Errorf("%d series after 70 nodes, %d after 100", first, last)
	}
}
