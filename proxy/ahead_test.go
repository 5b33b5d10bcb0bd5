package proxy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/handoff"
	"kvferry/internal/clock/clocktest"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/ahead"
	"kvferry/proxy/health"
)

// far has every node 10 ms away.
func far(p *Proxy) {
	p.nodes.roundTrip = func(*ahead.Path) time.Duration { return 10 * time.Millisecond }
}

// roomy is a cluster of nodes that are far, and have room. Each entry is a node's script, nil
// answers well.
func roomy(t *testing.T, hand string, prefill, decode []script) (c *testCluster, ps, ds []*fakeNode) {
	t.Helper()
	c = newTestCluster(t, Config{Handoff: hand, Placement: placement.RoundRobin}, far)
	for role, scripts := range map[proto.Role][]script{proto.Role_ROLE_PREFILL: prefill, proto.Role_ROLE_DECODE: decode} {
		for i, s := range scripts {
			n := c.newNode(fmt.Sprintf("%s-%d", proto.RoleName(role), i+1), role, s)
			n.room.Store(100)
			c.register(n)
			if role == proto.Role_ROLE_PREFILL {
				ps = append(ps, n)
			} else {
				ds = append(ds, n)
			}
		}
	}
	c.untilRoom()
	return c, ps, ds
}

// untilRoom waits until the proxy knows of the nodes' room, and their loads count all that was
// sent to them: no load is on its way.
func (c *testCluster) untilRoom() {
	c.t.Helper()
	clocktest.Until(c.t, "the nodes' loads", func() bool {
		for _, m := range c.proxy.nodes.snapshot() {
			if o := m.outlook(); o.Blocks < 100 || o.Sequences < 100 {
				return false
			}
		}
		return true
	})
}

// counts are how many prompts went ahead, and how many of these were given up.
func (c *testCluster) counts() (gone, undirected int) {
	c.t.Helper()
	_, body := c.get("/metrics")
	for line := range strings.Lines(body) {
		for name, n := range map[string]*int{"kvferry:prompts_ahead_total{": &gone, "kvferry:prompts_undirected_total{": &undirected} {
			if strings.HasPrefix(line, name) {
				fmt.Sscan(line[strings.LastIndex(line, " "):], n)
			}
		}
	}
	return gone, undirected
}

const aheadBody = `{"prompt":[1,2,3],"max_tokens":5,"return_breakdown":true}`

// answered fails the test unless a request is answered whole and without a retry.
func (c *testCluster) answered() {
	c.t.Helper()
	status, body, err := c.post("/v1/completions", aheadBody)
	if want := testTokenizer.Decode(fakeTokens([]uint32{1, 2, 3}, 5)); status != 200 || err != nil || !strings.Contains(body, want) || !strings.Contains(body, `"retries":0}`) {
		c.t.Fatalf("%d %s %v, want %q and no retry", status, body, err, want)
	}
}

// TestAhead: where the decode node is far and has room, the prompt is at the prefill node before
// the decode node has said where its KV goes, and is told when that is known.
func TestAhead(t *testing.T) {
	for _, h := range []handoff.Handoff{handoff.Layerwise, handoff.Push} {
		t.Run(h.Name, func(t *testing.T) {
			there := make(chan *proto.Submit, 1)
			c, ps, ds := roomy(t, h.Name, []script{func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
				if s.Ahead {
					there <- s
				}
				n.answer(s, send)
			}}, []script{func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
				if s := clocktest.Receive(t, there, "the prompt at the prefill node"); s.Kv != nil {
					t.Errorf("it has %v", s.Kv)
				}
				n.answer(s, send)
			}})
			c.answered()
			d := clocktest.Receive(t, ps[0].directs, "the destination")
			if s := clocktest.Receive(t, ds[0].submits, "the decode leg"); d.Kv.NodeId != "decode-1" || d.Kv.TransferId != s.Id || s.Ahead {
				t.Errorf("told %v, of %v", d, s)
			}
			if n, undirected := c.counts(); n != 1 || undirected != 0 {
				t.Errorf("%d went ahead, %d in vain", n, undirected)
			}
		})
	}
}

