//go:build house

package sim

import (
	"testing"
	"time"

	"kvferry/load"
	"kvferry/placement"
)

// TestPlacementSeesReportsLate: placement knows of a node what the node reported an RPC ago, as the proxy does. Two nodes
// compute a prompt each. The longer one is computed first, and a third prompt comes before the report of that. By
// what was reported the other node has less to do, so the third prompt goes there and not to the idle node.
func TestPlacementSeesReportsLate(t *testing.T) {
	const rpc, second = 200 * time.Millisecond, 60 * time.Millisecond
	run := func(third time.Duration) ([]*Outcome, *Stats) {
		reqs := []load.Request{
			{At: 0, Prompt: prompt(t, 900), MaxTokens: 1},
			{At: second, Prompt: prompt(t, 850), MaxTokens: 1},
		}
		if third > 0 {
			reqs = append(reqs, load.Request{At: third, Prompt: prompt(t, 100), MaxTokens: 1})
		}
		return simulate(t, Config{Profile: a10(t), Nondisagg: 2, Placement: placement.LeastLoaded, RPC: rpc}, list(reqs...))
	}
	computed, _ := run(0)
	// The client has a token an RPC after the node.
	idle, busy := computed[0].First-rpc, computed[1].First-rpc
	if idle >= busy || busy >= idle+rpc {
		t.Fatalf("the first prompt is computed at %v, the second at %v", idle, busy)
	}
	_, stats := run((idle + busy) / 2)
	if n := stats.Nodes; n[0].PrefillSteps != 1 || n[1].PrefillSteps != 2 {
		t.Errorf("%d and %d prompts: the third went where nobody knew yet that the node was idle", n[0].PrefillSteps, n[1].PrefillSteps)
	}
}
