package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/connector"
	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/internal/clock"
	"kvferry/internal/clock/clocktest"
	"kvferry/kvcache"
	"kvferry/proto"
	"kvferry/proxy"
)

// nodes is a whole cluster in this process: a proxy and real nodes, over real
// sockets. Package cluster tests the same as processes; here are the tests that
// need to look inside.
type nodes struct {
	t      testing.TB
	ttl    time.Duration
	proxy  *running[*proxy.Proxy]
	nodes  map[string]*running[*Node]
	client *http.Client
}

// running is a daemon under way.
type running[D interface{ Run(context.Context) error }] struct {
	daemon D
	stop   context.CancelFunc
	done   chan error
}

func run[D interface{ Run(context.Context) error }](d D) *running[D] {
	if n, ok := any(d).(*Node); ok {
		n.leaveGrace = 10 * time.Second // end looks at what is left
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &running[D]{daemon: d, stop: stop, done: make(chan error, 1)}
	go func() { r.done <- d.Run(ctx) }()
	return r
}

func (r *running[D]) end(t testing.TB) {
	t.Helper()
	r.stop()
	if err := clocktest.Receive(t, r.done, "Run's return"); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// smallProfile has free steps and 4 KiB of KV a token in 4 layers.
func smallProfile(t testing.TB) *engine.Profile {
	t.Helper()
	p, err := engine.LoadProfile("zero")
	if err != nil {
		t.Fatal(err)
	}
	p.KVGeometry.Layers, p.KVGeometry.KVHeads, p.KVGeometry.HiddenSize = 4, 2, 256
	return p
}

// startNodes starts a proxy and the named nodes, whose role is the name up to
// the dash. set may change a node's configuration.
func startNodes(t testing.TB, hand string, set func(*Config), names ...string) *nodes {
	t.Helper()
	return startLeased(t, clocktest.Patience, hand, set, names...)
}

// startLeased is startNodes with leases of another length.
func startLeased(t testing.TB, ttl time.Duration, hand string, set func(*Config), names ...string) *nodes {
	t.Helper()
	s := &nodes{t: t, ttl: ttl, nodes: make(map[string]*running[*Node]), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	s.startProxy(hand, "127.0.0.1:0", "127.0.0.1:0")
	for _, name := range names {
		cfg := Config{
			ID: name, Proxy: s.proxy.daemon.GRPCAddr(), Profile: smallProfile(t), KVBlocks: 256, Logger: slog.New(slog.DiscardHandler),
			Role: map[string]proto.Role{"prefill": proto.Role_ROLE_PREFILL, "decode": proto.Role_ROLE_DECODE, "nondisagg": proto.Role_ROLE_NONDISAGG}[name[:strings.IndexByte(name, '-')]],
		}
		if set != nil {
			set(&cfg)
		}
		counted := cfg // in this test's executor
		cfg.NewExecutor = func(slab *kvcache.Slab, clk clock.Clock) (engine.Executor, error) {
			counted.Clock = clk
			return countAdmissions(counted.executor(slab))
		}
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		s.nodes[name] = run(n)
	}
	s.ready()
	return s
}

// A counting executor notes which sequences it was told of, and has not been told that
// they are over.
type counting struct {
	engine.Executor
	mu   sync.Mutex
	seqs map[uint64]bool

	longest atomic.Int64 // prompt that was admitted
}

func countAdmissions(e engine.Executor, err error) (engine.Executor, error) {
	return &counting{Executor: e, seqs: make(map[uint64]bool)}, err
}

func (c *counting) Admit(id uint64, adapter, salt string, prompt []kvcache.Token, use engine.Use) {
	c.mu.Lock()
	c.seqs[id] = true
	c.longest.Store(max(c.longest.Load(), int64(len(prompt))))
	c.mu.Unlock()
	c.Executor.Admit(id, adapter, salt, prompt, use)
}

func (c *counting) Forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.seqs[id] {
		panic(fmt.Sprintf("sequence %d is forgotten, and was not admitted", id))
	}
	delete(c.seqs, id)
	c.Executor.Forget(id)
}

// admitted is how many sequences an executor knows, if somebody counts.
func admitted(e engine.Executor) int {
	if c, ok := e.(*counting); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.seqs)
	}
	return 0
}