// TestNotAhead: a prompt goes in the ordinary order where nothing would be won, where the decode
// node may have no room for it, and where the prefill node is first.
func TestNotAhead(t *testing.T) {
	for name, tc := range map[string]struct {
		hand  string
		away  time.Duration
		room  uint32
		extra func(*proto.Load)
	}{
		"near":                 {handoff.Layerwise.Name, time.Millisecond, 100, nil},
		"too far":              {handoff.Layerwise.Name, 1001 * time.Millisecond, 100, nil},
		"not known how far":    {handoff.Layerwise.Name, 0, 100, nil},
		"it says nothing":      {handoff.Layerwise.Name, time.Second, 0, nil},
		"no sequence is free":  {handoff.Layerwise.Name, time.Second, 100, func(l *proto.Load) { l.Room = 0 }},
		"no block is free":     {handoff.Layerwise.Name, time.Second, 100, func(l *proto.Load) { l.KvBlocksUsed = 100 }},
		"all blocks have uses": {handoff.Layerwise.Name, time.Second, 100, func(l *proto.Load) { l.KvBlocksUsed, l.Running = 50, 50 }},
		"prefill is first":     {handoff.Pull.Name, time.Second, 100, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t, Config{Handoff: tc.hand}, func(p *Proxy) {
				p.nodes.roundTrip = func(*ahead.Path) time.Duration { return tc.away }
			})
			p, d := c.newNode("prefill-1", proto.Role_ROLE_PREFILL, nil), c.newNode("decode-1", proto.Role_ROLE_DECODE, nil)
			d.room.Store(tc.room)
			c.register(p)
			c.register(d)
			m := c.proxy.nodes.snapshot()[1]
			if tc.room > 0 {
				clocktest.Until(t, "the node's load", func() bool { return m.outlook().Blocks > 0 })
			}
			if tc.extra != nil {
				l := &proto.Load{Seq: 99, Room: 100, KvBlocksTotal: 100}
				tc.extra(l)
				d.muted.Store(true) // or its word that it has the leg may be there before the prompt's turn
				m.mu.Lock()
				m.setLoad(l)
				m.mu.Unlock()
			}
			c.answered()
			if s := clocktest.Receive(t, p.submits, "the prompt"); s.Ahead {
				t.Error("it went ahead")
			}
			if n, undirected := c.counts(); n != 0 || undirected != 0 {
				t.Errorf("%d went ahead, %d in vain", n, undirected)
			}
		})
	}
}

// TestUndirected: a prompt that was given up is submitted to the same node once more, when it is
// known where its KV goes, whether that comes after the node has given up or crosses it. It is no
// retry, and nobody is blamed.
func TestUndirected(t *testing.T) {
	for _, late := range []bool{true, false} {
		t.Run(fmt.Sprintf("late=%v", late), func(t *testing.T) {
			giveUp := make(chan struct{})
			defer close(giveUp)
			var c *testCluster
			prefill := func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
				gaveUp := failMessage(s.Id, proto.FailCode_FAIL_UNDIRECTED, true)
				switch {
				case s.Ahead:
					go func() {
						if _, ok := <-giveUp; ok {
							send(gaveUp)
						}
					}()
				case !late && s.Id == 1: // the Direct is here
					send(gaveUp)
				default:
					n.answer(s, send)
				}
			}
			decode := func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
				if late {
					giveUp <- struct{}{}
					clocktest.Until(t, "the proxy to know", func() bool { _, n := c.counts(); return n == 1 })
				}
				n.answer(s, send)
			}
			var ps []*fakeNode
			c, ps, _ = roomy(t, handoff.Layerwise.Name, []script{prefill, prefill}, []script{decode})
			c.answered()
			first, again := clocktest.Receive(t, ps[0].submits, "the prompt"), clocktest.Receive(t, ps[0].submits, "it once more")
			if !first.Ahead || again.Ahead || again.Kv.GetNodeId() != "decode-1" || len(ps[1].submits) > 0 {
				t.Errorf("first %v, then %v", first, again)
			}
			if n, undirected := c.counts(); n != 1 || undirected != 1 {
				t.Errorf("%d went ahead, %d in vain", n, undirected)
			}
			blamed(t, c)
		})
	}
}

// TestUndirectedWaits: a request whose prompt was given up waits at the decode node, as one whose
// prompt did not go ahead.
func TestUndirectedWaits(t *testing.T) {
	prefill := func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		if s.Ahead {
			send(failMessage(s.Id, proto.FailCode_FAIL_UNDIRECTED, true))
			return
		}
		n.answer(s, send)
	}
	var c *testCluster
	decode := func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		waiting := func() (prefill, decode int) {
			ms := c.proxy.nodes.snapshot()
			prefill, _, _ = ms[0].backlog.State(c.proxy.clock.Now())
			decode, _, _ = ms[1].backlog.State(c.proxy.clock.Now())
			return prefill, decode
		}
		clocktest.Until(t, "the proxy to know", func() bool { _, n := c.counts(); return n == 1 })
		clocktest.Until(t, "the prompt to wait at the decode node alone", func() bool { p, d := waiting(); return p == 0 && d == 3 })
		n.answer(s, send)
	}
	c, _, _ = roomy(t, handoff.Layerwise.Name, []script{prefill}, []script{decode})
	c.answered()
}

