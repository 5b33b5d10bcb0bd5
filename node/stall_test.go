package node

import (
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/clock"
	"kvferry/engine"
	"kvferry/proto"
)

// A stopClock stands still when it is told to, and with it whoever waits for a time of it.
type stopClock struct {
	clock.Clock
	stopped atomic.Int64 // at this time, 0 if it runs
}

func (c *stopClock) Now() time.Duration {
	if at := c.stopped.Load(); at > 0 {
		return time.Duration(at)
	}
	return c.Clock.Now()
}

// addStoppable adds a node whose executor can be stopped, and nothing else of it.
func (s *nodes) addStoppable(id string, role proto.Role) *stopClock {
	s.t.Helper()
	n, err := New(Config{ID: id, Role: role, Proxy: s.proxy.daemon.GRPCAddr(), Profile: smallProfile(s.t), KVBlocks: 256, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.t.Fatal(err)
	}
	c := &stopClock{Clock: n.w.exec.clk}
	n.w.exec.clk = c
	s.nodes[id] = run(n)
	s.ready()
	return c
}

func (s *nodes) member(id string) *member {
	for _, m := range s.proxy.daemon.registry.snapshot() {
		if m.info.Id == id {
			return m
		}
	}
	s.t.Fatalf("%s is no member", id)
	return nil
}

// TestStoppedExecutor stops the executor of one of two nodes, which goes on to renew its
// lease. Every request is answered by the other, and once the executor runs again, so does
// the node.
func TestStoppedExecutor(t *testing.T) {
	for _, handoff := range []string{HandoffV0, HandoffPull, HandoffLayerwise} {
		for _, role := range []proto.Role{proto.Role_ROLE_PREFILL, proto.Role_ROLE_DECODE} {
			t.Run(handoff+"/"+roleName(role), func(t *testing.T) {
				s := startNodes(t, handoff, nil, "prefill-0", "decode-0")
				defer s.end()
				id := roleName(role) + "-1"
				c := s.addStoppable(id, role)
				want, _ := s.text(1, 100, 5)
				m := s.member(id)

				c.stopped.Store(int64(c.Now()))
				s.burst(8, want)
				m.mu.Lock()
				stalls, limit := m.stalls, m.progress.limit()
				m.mu.Unlock()
				if stalls != 1 {
					t.Errorf("left %d times, want once", stalls)
				}
				if limit > 2*time.Second {
					t.Errorf("it may be silent for %v, want 2s at most", limit)
				}
				s.burst(4, want) // nobody waits for it now
				c.stopped.Store(0)
				s.until(id+" to get on", func() bool {
					_, stalled, up := m.usable()
					return up && !stalled
				})
				s.burst(8, want)
			})
		}
	}
}

// burst sends n requests at once, and expects their text.
func (s *nodes) burst(n int, want string) {
	s.t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if got, status := s.text(1, 100, 5); status != http.StatusOK || got != want {
				s.t.Errorf("request %d of %d: %d %q, want %q", i+1, n, status, got, want)
			}
		})
	}
	wg.Wait()
}

// TestLongQueueIsNoStall: prompts enough for many steps, each longer than a node may be
// silent for, come at once. Nodes that are busy are not left, in any hand-off.
func TestLongQueueIsNoStall(t *testing.T) {
	for _, handoff := range []string{HandoffV0, HandoffPull, HandoffLayerwise} {
		t.Run(handoff, func(t *testing.T) {
			t.Parallel()
			s := startNodes(t, handoff, func(c *Config) {
				c.Profile.MaxModelLen, c.Profile.MaxBatchedTokens = 600, 600
				c.Profile.Costs = engine.Costs{PrefillTokenMS: 2.5, DecodeStepMS: 1} // a step of 1.5 s
			}, "prefill-0", "prefill-1", "decode-0", "decode-1")
			defer s.end()
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					if _, status := s.text(i, 300, 3); status != http.StatusOK {
						t.Errorf("request %d: %d", i, status)
					}
				})
			}
			wg.Wait()
			for _, m := range s.proxy.daemon.registry.snapshot() {
				m.mu.Lock()
				if m.stalls > 0 {
					t.Errorf("%s was left %d times", m.info.Id, m.stalls)
				}
				m.mu.Unlock()
			}
			if n := s.metric("kvferry:request_retries_total"); n != 0 {
				t.Errorf("%v requests were placed again", n)
			}
		})
	}
}

// metric sums a counter of the proxy's over its labels.
func (s *nodes) metric(name string) (sum float64) {
	s.t.Helper()
	families, err := s.proxy.daemon.metrics.registry.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
			return sum
		}
	}
	s.t.Fatalf("no metric %s", name)
	return 0
}