func (s *nodes) startProxy(hand, httpAddr, grpcAddr string) {
	s.t.Helper()
	p, err := proxy.New(proxy.Config{HTTPAddr: httpAddr, GRPCAddr: grpcAddr, Handoff: hand, LeaseTTL: s.ttl, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.t.Fatal(err)
	}
	s.proxy = run(p)
}

func (s *nodes) ready() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), clocktest.Patience)
	defer cancel()
	for name := range s.nodes {
		s.until(name+" to join", func() bool {
			return slices.ContainsFunc(s.proxy.daemon.Nodes(), func(n proxy.NodeState) bool { return n.Up && n.Info.Id == name })
		})
	}
	if err := s.proxy.daemon.WaitReady(ctx); err != nil {
		s.t.Fatal(err)
	}
}

// end stops everything, nodes first, and checks that the nodes have let go of all
// they knew of requests. Of the nodes decode-* end first: one that has a release to tell to a
// prefill node that is gone tries for all of its leaveGrace.
func (s *nodes) end() {
	s.t.Helper()
	s.client.CloseIdleConnections()
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		n := s.nodes[name]
		n.end(s.t)
		w := n.daemon.w            // its goroutines have ended
		left := n.daemon.kv.Left() // when it was closed
		used := w.pool.Used()
		if w.core.Computing() { // a step of requests that have failed: its end gives their blocks back
			used = 0
		}
		for what, left := range map[string]int{
			"blocks": used, "requests": w.core.Requests(), "live requests": len(w.live), "grants": left.Grants, "transfers": left.Transfers, "peers with moves": left.Peers,
			"sequences that the executor was told of": admitted(w.exec), "askers": len(w.peer.askers), "sessions": len(w.sessions), "producers": len(w.peer.out),
		} {
			if left != 0 {
				s.t.Errorf("%s ends with %d %s", name, left, what)
			}
		}
	}
	s.proxy.end(s.t)
}

func (s *nodes) until(what string, cond func() bool) {
	s.t.Helper()
	clocktest.Until(s.t, what, cond)
}

// complete asks for n tokens after a prompt of length tokens that seed
// determines.
func (s *nodes) complete(ctx context.Context, seed, length, n int, stream bool) (*http.Response, error) {
	ids := make([]int, length)
	for i := range ids {
		ids[i] = (seed*7919 + i*104729) % 151936
	}
	body, err := json.Marshal(map[string]any{"prompt": ids, "max_tokens": n, "ignore_eos": true, "stream": stream})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.proxy.daemon.HTTPAddr()+"/v1/completions", strings.NewReader(string(body)))
	if err != nil {
		return nil, err
	}
	return s.client.Do(req)
}

// text is the completion, or the error's message and the status.
func (s *nodes) text(seed, length, n int) (text string, status int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), clocktest.Patience)
	defer cancel()
	resp, err := s.complete(ctx, seed, length, n, false)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var b struct {
		Choices []struct{ Text string }
		Error   struct{ Message string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&b); err != nil {
		s.t.Fatal(err)
	}
	if len(b.Choices) == 1 {
		return b.Choices[0].Text, resp.StatusCode
	}
	return b.Error.Message, resp.StatusCode
}

// bad is the number of bad blocks all nodes have found, as the proxy counts them.
func (s *nodes) bad() (n uint64) {
	for _, m := range s.proxy.daemon.Nodes() {
		n += m.Load.KvBlocksBad
	}
	return n
}