// blamed fails the test if anybody has failed in the eyes of the proxy, but for some.
func blamed(t *testing.T, c *testCluster, but ...health.Subject) {
	t.Helper()
	n := c.proxy.nodes
	n.mu.Lock()
	defer n.mu.Unlock()
	n.quarantine.Rests(0, func(node, peer string, _ bool, _ uint64) {
		if s := (health.Subject{Node: node, Peer: peer}); !slices.Contains(but, s) {
			t.Errorf("%v has failed", s)
		}
	})
}

// TestAheadTakesTurns: each prompt is one placement, whether it goes ahead, does not, or is given
// up and submitted again.
func TestAheadTakesTurns(t *testing.T) {
	var gaveUp, aheads [2]atomic.Int64
	prefill := func(i int) script {
		return func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
			if s.Ahead && aheads[i].Add(1)%3 == 0 {
				gaveUp[i].Add(1)
				send(failMessage(s.Id, proto.FailCode_FAIL_UNDIRECTED, true))
			}
			n.answer(s, send)
		}
	}
	c, ps, ds := roomy(t, handoff.Layerwise.Name, []script{prefill(0), prefill(1)}, []script{nil})
	const posts = 40
	for i := range posts {
		c.untilRoom()
		full := i%8 > 5 // two in turn: the node has just said so, and says no more until the answer
		if full {
			ds[0].muted.Store(true)
			m := c.proxy.nodes.byRole[proto.Role_ROLE_DECODE][0]
			m.mu.Lock()
			m.load = &proto.Load{Seq: m.load.Seq}
			m.mu.Unlock()
		}
		c.answered()
		if full {
			ds[0].muted.Store(false)
			(*ds[0].tell.Load())()
		}
	}
	c.untilRoom() // the nodes have noted all that was submitted: an answer may overtake that
	if n, undirected := c.counts(); n != posts*3/4 || undirected != posts/4 {
		t.Errorf("%d of %d went ahead, %d in vain", n, posts, undirected)
	}
	for i, p := range ps {
		if n := len(p.submits) - int(gaveUp[i].Load()); n != posts/2 {
			t.Errorf("%s had %d of %d prompts, and gave %d up", p.info.Id, n, posts, gaveUp[i].Load())
		}
	}
}

// TestAheadFails: what happens to one node while the prompt goes ahead is retried elsewhere, and
// only who failed is blamed.
func TestAheadFails(t *testing.T) {
	refuse := func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		send(failMessage(s.Id, proto.FailCode_FAIL_TRANSFER, true)) // it cannot open a window
	}
	for name, tc := range map[string]struct {
		prefill, decode script
		cancelled       bool // the first prefill node is told to drop its leg
	}{
		"the reservation is refused": {nil, refuse, true},
		"the decode node dies":       {nil, die, true},
		"the prefill node dies":      {die, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, ps, _ := roomy(t, handoff.Layerwise.Name, []script{tc.prefill, nil}, []script{tc.decode, nil})
			status, body, err := c.post("/v1/completions", aheadBody)
			if want := testTokenizer.Decode(fakeTokens([]uint32{1, 2, 3}, 5)); status != 200 || err != nil || !strings.Contains(body, want) || !strings.Contains(body, `"retries":1}`) {
				t.Fatalf("%d %s %v, want %q and one retry", status, body, err, want)
			}
			if s := clocktest.Receive(t, ps[0].submits, "the prompt"); !s.Ahead {
				t.Error("it did not go ahead")
			}
			if tc.cancelled {
				clocktest.Receive(t, ps[0].cancels, "the end of its leg")
			}
			blamed(t, c, health.Subject{Node: "decode-1"})
		})
	}
}

// TestAheadClientGone: both nodes are told.
func TestAheadClientGone(t *testing.T) {
	silent := func(*fakeNode, *proto.Submit, func(*proto.FromNode)) {}
	c, ps, ds := roomy(t, handoff.Layerwise.Name, []script{nil}, []script{silent})
	ctx, leave := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		if resp, err := c.client.Do(c.request(ctx, "/v1/completions", aheadBody)); err == nil {
			resp.Body.Close()
		}
	}()
	if s := clocktest.Receive(t, ps[0].submits, "the prompt"); !s.Ahead {
		t.Error("it did not go ahead")
	}
	clocktest.Receive(t, ds[0].submits, "the decode leg")
	leave()
	clocktest.Receive(t, over, "the client's end")
	clocktest.Receive(t, ps[0].cancels, "the end of the prefill leg")
	clocktest.Receive(t, ds[0].cancels, "the end of the decode leg")
}
