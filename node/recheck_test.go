package node

import (
	"bufio"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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

// TestRecheckAfterPreemption: what a decode node has computed again has the right bytes, and so the right tokens,
// beside what has landed and what its prefix cache has.
func TestRecheckAfterPreemption(t *testing.T) {
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			s := startNodes(t, hand, func(c *Config) {
				c.PrefixCaching, c.TokensFromKV, c.KVChecks = true, true, "landing,last"
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
						text, status := s.text(i%5, 150, 90) // 10 blocks, then 15
						if want := answerText(smallProfile(t).KVGeometry, i%5, 150, 90); status != http.StatusOK || text != want {
							t.Errorf("%d %s, want %q", status, text, want)
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

// BenchmarkKVChecks sets TTFT and the end of requests under each list of checks beside the same
// without digests, in turns: prompts of 8,192 tokens of the A10's 7B model, 470 MB of KV, and 4
// tokens of output. cpu is of all of it, client too.
func BenchmarkKVChecks(b *testing.B) {
	lists := []string{"none", "landing", "landing,hit,last", "landing,hit,first,last"}
	for _, hand := range []string{handoff.Pull.Name, handoff.Layerwise.Name} {
		b.Run(hand, func(b *testing.B) {
			var ttft, e2e [4]time.Duration
			var cpu [4][]float64 // of each round
			var sides [4]*nodes
			for i := range sides {
				sides[i] = startNodes(b, hand, func(c *Config) {
					var err error
					if c.Profile, err = engine.LoadProfile(engine.DefaultProfile); err != nil {
						b.Fatal(err)
					}
					c.KVBlocks, c.KVChecks = 530, lists[i]
				}, "prefill-0", "decode-0")
				defer sides[i].end()
			}
			ask := func(s *nodes, seed int) (first, last, used time.Duration) {
				var before, after syscall.Rusage
				began := time.Now()
				_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
				resp, err := s.complete(b.Context(), seed, 8192, 4, true)
				if err != nil {
					b.Fatal(err)
				}
				defer resp.Body.Close()
				r := bufio.NewReader(resp.Body)
				if _, err := r.ReadString('\n'); err != nil || resp.StatusCode != http.StatusOK {
					b.Fatal(resp.Status, err)
				}
				first = time.Since(began)
				if _, err := io.Copy(io.Discard, r); err != nil {
					b.Fatal(err)
				}
				_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
				return first, time.Since(began), time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
			}
			for _, s := range sides {
				ask(s, 0) // the first touch of memory
			}
			for i := 0; b.Loop(); i++ {
				for side := range sides {
					first, last, used := ask(sides[(side+i)%4], i+1)
					ttft[(side+i)%4] += first
					e2e[(side+i)%4] += last
					cpu[(side+i)%4] = append(cpu[(side+i)%4], used.Seconds())
				}
			}
			for i, list := range lists {
				mean := func(d time.Duration) float64 { return d.Seconds() / float64(b.N) }
				more := make([]float64, b.N) // than without digests, in the same round
				for n := range more {
					more[n] = (cpu[i][n] - cpu[0][n]) / 0.4698
				}
				slices.Sort(more)
				b.Logf("%-24s TTFT %7.1f ms (%+.2f %%), end %7.1f ms, %+.3f CPU-s/GB (median of %.3f)", list, 1e3*mean(ttft[i]), 100*(mean(ttft[i])/mean(ttft[0])-1), 1e3*mean(e2e[i]), more[b.N/2], more)
			}
		})
	}
}
