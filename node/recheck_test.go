package node

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/connector"
	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/handoff/handofftest"
)

// TestChangedAfterCheck changes a byte of a decode node's blocks when all of them have
// landed, been checked and been used but for the last step: the request does not end as
// if nothing had happened.
func TestChangedAfterCheck(t *testing.T) {
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			s := startNodes(t, hand, nil, "prefill-0", "decode-0", "decode-1")
			defer s.end()
			var changes atomic.Int64 // to be made
			for _, name := range []string{"decode-0", "decode-1"} {
				w, slab := s.nodes[name].daemon.w, s.nodes[name].daemon.slab
				s.onLoop(w, func() {
					w.landed = func(c connector.Check) {
						if c.Again && changes.Add(-1) >= 0 {
							slab.Layer(c.Refs[0].ID, 2)[5] ^= 1
						}
					}
				})
			}
			two, _ := s.text(1, 100, 2)
			many, _ := s.text(1, 100, 40)
			found := uint64(0)
			if handofftest.PrefillSpeaks(hand) {
				// The first token is the prefill node's, none of the decode leg has left:
				// another node starts it anew.
				changes.Store(1)
				if got, status := s.text(1, 100, 2); status != http.StatusOK || got != two {
					t.Errorf("%d %q, want %q from a second attempt", status, got, two)
				}
				if found = s.bad(); found != 1 {
					t.Errorf("%d bad blocks were counted, want 1", found)
				}
			}
			// Tokens have left that may be wrong.
			const requests = 8
			well := 0
			for range requests {
				changes.Store(1)
				got, status := s.text(1, 100, 40)
				switch {
				case status == http.StatusOK:
					well++
				case status != http.StatusBadGateway:
					t.Errorf("%d %s", status, got)
				default:
					for _, part := range []string{"decode leg on decode-", ": changed: ", connector.ErrContent.Error(), connector.ErrChanged.Error(), connector.ErrUsed.Error(), "block 0"} {
						if !strings.Contains(got, part) {
							t.Errorf("%q is not in %q", part, got)
						}
					}
				}
				if found++; s.bad() != found {
					t.Errorf("%d bad blocks were counted, want %d", s.bad(), found)
				}
			}
			t.Logf("of %d requests whose KV changed after it was checked, %d ended well; %d bad blocks", requests, well, s.bad())
			if well > 0 {
				t.Error("changes were not found")
			}
			changes.Store(0)
			if got, status := s.text(1, 100, 40); status != http.StatusOK || got != many {
				t.Errorf("afterwards: %d %q, want %q", status, got, many)
			}
			// What moved the bytes is not to blame, and no transfer has failed.
			for name, n := range s.nodes {
				if st := n.daemon.kv.Rails()[0]; st.Strikes != 0 {
					t.Errorf("%s: its rail has %d strikes", name, st.Strikes)
				}
				s.onLoop(n.daemon.w, func() {
					if got := n.daemon.w.core.Totals().Failed; got != 0 {
						t.Errorf("%s: %d transfers failed", name, got)
					}
				})
			}
		})
	}
}

// TestRecheckAfterPreemption: what a decode node has computed again has the right bytes,
// beside what has landed and what its prefix cache has.
func TestRecheckAfterPreemption(t *testing.T) {
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			s := startNodes(t, hand, func(c *Config) {
				c.PrefixCaching = true
				c.Profile.Disagg.DecodeStepMS = 1
				if strings.HasPrefix(c.ID, "decode") {
					c.KVBlocks = 40 // three prompts and little more
				}
			}, "prefill-0", "decode-0")
			defer s.end()
			w := s.nodes["decode-0"].daemon.w
			var again atomic.Int64
			s.onLoop(w, func() {
				w.landed = func(c connector.Check) {
					if c.Again {
						again.Add(1)
					}
				}
			})
			requests, preempted := int64(0), uint64(0)
			s.until("a preemption", func() bool { // takes requests that come close together
				var all sync.WaitGroup
				for i := range 16 {
					requests++
					all.Go(func() {
						if text, status := s.text(i%5, 150, 90); status != http.StatusOK { // 10 blocks, then 15
							t.Errorf("%d %s", status, text)
						}
					})
				}
				all.Wait()
				s.onLoop(w, func() { preempted = w.core.Load().Preemptions })
				return preempted > 0
			})
			t.Logf("%d preemptions", preempted)
			if again.Load() != requests {
				t.Errorf("%d of %d requests were checked again", again.Load(), requests)
			}
		})
	}
}

// BenchmarkRecheckKV sets requests whose blocks are checked twice beside others whose are
// checked once, in turns: the KV of a 7B model (57 KB a token), prompts of 256 tokens and
// 6 tokens of output, on a GPU that takes no time.
func BenchmarkRecheckKV(b *testing.B) {
	for _, hand := range handoff.Names() {
		b.Run(hand, func(b *testing.B) {
			var took [2]time.Duration
			var sides [2]*nodes
			for i := range sides {
				sides[i] = startNodes(b, hand, func(c *Config) {
					var err error
					if c.Profile, err = engine.LoadProfile("zero"); err != nil {
						b.Fatal(err)
					}
					c.KVBlocks, c.RecheckKV = 64, i == 1
				}, "prefill-0", "decode-0")
				defer sides[i].end()
				sides[i].text(1, 256, 6)
			}
			for i := 0; b.Loop(); i++ {
				for side, s := range sides {
					began := time.Now()
					if text, status := s.text(i, 256, 6); status != http.StatusOK {
						b.Fatal(status, text)
					}
					took[side] += time.Since(began)
				}
			}
			ms := func(side int) float64 { return took[side].Seconds() * 1e3 / float64(b.N) }
			b.ReportMetric(ms(0), "once-ms/op")
			b.ReportMetric(ms(1), "twice-ms/op")
			b.ReportMetric(ms(1)/ms(0), "x")
			b.ReportMetric(0, "ns/op")
		})
	}
}