// TestCorruptAfterLanding flips bytes of a decode node's blocks between their
// landing and their check, once and every time. Under pull a block is checked as it lands.
func TestCorruptAfterLanding(t *testing.T) {
	for _, hand := range handoff.Names() {
		if hand == handoff.Pull.Name {
			continue
		}
		t.Run(hand, func(t *testing.T) {
			s := startNodes(t, hand, nil, "prefill-0", "decode-0")
			defer s.end()
			want, status := s.text(1, 100, 5)
			if status != http.StatusOK {
				t.Fatal(want)
			}
			w, slab := s.nodes["decode-0"].daemon.w, s.nodes["decode-0"].daemon.slab
			var times atomic.Int64
			corrupt := func(c connector.Check) {
				if times.Add(-1) >= 0 {
					// A bit of the last block's first row of K, in the layer that is checked.
					slab.Layer(c.Refs[len(c.Refs)-1].ID, max(c.Part, 0)%4)[3] ^= 0x10
				}
			}
			s.onLoop(w, func() { w.landed = corrupt })

			times.Store(1)
			if got, status := s.text(1, 100, 5); status != http.StatusOK || got != want {
				t.Errorf("a block bad once: %d %q, want %q from a second attempt", status, got, want)
			}
			if s.bad() == 0 {
				t.Error("no bad block was counted")
			}
			times.Store(1 << 40)
			before := s.bad()
			got, status := s.text(1, 100, 5)
			// Layerwise too, where a write that finds the window closed may fail before the
			// news of why it was closed arrives.
			if status != http.StatusBadGateway || !strings.Contains(got, connector.ErrContent.Error()) || !strings.Contains(got, "decode-0") {
				t.Errorf("blocks bad every time: %d %q, want 502 that says so", status, got)
			}
			if s.bad() <= before {
				t.Error("no bad block was counted")
			}
			times.Store(0)
			if got, _ := s.text(1, 100, 5); got != want {
				t.Errorf("afterwards: %q, want %q", got, want)
			}
		})
	}
}

// onLoop runs f on a worker's loop, and returns when it has.
func (s *nodes) onLoop(w *worker, f func()) {
	s.t.Helper()
	done := make(chan struct{})
	w.run(func() connector.Event {
		f()
		close(done)
		return nil
	})
	clocktest.Receive(s.t, done, "the loop")
}

// TestCorruptAtSource flips a bit in the slab of the prefill node that has a
// prompt in its prefix cache. Another node takes over; without one the request
// fails, every time, and never decodes from it.
func TestCorruptAtSource(t *testing.T) {
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			s := startNodes(t, hand, func(c *Config) { c.PrefixCaching = c.Role == proto.Role_ROLE_PREFILL }, "prefill-0", "prefill-1", "decode-0")
			defer s.end()
			want, status := s.text(1, 100, 5)
			if status != http.StatusOK {
				t.Fatal(want)
			}
			flip := func(name string, at int) {
				w, slab := s.nodes[name].daemon.w, s.nodes[name].daemon.slab
				s.onLoop(w, func() {
					for id := range w.pool.Total() {
						slab.Bytes()[slab.Geometry().LayerOffset(kvcache.BlockID(id), 2)+int64(at)] ^= 0x80
					}
				})
			}
			// Whoever computed the prompt has it cached; the other computes it afresh.
			flip("prefill-0", 17)
			flip("prefill-1", 17)
			got, status := s.text(1, 100, 5)
			if status != http.StatusOK || got != want {
				t.Errorf("%d %q, want %q from the node that has it right", status, got, want)
			}
			for range 3 { // each of the two nodes has its turn
				if got, status := s.text(1, 100, 5); status != http.StatusOK || got != want {
					t.Errorf("%d %q, want %q", status, got, want)
				}
			}
			bad := s.bad()
			if bad == 0 {
				t.Error("no bad block was counted")
			}
			// Whatever either has cached is wrong now. One that had nothing cached computes the
			// prompt, and has it wrong the next time.
			for at := 18; s.bad() <= bad; at++ {
				if at == 28 {
					t.Fatalf("%d bad blocks, were %d", s.bad(), bad)
				}
				flip("prefill-0", at)
				flip("prefill-1", at)
				got, status = s.text(1, 100, 5)
				if got != want && (status != http.StatusBadGateway || !strings.Contains(got, connector.ErrContent.Error())) {
					t.Errorf("%d %q: want %q or 502", status, got, want)
				}
			}
		})
	}
}

// TestProxyRestarts: the nodes find the next proxy at the address of the last, and
// requests that come before them wait.
func TestProxyRestarts(t *testing.T) {
	// A node knows when it renews its lease, three times in its length.
	s := startLeased(t, 6*time.Second, handoff.Layerwise.Name, nil, "prefill-0", "decode-0")
	defer s.end()
	want, _ := s.text(1, 100, 5)
	httpAddr, grpcAddr := s.proxy.daemon.HTTPAddr(), s.proxy.daemon.GRPCAddr()
	s.client.CloseIdleConnections()
	s.proxy.end(t)
	s.startProxy(handoff.Layerwise.Name, httpAddr, grpcAddr)
	s.burst(15, want)
}

