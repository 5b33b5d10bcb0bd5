package node

import (
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/engine/modelled"
	"kvferry/handoff"
	"kvferry/internal/clock"
	"kvferry/internal/clock/clocktest"
	"kvferry/kvcache"
	"kvferry/proto"
	"kvferry/proxy"
)

// addStoppable adds a node whose executor can be stopped, and nothing else of it.
func (s *nodes) addStoppable(id string, role proto.Role) *clocktest.Stoppable {
	s.t.Helper()
	cfg := Config{ID: id, Role: role, Proxy: s.proxy.daemon.GRPCAddr(), Profile: smallProfile(s.t), KVBlocks: 256, Logger: slog.New(slog.DiscardHandler)}
	c := &clocktest.Stoppable{}
	cfg.NewExecutor = func(slab *kvcache.Slab, clk clock.Clock) (engine.Executor, error) {
		c.Clock = clk
		return countAdmissions(modelled.New(c, cfg.Profile.Costs, slab, cfg.Profile.Vocab))
	}
	n, err := New(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.nodes[id] = run(n)
	s.ready()
	return c
}

// state is a node as the proxy sees it.
func (s *nodes) state(id string) proxy.NodeState {
	s.t.Helper()
	for _, n := range s.proxy.daemon.Nodes() {
		if n.Info.Id == id {
			return n
		}
	}
	s.t.Fatalf("%s is no member", id)
	return proxy.NodeState{}
}

// TestStoppedExecutor stops the executor of one of two nodes, which goes on to renew its
// lease. Every request is answered by the other, and once the executor runs again, so does
// the node.
func TestStoppedExecutor(t *testing.T) {
	t.Parallel()
	for _, hand := range handoff.Names() {
		for _, role := range []proto.Role{proto.Role_ROLE_PREFILL, proto.Role_ROLE_DECODE} {
			t.Run(hand+"/"+proto.RoleName(role), func(t *testing.T) {
				t.Parallel() // mostly waits
				s := startNodes(t, hand, nil, "prefill-0", "decode-0")
				defer s.end()
				id := proto.RoleName(role) + "-1"
				c := s.addStoppable(id, role)
				want, _ := s.text(1, 100, 5)

				c.Stop(c.Now())
				s.burst(8, want)
				n := s.state(id)
				if n.Stalls != 1 {
					t.Errorf("left %d times, want once", n.Stalls)
				}
				if n.Silence > 2*time.Second {
					t.Errorf("it may be silent for %v, want 2s at most", n.Silence)
				}
				s.burst(4, want) // nobody waits for it now
				c.Go()
				s.until(id+" to get on", func() bool {
					n := s.state(id)
					return n.Up && !n.Stalled
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
	t.Parallel()
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			t.Parallel()
			s := startNodes(t, hand, func(c *Config) {
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
			for _, n := range s.proxy.daemon.Nodes() {
				if n.Stalls > 0 {
					t.Errorf("%s was left %d times", n.Info.Id, n.Stalls)
				}
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
	resp, err := s.client.Get("http://" + s.proxy.daemon.HTTPAddr() + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	found := false
	for line := range strings.Lines(string(text)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if series == name || strings.HasPrefix(series, name+"{") {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				s.t.Fatal(line)
			}
			sum, found = sum+v, true
		}
	}
	if !found {
		s.t.Fatalf("no metric %s", name)
	}
	return sum
}
