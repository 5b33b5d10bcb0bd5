package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"kvferry/handoff"
	"kvferry/node"
	"kvferry/placement"
	"kvferry/proxy"
)

// TestMixedRails: two clusters in one, whose rails do not reach each other, and a decode node with a small KV pool
// serve every request without a retry. A node that reaches none of the others says so, and is given no work.
func TestMixedRails(t *testing.T) {
	t.Parallel()
	for _, hand := range []string{handoff.Pull.Name, handoff.Layerwise.Name} {
		t.Run(hand, func(t *testing.T) {
			c := start(t, Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{}), Proxy: proxy.Config{Handoff: hand, Placement: placement.RoundRobin}, Node: node.Config{KVBlocks: 256}})
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			add := func(role, name string) {
				t.Helper()
				if err := c.AddNode(ctx, role, name); err != nil {
					t.Fatal(err)
				}
			}
			c.spec.Node.KVBlocks = 8
			add("decode", "decode-1")
			c.spec.Node.Rails, c.spec.Node.KVBlocks = []string{"cma"}, 256
			add("prefill", "prefill-2") // has nobody yet
			c.poll("prefill-2 to be told", func() bool {
				return strings.Contains(c.logs.String(), "node.rails: prefill-2 has cma of ") && strings.Contains(c.logs.String(), "the decode nodes have tcp: ")
			})
			add("decode", "decode-2")
			c.poll("all nodes to join", func() bool {
				return int(c.metric(`kvferry:nodes{role="prefill"}`)) == 2 && int(c.metric(`kvferry:nodes{role="decode"}`)) == 3
			})
			pairs := map[string]int{}
			for i := range 33 {
				q := call{Prompt: prompt(i, 200), MaxTokens: 4, Breakdown: true}
				r := c.do(q)
				r.expect(t, q.MaxTokens)
				if r.Text != want(t, q) || fmt.Sprint(r.Breakdown["retries"]) != "0" {
					t.Errorf("request %d: %q, %v", i, r.Text, r.Breakdown)
				}
				pairs[fmt.Sprint(r.Breakdown["prefill_node"], " ", r.Breakdown["decode_node"])]++
			}
			if len(pairs) != 2 || pairs["prefill-0 decode-0"] == 0 || pairs["prefill-2 decode-2"] == 0 {
				t.Errorf("served by %v", pairs)
			}
		})
	}
}
