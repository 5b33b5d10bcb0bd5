package proxy

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"kvferry/handoff"
	"kvferry/handoff/handofftest"
	"kvferry/internal/clock/clocktest"
	"kvferry/kvcache"
	"kvferry/placement"
	"kvferry/proto"
)

// TestPrefixAwarePlacement: equal prefixes go to the node that computed the
// first; the others know nothing of them, and hash no prompt.
func TestPrefixAwarePlacement(t *testing.T) {
	prompt := func(start, last int, salt ...string) string {
		tokens := make([]string, 65)
		for i := range tokens {
			tokens[i] = fmt.Sprint(start + i)
		}
		tokens[64] = fmt.Sprint(last)
		return fmt.Sprintf(`{"prompt":[%s],"max_tokens":2%s}`, strings.Join(tokens, ","), strings.Join(salt, ""))
	}
	const salted = `,"cache_salt":"mine"`
	for _, tc := range []struct {
		policy string
		hashed bool
		want   string
	}{
		{placement.PrefixAware, true, "12112211"},
		{placement.RoundRobin, false, "12121212"},
		{placement.LeastLoaded, false, "12121212"},
	} {
		t.Run(tc.policy, func(t *testing.T) {
			c := newTestCluster(t, Config{Placement: tc.policy})
			atOnce := func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
				n.answer(s, func(m *proto.FromNode) {
					m.Load, m.LastSubmit = &proto.Load{}, s.Id // nothing is waiting any more
					send(m)
				})
			}
			nodes := []*fakeNode{c.addNode("node-1", proto.Role_ROLE_NONDISAGG, atOnce), c.addNode("node-2", proto.Role_ROLE_NONDISAGG, atOnce)}
			got := ""
			for _, body := range []string{
				prompt(0, 900), prompt(100, 900), // each a node
				prompt(0, 901), prompt(0, 902), // follow the first
				prompt(100, 903), prompt(100, 904), // follow the second
				prompt(100, 903, salted), prompt(100, 904, salted), // of another salt they follow each other
			} {
				if status, answer, err := c.post("/v1/completions", body); status != 200 || err != nil {
					t.Fatalf("%d %s %v", status, answer, err)
				}
				select {
				case <-nodes[0].submits:
					got += "1"
				case <-nodes[1].submits:
					got += "2"
				}
			}
			if got != tc.want {
				t.Errorf("placed on %s, want %s", got, tc.want)
			}
			if n := c.proxy.nodes; (n.prefix(choice{role: proto.Role_ROLE_NONDISAGG}, kvcache.Hash{}, make([]uint32, 64)) != nil) != tc.hashed || n.prefix(choice{role: proto.Role_ROLE_DECODE}, kvcache.Hash{}, make([]uint32, 64)) != nil {
				t.Error("prompts are hashed for a policy that does not ask for it, or not for one that does")
			}
		})
	}
}

// TestPlacementFollowsBlockSize: nodes that come after all others have left may
// have blocks of another size, and what is cached is counted in those.
func TestPlacementFollowsBlockSize(t *testing.T) {
	c := newTestCluster(t, Config{Placement: placement.PrefixAware})
	n, role := c.proxy.nodes, proto.Role_ROLE_NONDISAGG
	prompt := make([]kvcache.Token, 65)
	place := func() *member {
		t.Helper()
		m, err := n.place(choice{role: role}, placement.Request{Tokens: len(prompt), Prefix: n.prefix(choice{role: role}, kvcache.Hash{}, prompt)})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	nodes := []*fakeNode{c.addNode("node-1", role, nil), c.addNode("node-2", role, nil)}
	place()
	for _, n := range nodes {
		c.deregister(n)
	}
	for _, n := range nodes {
		n.info.BlockTokens = 32
		c.register(n)
	}
	m := place()
	if err := m.receive(&proto.FromNode{Load: &proto.Load{WaitingTokens: 40}}); err != nil {
		t.Fatal(err)
	}
	if place() != m {
		t.Error("two blocks of 32 tokens are cached and 40 tokens wait: the request went elsewhere")
	}
}

// TestTurns: prompts that one step has computed go on in the order in which the node
// names them. The proxy is free to give up waiting for a handler that does not get to
// run, as it may on a busy machine; without turns hardly a round is in order.
func TestTurns(t *testing.T) {
	const rounds, enough, batch = 300, 5, 8
	for _, hand := range []string{handoff.V0.Name, handoff.Layerwise.Name} {
		t.Run(hand, func(t *testing.T) {
			c := newTestCluster(t, Config{Handoff: hand})
			p, d := c.addPair()
			first, second := p, d
			if handofftest.DecodeFirst(hand) {
				first, second = d, p
			}
			var waiting []*proto.Submit
			first.behave(func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
				if waiting = append(waiting, s); len(waiting) < batch {
					return
				}
				slices.SortFunc(waiting, func(a, b *proto.Submit) int { return int(promptOf(a)[0]) - int(promptOf(b)[0]) })
				m := &proto.FromNode{}
				for _, s := range waiting {
					kv := n.kv(s)
					if handofftest.DecodeFirst(hand) {
						m.Reserved = append(m.Reserved, &proto.Reserved{Id: s.Id, Kv: kv})
						continue
					}
					m.Ids, m.Positions, m.Tokens = append(m.Ids, s.Id), append(m.Positions, 0), append(m.Tokens, fakeTokens(promptOf(s), 1)[0])
					m.Prefilled = append(m.Prefilled, &proto.Prefilled{Id: s.Id, Kv: kv, Breakdown: prefillBreakdown()})
				}
				send(m)
				for _, s := range waiting {
					if handofftest.DecodeFirst(hand) {
						m := tokenMessage(s.Id, 1, fakeTokens(promptOf(s), 2)[1])
						m.Finished = []*proto.Finished{{Id: s.Id, Reason: proto.FinishReason_FINISH_LENGTH, Breakdown: decodeBreakdown()}}
						send(m)
					}
				}
				waiting = nil
			})
			ordered := 0
			for n := 0; n < rounds && ordered < enough; n++ {
				var all sync.WaitGroup
				for i := range batch {
					all.Go(func() {
						if status, body, err := c.post("/v1/completions", fmt.Sprintf(`{"prompt":[%d],"max_tokens":2}`, 10+i)); status != 200 || err != nil {
							t.Errorf("%d %s %v", status, body, err)
						}
					})
				}
				all.Wait()
				var got []uint32
				for range batch {
					got = append(got, promptOf(clocktest.Receive(t, second.submits, "submit"))[0])
				}
				if slices.IsSorted(got) {
					ordered++
				}
			}
			if ordered < enough {
				t.Errorf("%d of %d rounds were in order", ordered, rounds)
			}
		})
	}
}