// TestNodeRestarts stops a decode node right after it has answered: it must have
// released what it had read, or the prefill node held the blocks for HoldTimeout
// and could not drain.
func TestNodeRestarts(t *testing.T) {
	s := startNodes(t, handoff.Pull.Name, nil, "prefill-0", "decode-0")
	defer s.end()
	want, _ := s.text(1, 100, 5)
	for range 3 {
		old := s.nodes["decode-0"]
		old.end(t)
		cfg := old.daemon.cfg
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		s.nodes["decode-0"] = run(n)
		s.ready()
		if got, status := s.text(1, 100, 5); status != http.StatusOK || got != want {
			t.Errorf("%d %q, want %q", status, got, want)
		}
	}
}

// TestNothingLeaks serves 500 requests over the three hand-offs, to clients of
// which some leave, from pools that hold a few of them at a time.
func TestNothingLeaks(t *testing.T) {
	files := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skipf("open files are counted on Linux only: %v", err)
		}
		return len(d)
	}
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			goroutines, open := runtime.NumGoroutine(), files()
			s := startNodes(t, hand, func(c *Config) { c.KVBlocks = 64 }, "prefill-0", "decode-0")
			burst := func() {
				var all sync.WaitGroup
				limit := make(chan struct{}, 32)
				for i := range 84 {
					limit <- struct{}{}
					all.Go(func() {
						defer func() { <-limit }()
						ctx, leave := context.WithTimeout(context.Background(), clocktest.Patience)
						defer leave()
						resp, err := s.complete(ctx, i, 40+i, 24, i%3 == 0)
						if err != nil {
							t.Error(err)
							return
						}
						defer resp.Body.Close()
						if i%3 == 0 && i%2 == 0 {
							_, _ = io.ReadFull(resp.Body, make([]byte, 600)) // a few tokens, then leave
							return
						}
						b, err := io.ReadAll(resp.Body)
						if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(b), `"length"`) {
							t.Errorf("status %d, %v: %s", resp.StatusCode, err, b)
						}
					})
				}
				all.Wait()
				s.client.CloseIdleConnections()
				s.until("all blocks to be free", func() bool {
					return !slices.ContainsFunc(s.proxy.daemon.Nodes(), func(n proxy.NodeState) bool {
						return n.Load.KvBlocksUsed > 0 || n.Load.Running > 0 || n.Load.Waiting > 0 || n.Legs > 0
					})
				})
			}
			burst() // what is made once is there
			s.until("requests to end", func() bool {
				waiting, running := s.proxy.daemon.Requests()
				return waiting+running == 0
			})
			busy := runtime.NumGoroutine()
			burst()
			clocktest.Goroutines(t, busy)
			s.end()
			clocktest.Goroutines(t, goroutines)
			s.until(fmt.Sprintf("%d open files again", open), func() bool { return files() <= open })
		})
	}
}

// TestDrainTimesOut: a node whose requests do not end in time cuts them off, and
// is not held up by anyone: the request is placed elsewhere, or fails.
func TestDrainTimesOut(t *testing.T) {
	t.Parallel()
	slow := func(c *Config) {
		c.Profile.Disagg.DecodeStepMS = 1000
		c.DrainTimeout = time.Millisecond
	}
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			t.Parallel() // mostly waits, a lease long for another decode node
			s := startLeased(t, 10*time.Second, hand, slow, "prefill-0", "decode-0")
			got := make(chan int, 1)
			go func() {
				resp, err := s.complete(context.Background(), 1, 40, 100, false)
				if err != nil {
					t.Error(err)
					got <- 0
					return
				}
				resp.Body.Close()
				got <- resp.StatusCode
			}()
			s.until("the request to decode", func() bool {
				if len(got) > 0 {
					t.Fatalf("it has ended with status %d", <-got)
				}
				return s.state("decode-0").Load.Running > 0
			})
			decode := s.nodes["decode-0"]
			delete(s.nodes, "decode-0") // it ends with the request's blocks in use
			decode.end(t)
			if status := clocktest.Receive(t, got, "the answer"); status != http.StatusServiceUnavailable {
				t.Errorf("%d, want 503: no decode node is left", status)
			}
			s.end()
		})
	}
}
