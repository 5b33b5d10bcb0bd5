package node

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/connector"
	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/handoff/handofftest"
	"kvferry/internal/clock"
	"kvferry/kvcache"
	"kvferry/proto"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// These tests flip bits of KV from which tokens are drawn, see computing: a wrong byte that
// nobody finds becomes a wrong token.

// A meddler calls before with each step of an executor, on its goroutine.
type meddler struct {
	engine.Executor
	before atomic.Pointer[func(*engine.Step)]
}

func (m *meddler) Run(ctx context.Context, step *engine.Step, layer func(int, time.Duration), read func()) (time.Duration, []kvcache.Token, error) {
	if f := m.before.Load(); f != nil {
		(*f)(step)
	}
	return m.Executor.Run(ctx, step, layer, read)
}

// meddled has a node compute for itself, through a meddler.
func meddled(c *Config, m *meddler) {
	computed(c)
	inner := c.NewExecutor
	c.NewExecutor = func(slab *kvcache.Slab, clk clock.Clock) (engine.Executor, error) {
		var err error
		m.Executor, err = inner(slab, clk)
		return m, err
	}
}

// metric is a series of the proxy's, by what it begins with.
func (s *nodes) series(series string) string {
	s.t.Helper()
	resp, err := s.client.Get("http://" + s.proxy.daemon.HTTPAddr() + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	var found []string
	for _, m := range regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(series)+`.* (\S+)$`).FindAllStringSubmatch(string(body), -1) {
		found = append(found, m[1])
	}
	return strings.Join(found, " ")
}

// owned returns the numbers of blocks that went bad in the memory of decode and prefill nodes, and on the wire.
func (s *nodes) owned() string { return s.series("kvferry:kv_bad_blocks_total") }

// rounds returns how often a test flips a bit of the same cluster.
func rounds() int {
	if testing.Short() {
		return 1
	}
	return 5
}

// flip changes a bit of a node's block, in layer 1 of its V.
func (s *nodes) flip(name string, id kvcache.BlockID) {
	s.t.Helper()
	d := s.nodes[name].daemon
	s.onLoop(d.w, func() { d.slab.V(id, 1)[3] ^= 4 })
}

// cached are the blocks of a prompt that a node has in its prefix cache, of which there must be some.
func (s *nodes) cached(name string, q query) (refs []kvcache.Ref) {
	s.t.Helper()
	w := s.nodes[name].daemon.w
	ids := make([]kvcache.Token, q.length)
	for i := range ids {
		ids[i] = kvcache.Token((q.seed*7919 + i*104729) % 151936)
	}
	s.onLoop(w, func() {
		refs = w.pool.Match(kvcache.PrefixHashes(kvcache.Root("", ""), ids, w.pool.BlockTokens()))
		if err := w.pool.Release(refs); err != nil {
			s.t.Error(err)
		}
	})
	if len(refs) == 0 {
		s.t.Fatalf("%s has nothing of %+v in its prefix cache", name, q)
	}
	return refs
}

// expectAll asks n times, and expects the same answer each time.
func (s *nodes) expectAll(n int, q query, want string) {
	s.t.Helper()
	for i := range n {
		if got, status := s.text(q.seed, q.length, q.tokens); status != http.StatusOK || got != want {
			s.t.Errorf("request %d: %d %q, want %q", i, status, got, want)
		}
	}
}

// TestFlippedPrefillCache: a block that goes bad in a prefill node's prefix cache is found
// when it is matched, or when it has landed; it is computed anew, once, and the blame is the
// prefill node's memory alone.
func TestFlippedPrefillCache(t *testing.T) {
	q := query{4, 60, 12}
	want := alone(t, []query{q})[0]
	for _, checks := range []string{"landing,hit,last", "landing"} {
		for _, hand := range handoff.Names() {
			t.Run(checks+"/"+hand, func(t *testing.T) {
				s := startNodes(t, hand, func(c *Config) {
					computed(c)
					c.PrefixCaching, c.KVChecks = c.Role == proto.Role_ROLE_PREFILL, checks
				}, "prefill-0", "decode-0")
				defer s.end()
				s.expectAll(1, q, want)
				for round := 1; round <= rounds(); round++ {
					s.flip("prefill-0", s.cached("prefill-0", q)[2].ID)
					got, status := s.text(q.seed, q.length, q.tokens)
					spoke := checks == "landing" && handofftest.PrefillSpeaks(hand)
					switch {
					case status == http.StatusOK && got == want:
					case spoke && status == http.StatusBadGateway && strings.Contains(got, "drawn from KV that had changed"):
						// Its token was drawn from the bad block, and had left.
					default:
						t.Errorf("round %d: %d %q, want %q", round, status, got, want)
					}
					s.expectAll(2, q, want)
					if owned := s.owned(); owned != fmt.Sprintf("0 %d 0", round) {
						t.Errorf("round %d: bad blocks of decode, prefill and wire: %s", round, owned)
					}
					if retries := s.series("kvferry:request_retries_total"); retries != fmt.Sprint(round) {
						t.Errorf("round %d: %s retries", round, retries)
					}
				}
				if rests := s.series(`kvferry:quarantined{engine="decode-0"`); strings.Contains(rests, "1") {
					t.Error("the decode node is in quarantine")
				}
				for name, n := range s.nodes {
					if st := n.daemon.kv.Rails()[0]; st.Strikes != 0 {
						t.Errorf("%s: its rail has %d strikes", name, st.Strikes)
					}
				}
			})
		}
	}
}

