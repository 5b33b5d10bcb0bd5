package node

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"kvferry/engine"
	"kvferry/engine/enginetest"
	"kvferry/handoff"
	"kvferry/kvcache"
	"kvferry/proto"
)

// These tests run nodes whose executor is not the modelled one: see computing.

// computed has a node compute for itself, with 384 bytes of KV a token.
func computed(c *Config) {
	c.Profile.KVGeometry.Layers, c.Profile.KVGeometry.KVHeads, c.Profile.KVGeometry.HeadDim, c.Profile.KVGeometry.HiddenSize = 3, 2, 16, 16
	c.NewExecutor = newComputing(c.Profile)
}

// A query is a prompt, of length tokens that seed determines, and how many tokens follow.
type query struct{ seed, length, tokens int }

// queries are below, at and above a block, and some begin alike.
var queries = []query{{1, 1, 12}, {2, 15, 12}, {3, 16, 12}, {3, 17, 12}, {3, 40, 1}, {4, 64, 12}, {4, 100, 30}, {5, 90, 2}}

// answers asks all at once.
func (s *nodes) answers(qs []query) []string {
	s.t.Helper()
	out := make([]string, len(qs))
	var all sync.WaitGroup
	for i, q := range qs {
		all.Go(func() {
			text, status := s.text(q.seed, q.length, q.tokens)
			if status != http.StatusOK {
				s.t.Errorf("%+v: %d %s", q, status, text)
			}
			out[i] = text
		})
	}
	all.Wait()
	return out
}

// alone is what one node answers that computes everything itself.
func alone(t *testing.T, qs []query) []string {
	t.Helper()
	s := startNodes(t, "", computed, "nondisagg-0")
	defer s.end()
	return s.answers(qs)
}

// TestComputedKV: nodes whose executor computes KV from KV serve as one that has all of it,
// under every hand-off, with prefix caches and without.
func TestComputedKV(t *testing.T) {
	want := alone(t, queries)
	seen := map[string]int{}
	for i, text := range want {
		if j, twice := seen[text]; twice {
			t.Errorf("%+v and %+v have the same answer %q: it means nothing", queries[i], queries[j], text)
		}
		seen[text] = i
	}
	for _, hand := range handoff.Names() {
		for _, caching := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/caching=%t", hand, caching), func(t *testing.T) {
				s := startNodes(t, hand, func(c *Config) {
					computed(c)
					c.PrefixCaching = caching
				}, "prefill-0", "decode-0")
				defer s.end()
				for round := range 2 { // the second time out of the prefix caches, if there are some
					for i, got := range s.answers(queries) {
						if got != want[i] {
							t.Errorf("round %d, %+v: %q, want %q", round, queries[i], got, want[i])
						}
					}
				}
				var hits, bytes, checked uint64
				s.until("the nodes' last words", func() bool {
					hits, bytes, checked = 0, 0, 0
					for _, n := range s.proxy.daemon.Nodes() {
						if n.Load.Running+n.Load.Waiting > 0 {
							return false
						}
						hits, bytes, checked = hits+n.Load.PrefixHits, bytes+n.Load.KvBytes, checked+n.Load.KvBlocksChecked
					}
					return true
				})
				if bytes == 0 || (hits > 0) != caching {
					t.Errorf("%d bytes were moved, %d tokens were cached", bytes, hits)
				}
				if checked == 0 {
					t.Error("no block was checked: the digest of bytes needs nobody who knows what they must be")
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

// TestComputedAgain: a decode node that has too few blocks computes again what it had been
// sent, and the answers are the same.
func TestComputedAgain(t *testing.T) {
	var qs []query
	for i := range 12 {
		qs = append(qs, query{i, 70, 60}) // 5 blocks, then 9
	}
	want := alone(t, qs)
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			s := startNodes(t, hand, func(c *Config) {
				computed(c)
				if c.Role == proto.Role_ROLE_DECODE {
					c.KVBlocks = 20
				}
			}, "prefill-0", "decode-0")
			defer s.end()
			w := s.nodes["decode-0"].daemon.w
			preempted := uint64(0)
			s.until("a preemption", func() bool { // takes requests that come close together
				for i, got := range s.answers(qs) {
					if got != want[i] {
						t.Errorf("%+v: %q, want %q", qs[i], got, want[i])
					}
				}
				s.onLoop(w, func() { preempted = w.core.Load().Preemptions })
				return preempted > 0
			})
			t.Logf("%d preemptions", preempted)
		})
	}
}

// TestOtherEngine: an engine whose scheduler is another one too gives the same answers.
func TestOtherEngine(t *testing.T) {
	want := alone(t, queries)
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			s := startNodes(t, hand, func(c *Config) {
				computed(c)
				c.NewScheduler = func(pool *kvcache.Pool) (engine.Scheduler, error) {
					return enginetest.NewSerial(pool, c.Profile.MaxModelLen), nil
				}
			}, "prefill-0", "decode-0")
			defer s.end()
			for i, got := range s.answers(queries) {
				if got != want[i] {
					t.Errorf("%+v: %q, want %q", queries[i], got, want[i])
				}
			}
		})
	}
}

// TestTornInTransit: one bit of KV that is changed on its way changes the answer, if nobody
// checks: what a decode node draws depends on the bytes that have arrived.
func TestTornInTransit(t *testing.T) {
	q := query{4, 100, 30}
	want := alone(t, []query{q})[0]
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			s, _, rail := startCorrupted(t, hand, "none")
			defer s.end()
			if got, _ := s.text(q.seed, q.length, q.tokens); got != want {
				t.Fatalf("%q, want %q", got, want)
			}
			carried, _ := rail.Carried()
			rail.Every(int(carried) + 1) // the next slice, and none of those that follow it
			got, status := s.text(q.seed, q.length, q.tokens)
			// The first token is drawn where the prompt was computed; or from what came; or in both places, and then
			// the proxy sees that they differ.
			h, err := handoff.Parse(hand)
			twice := h.First == handoff.PrefillLeg && h.FirstToken == handoff.DecodeLeg && !h.InStep
			if _, flipped := rail.Carried(); err != nil || flipped < 1 || flipped > 1 && !twice {
				t.Fatalf("%d slices were changed, want 1: %v", flipped, err)
			}
			first := func(text string) string { return strings.Fields(text)[0] }
			if twice && status != http.StatusBadGateway || !twice && (status != http.StatusOK || got == want || (first(got) != first(want)) != (h.FirstToken == handoff.DecodeLeg && !h.InStep)) {
				t.Errorf("%d %q with a changed bit, %q without", status, got, want)
			}
			rail.Every(0)
			if got, _ := s.text(q.seed, q.length, q.tokens); got != want {
				t.Errorf("afterwards: %q, want %q", got, want)
			}
		})
	}
}
