package proxy

import (
	"fmt"
	"strings"
	"testing"

	"kvferry/handoff"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
)

// TestConditionalDisaggregation: a prompt of few tokens is one whole leg of a decode node, and no
// prefill node hears of it; a longer one has two legs. A decode node that fails is avoided.
func TestConditionalDisaggregation(t *testing.T) {
	for _, h := range handoff.Names() {
		t.Run(h, func(t *testing.T) {
			c := newTestCluster(t, Config{Handoff: h, ConditionalDisaggregation: 20})
			p := c.addNode("prefill-1", proto.Role_ROLE_PREFILL, nil)
			d := c.addNode("decode-1", proto.Role_ROLE_DECODE, nil)
			for _, tokens := range []int{20, 21} {
				body := fmt.Sprintf(`{"prompt":[%s7],"max_tokens":3}`, strings.Repeat("7,", tokens-1))
				if status, answer, err := c.post("/v1/completions", body); status != 200 || err != nil {
					t.Fatalf("%d tokens: %d %s %v", tokens, status, answer, err)
				}
				s := clocktest.Receive(t, d.submits, "a leg on the decode node")
				if tokens == 20 {
					if s.Leg != proto.Leg_LEG_FULL || s.Handoff != "" || s.MaxTokens != 3 || len(p.submits) > 0 {
						t.Errorf("%d tokens: %v, %d legs on the prefill node", tokens, s, len(p.submits))
					}
					continue
				}
				if s.Leg != proto.Leg_LEG_DECODE || clocktest.Receive(t, p.submits, "a leg on the prefill node").Leg != proto.Leg_LEG_PREFILL {
					t.Errorf("%d tokens: %v", tokens, s)
				}
			}
			c.addNode("decode-2", proto.Role_ROLE_DECODE, nil)
			d.behave(func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
				send(failMessage(s.Id, proto.FailCode_FAIL_INTERNAL, true))
			})
			for range 2 { // one of them comes to decode-1 first
				if status, answer, err := c.post("/v1/completions", `{"prompt":[1,2,3],"max_tokens":3}`); status != 200 || err != nil {
					t.Errorf("with a node that fails: %d %s %v", status, answer, err)
				}
			}
		})
	}
}