// TestFlippedDecodeCache: likewise of a decode node's prefix cache. Under v0 it has none.
func TestFlippedDecodeCache(t *testing.T) {
	q := query{4, 60, 12}
	want := alone(t, []query{q})[0]
	hands := []string{handoff.Pull.Name, handoff.Push.Name, handoff.Layerwise.Name}
	for i := range 2 * len(hands) {
		hand, checks := hands[i/2], []string{DefaultKVChecks, "landing,hit"}[i%2]
		t.Run(hand+"/"+checks, func(t *testing.T) {
			s := startNodes(t, hand, func(c *Config) {
				computed(c)
				c.PrefixCaching, c.KVChecks = c.Role == proto.Role_ROLE_DECODE, checks
			}, "prefill-0", "decode-0")
			defer s.end()
			s.expectAll(1, q, want)
			for round := 1; round <= rounds(); round++ {
				s.flip("decode-0", s.cached("decode-0", q)[1].ID)
				s.expectAll(3, q, want)
				if owned := s.owned(); owned != fmt.Sprintf("%d 0 0", round) {
					t.Errorf("round %d: bad blocks of decode, prefill and wire: %s", round, owned)
				}
			}
			if rests := s.series(`kvferry:quarantined{engine="prefill-0"`); strings.Contains(rests, "1") {
				t.Error("the prefill node is in quarantine")
			}
		})
	}
}

// startCorrupted starts a prefill and a decode node that compute. The rail of the node that moves the
// KV, named mover, corrupts what it carries when told to.
func startCorrupted(t *testing.T, hand, checks string) (s *nodes, mover string, rail *transporttest.Corrupter) {
	mover = "decode-0"
	if handofftest.DecodeFirst(hand) {
		mover = "prefill-0"
	}
	s = startNodes(t, hand, func(c *Config) {
		computed(c)
		c.KVChecks = checks
		if c.ID == mover {
			c.decorate = func(r transport.Rail) transport.Rail {
				rail = transporttest.Corrupt(r, 0)
				return rail
			}
		}
	}, "prefill-0", "decode-0")
	return s, mover, rail
}

// TestFlippedOnTheWire: a bit that changes on its way is the wire's fault, and the rails' that
// carried it.
func TestFlippedOnTheWire(t *testing.T) {
	q := query{4, 60, 12}
	want := alone(t, []query{q})[0]
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			s, mover, rail := startCorrupted(t, hand, DefaultKVChecks)
			defer s.end()
			s.expectAll(8, q, want) // many slices: the second that is flipped would be as many later
			for round := int64(1); round <= 2; round++ {
				carried, _ := rail.Carried()
				rail.Every(int(carried) + 1)
				for _, flipped := rail.Carried(); flipped < round; _, flipped = rail.Carried() {
					s.expectAll(1, q, want)
				}
				rail.Every(0)
				s.until("the rail to be blamed", func() bool { return s.nodes[mover].daemon.kv.Rails()[0].Strikes > 0 })
			}
			if owned := s.owned(); !regexp.MustCompile(`^0 0 [1-9]\d*$`).MatchString(owned) {
				t.Errorf("bad blocks of decode, prefill and wire: %s", owned)
			}
			rail.Every(1)
			if got, status := s.text(q.seed, q.length, q.tokens); status != http.StatusBadGateway || !strings.Contains(got, connector.ErrContent.Error()) || !strings.Contains(got, "decode-0") {
				t.Errorf("with a flip in each slice: %d %q, want 502 that says so", status, got)
			}
		})
	}
}

