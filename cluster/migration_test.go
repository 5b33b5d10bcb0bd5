package cluster

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"kvferry/node"
	"kvferry/placement"
	"kvferry/proxy"
)

// migrating is a cluster whose running requests go wherever there are fewer, at once.
func migrating(t *testing.T, cfg Spec) *testCluster {
	cfg.Profile, cfg.Proxy.Placement = profile(t, cost{PrefillToken: 0.02, Decode: 5}), placement.RoundRobin
	cfg.Proxy.Migration = placement.MigrationConfig{Policy: placement.Periodic, Interval: 10 * time.Millisecond, Threshold: 1}
	return start(t, cfg)
}

// uneven are calls of which every other one, placed in turn, goes on when its neighbours have
// ended: one of two nodes has them all.
func uneven(longer int) (calls []call) {
	for i := range 12 {
		q := call{Prompt: prompt(i, 20+37*i), MaxTokens: 2, Stream: i%4 < 2, Breakdown: true}
		if i%2 == 0 {
			q.MaxTokens = 120 * longer
		}
		calls = append(calls, q)
	}
	return calls
}

// TestMigration: requests that go on on other nodes, however they came to theirs, have the tokens
// of those that stay, and every block that was moved is right.
func TestMigration(t *testing.T) {
	t.Parallel()
	ways := []Spec{{Nondisagg: 2}, {Nondisagg: 2, Node: node.Config{PrefixCaching: true}}}
	for _, h := range handoffs {
		ways = append(ways, Spec{Prefill: 1, Decode: 2, Proxy: proxy.Config{Handoff: h}})
	}
	for _, way := range ways {
		t.Run(fmt.Sprintf("%s/caching=%t", way.Proxy.Handoff, way.Node.PrefixCaching), func(t *testing.T) {
			t.Parallel()
			c := migrating(t, way)
			for longer := 1; ; longer *= 2 {
				if longer > longest {
					t.Fatal("no request has moved")
				}
				calls := uneven(longer)
				got := make([]result, len(calls))
				var all sync.WaitGroup
				for i, q := range calls {
					all.Go(func() { got[i] = c.do(q) })
				}
				all.Wait()
				moves, bytes, pause := 0.0, 0.0, 0.0
				for i, q := range calls {
					got[i].expect(t, q.MaxTokens)
					if w := want(t, q); got[i].Text != w {
						t.Errorf("%d tokens for a prompt of %d: got %q, want %q", q.MaxTokens, len(q.Prompt), got[i].Text, w)
					}
					if n, moved := got[i].Breakdown["migrations"].(float64); moved {
						moves += n
						bytes += got[i].Breakdown["migrated_bytes"].(float64)
						pause += got[i].Breakdown["migration_pause_us"].(float64)
					}
				}
				if moves == 0 {
					continue // they were too fast
				}
				c.quiet()
				m := c.metrics()
				t.Logf("%v moves, %v bytes, %v us of pauses", moves, bytes, pause)
				// Moves in vain have bytes, and are in no answer.
				if n, b := value(m, "kvferry:migrations_total"), value(m, "kvferry:migrated_bytes_total"); n != moves || b < bytes {
					t.Errorf("the proxy counts %v moves of %v bytes, the answers %v of %v", n, b, moves, bytes)
				}
				if bytes == 0 || pause == 0 {
					t.Error("moves without bytes, or without a pause")
				}
				if bad, checked := value(m, "kvferry:kv_blocks_bad_total"), value(m, "kvferry:kv_blocks_checked_total"); bad > 0 || checked == 0 {
					t.Errorf("%v blocks checked, %v bad", checked, bad)
				}
				return
			}
		})
	}
}

// TestMigrationAndDeath: nodes are killed while requests go from one to the other, and each
// request has its tokens all the same.
func TestMigrationAndDeath(t *testing.T) {
	t.Parallel()
	c := migrating(t, Spec{Nondisagg: 3})
	calls := uneven(4)
	var all sync.WaitGroup
	for i, q := range calls {
		all.Go(func() {
			r := c.do(q)
			r.expect(t, q.MaxTokens)
			if w := want(t, q); r.Text != w {
				t.Errorf("call %d: got %q, want %q", i, r.Text, w)
			}
		})
	}
	c.poll("a node to run two", func() bool { return c.running("nondisagg-0") > 1 })
	c.Process("nondisagg-0").Kill()
	all.Wait()
	if bad := c.metric("kvferry:kv_blocks_bad_total"); bad != 0 {
		t.Errorf("%v bad blocks", bad)
	}
}

// TestMigrationOnDrain: a node that is to end has its requests go on on another one, long before
// they would have ended.
func TestMigrationOnDrain(t *testing.T) {
	t.Parallel()
	c := migrating(t, Spec{Nondisagg: 2})
	q := call{Prompt: prompt(1, 100), MaxTokens: 1500, Stream: true}
	f := c.fly(t.Context(), q, 3)
	<-f.first
	busy := "nondisagg-0"
	c.poll("a node to run it", func() bool {
		if c.running("nondisagg-1") > 0 {
			busy = "nondisagg-1"
		}
		return c.running(busy) > 0
	})
	c.Process(busy).Signal(syscall.SIGTERM)
	c.ended(busy)
	if f.over() {
		t.Error("the node ended with its request")
	}
	r := f.result(t)
	r.expect(t, q.MaxTokens)
	if w := want(t, q); r.Text != w {
		t.Errorf("got %q, want %q", r.Text, w)
	}
	if n, retries := c.metric("kvferry:migrations_total"), c.metric("kvferry:request_retries_total"); n != 1 || retries != 0 {
		t.Errorf("%v migrations and %v retries: want 1 and none", n, retries)
	}
}