// TestFlippedWhileDecoding flips a bit of a decode node's pool before one of its steps: the
// request never ends well with a wrong token, and the decode node's memory is to blame. Before
// the first step, with a check of the first token, it is answered right.
func TestFlippedWhileDecoding(t *testing.T) {
	q := query{4, 60, 12}
	want := alone(t, []query{q})[0]
	for _, checks := range []string{"landing,hit,last", "landing,hit,first,last", "landing,last,every=4"} {
		for _, hand := range handoff.Names() {
			t.Run(checks+"/"+hand, func(t *testing.T) {
				var m meddler
				s := startNodes(t, hand, func(c *Config) {
					computed(c)
					if c.KVChecks = checks; c.Role == proto.Role_ROLE_DECODE {
						meddled(c, &m)
					}
				}, "prefill-0", "decode-0")
				defer s.end()
				s.expectAll(1, q, want)
				slab := s.nodes["decode-0"].daemon.slab
				for _, at := range []int64{0, 7} {
					var steps atomic.Int64
					flip := func(step *engine.Step) {
						if steps.Add(1)-1 == at {
							slab.V(step.Works[0].Seq.Table.Refs()[2].ID, 1)[3] ^= 4
						}
					}
					m.before.Store(&flip)
					got, status := s.text(q.seed, q.length, q.tokens)
					m.before.Store(nil)
					t.Logf("before step %d: %d after %d steps: %.100s", at, status, steps.Load(), got)
					// Under pull the prefill node has drawn the first token too, and another one is drawn again.
					twice := at == 0 && hand == handoff.Pull.Name && !strings.Contains(checks, "first")
					// Under v0 the first token is out when the KV has come, before any step.
					saved := at == 0 && strings.Contains(checks, "first") && hand != handoff.V0.Name
					switch {
					case status == http.StatusOK && got == want && (twice || strings.Contains(checks, "first")): // perhaps the first token still waited
					case !saved && status == http.StatusBadGateway && strings.Contains(got, connector.ErrUsed.Error()) && strings.Contains(got, "layer 1"):
					default:
						t.Errorf("before step %d: %d %q, want %q", at, status, got, want)
					}
					// What the step computes from the bad block may be found too.
					if owned := s.owned(); !twice && !regexp.MustCompile(`^[1-9]\d* 0 0$`).MatchString(owned) {
						t.Errorf("before step %d: bad blocks of decode, prefill and wire: %s", at, owned)
					}
					s.expectAll(1, q, want)
				}
			})
		}
	}
}

// TestFlippedAfterComputing: a bit of a prefill node's pool that changes once the prompt is
// computed, and before it has left, is that node's fault, and the request is answered right.
func TestFlippedAfterComputing(t *testing.T) {
	q := query{4, 60, 12}
	want := alone(t, []query{q})[0]
	for _, hand := range []handoff.Handoff{handoff.Pull, handoff.V0, handoff.Push} {
		t.Run(hand.Name, func(t *testing.T) {
			var left atomic.Int64
			s := startNodes(t, hand.Name, func(c *Config) {
				computed(c)
				if c.Role != proto.Role_ROLE_PREFILL {
					return
				}
				inner := c.NewExecutor
				c.NewExecutor = func(slab *kvcache.Slab, clk clock.Clock) (engine.Executor, error) {
					e, err := inner(slab, clk)
					return &spoiler{e, slab, &left}, err
				}
			}, "prefill-0", "decode-0")
			defer s.end()
			for round := range 3 {
				left.Store(1)
				s.expectAll(2, q, want)
				if owned := s.owned(); owned != fmt.Sprintf("0 %d 0", round+1) {
					t.Errorf("bad blocks of decode, prefill and wire: %s", owned)
				}
			}
		})
	}
}

// A spoiler changes a bit of a prompt when its step has ended.
type spoiler struct {
	engine.Executor
	slab *kvcache.Slab
	left *atomic.Int64
}

func (p *spoiler) Run(ctx context.Context, step *engine.Step, layer func(int, time.Duration), read func()) (time.Duration, []kvcache.Token, error) {
	end, tokens, err := p.Executor.Run(ctx, step, layer, read)
	if p.left.Add(-1) == 0 {
		p.slab.V(step.Works[0].Seq.Table.Refs()[2].ID, 1)[3] ^= 4
	}
	return end, tokens, err
}
