package cluster

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/node"
	"kvferry/proxy"
)

// TestEquality sends the same prompts through every way of serving. A prompt's
// tokens are a function of it, so every way must give the same text.
func TestEquality(t *testing.T) {
	t.Parallel()
	lengths := []int{1, 15, 16, 17, 100, 333, 512, 640} // below, at and above block and chunk
	for i, way := range []struct {
		name string
		cfg  Spec
	}{
		{"chunked", Spec{Nondisagg: 1, Node: node.Config{Chunked: true}}},
		{"nondisagg x2", Spec{Nondisagg: 2}},
		{"v0", Spec{Prefill: 2, Decode: 2, Proxy: proxy.Config{Handoff: "v0"}}},
		{"pull", Spec{Prefill: 2, Decode: 2, Proxy: proxy.Config{Handoff: "pull"}}},
		{"layerwise", Spec{Prefill: 2, Decode: 2, Proxy: proxy.Config{Handoff: "layerwise"}}},
		{"layerwise, conditional", Spec{Prefill: 2, Decode: 2, Proxy: proxy.Config{Handoff: "layerwise", ConditionalDisaggregation: 100}}},
		{"pull, conditional", Spec{Prefill: 2, Decode: 2, Proxy: proxy.Config{Handoff: "pull", ConditionalDisaggregation: 100}}},
	} {
		for _, caching := range []bool{false, true} {
			if testing.Short() && caching != (i%2 == 0) {
				continue
			}
			t.Run(fmt.Sprintf("%s/caching=%t", way.name, caching), func(t *testing.T) {
				t.Parallel()
				cfg := way.cfg
				cfg.Node.PrefixCaching, cfg.Profile, cfg.Proxy.Placement = caching, profile(t, cost{PrefillToken: 0.02, Decode: 1}), "round-robin"
				c := start(t, cfg)
				var calls []call
				for i, n := range lengths {
					// One token only needs no decode node; what it leaves in the prefix cache
					// must serve the others all the same.
					for _, max := range []int{1, 2, 20} {
						calls = append(calls, call{Prompt: prompt(i, n), MaxTokens: max, Stream: i%2 == 0})
					}
				}
				for range 2 { // the second time from the prefix cache, if there is one
					var all sync.WaitGroup
					got := make([]result, len(calls))
					for i, q := range calls {
						all.Go(func() { got[i] = c.do(q) })
					}
					all.Wait()
					for i, q := range calls {
						got[i].expect(t, q.MaxTokens)
						if w := want(t, q); got[i].Text != w {
							t.Errorf("%d tokens for a prompt of %d: got %q, want %q", q.MaxTokens, len(q.Prompt), got[i].Text, w)
						}
					}
				}
				m := c.metrics()
				if bad := value(m, "kvferry:kv_blocks_bad_total"); bad != 0 {
					t.Errorf("%v bad blocks", bad)
				}
				if checked := value(m, "kvferry:kv_blocks_checked_total"); cfg.Decode > 0 && checked == 0 {
					t.Error("no block was checked")
				}
			})
		}
	}
}

// TestPrefixCache: the second time a long prompt comes, most of it is neither
// computed nor moved.
func TestPrefixCache(t *testing.T) {
	t.Parallel()
	for _, handoff := range append([]string{"nondisagg"}, handoffs...) {
		t.Run(handoff, func(t *testing.T) {
			t.Parallel()
			cfg := Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{PrefillToken: 0.02, Decode: 1}), Proxy: proxy.Config{Handoff: handoff}, Node: node.Config{PrefixCaching: true}}
			if handoff == "nondisagg" {
				cfg.Prefill, cfg.Decode, cfg.Nondisagg, cfg.Proxy.Handoff = 0, 0, 1, ""
			}
			c := start(t, cfg)
			var bytes [2]float64
			var cached [2]int
			for i := range 2 {
				before := c.metric("kvferry:kv_bytes_total")
				q := call{Prompt: prompt(1, 1000), MaxTokens: 4}
				r := c.do(q)
				r.expect(t, q.MaxTokens)
				if w := want(t, q); r.Text != w {
					t.Errorf("got %q, want %q", r.Text, w)
				}
				c.quiet()
				bytes[i], cached[i] = c.metric("kvferry:kv_bytes_total")-before, r.Cached
			}
			t.Logf("moved %v, cached %v", bytes, cached)
			if cached[0] != 0 || cached[1] < 900 || cached[1] >= 1000 {
				t.Errorf("%d and %d tokens from the cache: want 0 and nearly 1000", cached[0], cached[1])
			}
			const kv = 1000 * 4 << 10 // 4 KiB a token
			switch handoff {
			case "nondisagg":
				if bytes != [2]float64{} {
					t.Errorf("one node moved %v bytes", bytes)
				}
			case "v0":
				// The published hand-off knows nothing of the decode side's cache: it moves
				// everything, hidden states included, every time.
				if bytes[0] < kv || bytes[1] != bytes[0] {
					t.Errorf("moved %v bytes: want %d and more, twice", bytes, kv)
				}
			default:
				if bytes[0] != kv || bytes[1] > kv/10 {
					t.Errorf("moved %v bytes: want %d, then at most a tenth", bytes, kv)
				}
			}
			if bad := c.metric("kvferry:kv_blocks_bad_total"); bad != 0 {
				t.Errorf("%v bad blocks", bad)
			}
		})
	}
}

// TestPrefixComputedHere: a decode node has the beginning of a prompt in its prefix cache from one
// that it has computed itself. What it decodes with is right all the same.
func TestPrefixComputedHere(t *testing.T) {
	t.Parallel()
	for _, handoff := range handoffs {
		t.Run(handoff, func(t *testing.T) {
			t.Parallel()
			c := start(t, Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{PrefillToken: 0.02, Decode: 1}), Proxy: proxy.Config{Handoff: handoff, ConditionalDisaggregation: 64}, Node: node.Config{PrefixCaching: true}})
			for _, tokens := range []int{64, 200} {
				q := call{Prompt: prompt(1, tokens), MaxTokens: 4}
				r := c.do(q)
				r.expect(t, q.MaxTokens)
				if w := want(t, q); r.Text != w {
					t.Errorf("%d tokens: got %q, want %q", tokens, r.Text, w)
				}
			}
			if bad := c.metric("kvferry:kv_blocks_bad_total"); bad != 0 {
				t.Errorf("%v bad blocks", bad)
			}
		})
	}
}

// accounts are the ways of serving with the parts of a request's time before its first
// token, and between that and the second: with layerwise the first does not wait for
// the hand-off.
var accounts = []struct {
	name          string
	cfg           Spec
	first, second []string
}{
	{"nondisagg", Spec{Nondisagg: 1}, parts, nil},
	{"v0", Spec{Prefill: 1, Decode: 1, Link: "tcp", Proxy: proxy.Config{Handoff: "v0"}}, parts, nil},
	{"pull", Spec{Prefill: 1, Decode: 1, Link: "tcp", Proxy: proxy.Config{Handoff: "pull"}}, parts, nil},
	{"layerwise", Spec{Prefill: 1, Decode: 1, Link: "tcp", Proxy: proxy.Config{Handoff: "layerwise"}}, parts[:3], parts[3:]},
}

var parts = []string{"proxy", "queue", "prefill", "post", "wire", "land", "first_decode"}

// account adds up parts of a request's time.
func (r result) account(t testing.TB, parts []string) (sum time.Duration) {
	t.Helper()
	for _, part := range parts {
		us, ok := r.Breakdown[part+"_us"].(float64)
		if !ok || us < 0 {
			t.Fatalf("%s_us of %v", part, r.Breakdown)
		}
		sum += time.Duration(us) * time.Microsecond
	}
	return sum
}

// TestBreakdown: the parts of a request's time are all there, those that a way of
// serving has not are zero, and the prompt takes what the shipped profile says. How near
// they come to what the client measures on a quiet machine is printed by
// BenchmarkBreakdown; on a busy one the proxy may be late to note that its part is over.
func TestBreakdown(t *testing.T) {
	p, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	const tokens = 700
	for _, way := range accounts {
		t.Run(way.name, func(t *testing.T) {
			c := start(t, way.cfg)
			for i, whole := 0, 0; whole < 3; i++ {
				r := c.do(call{Prompt: prompt(i, tokens), MaxTokens: 2, Stream: true, Breakdown: true})
				r.expect(t, 2)
				if r.Breakdown["retries"] != 0.0 && i < 30 {
					continue // the account of an attempt that had to do less
				}
				whole++
				if all := r.account(t, parts); all <= 0 {
					t.Errorf("all parts are %v: %v", all, r.Breakdown)
				}
				moved := r.account(t, []string{"post", "wire", "land"})
				if disagg := way.cfg.Decode > 0; (moved > 0) != disagg {
					t.Errorf("post, wire and land are %v: %v", moved, r.Breakdown)
				}
				least := time.Duration(tokens * p.Costs.PrefillTokenMS * 0.95 * float64(time.Millisecond))
				if got := r.account(t, []string{"prefill"}); got < least {
					t.Errorf("%d tokens took %v, at least %v by the profile", tokens, got, least)
				}
			}
		})
	}
}

// BenchmarkBreakdown prints what the account of a quiet request lacks of what its
// client measured, of the TTFT and of the 20 ms until the second token.
func BenchmarkBreakdown(b *testing.B) {
	for _, way := range accounts {
		b.Run(way.name, func(b *testing.B) {
			c := start(b, way.cfg)
			c.do(call{Prompt: prompt(0, 64), MaxTokens: 4}).expect(b, 4) // connections
			var first, second, ttft, gap time.Duration
			for i := 0; b.Loop(); i++ {
				r := c.do(call{Prompt: prompt(1+i, 700), MaxTokens: 4, Stream: true, Breakdown: true})
				r.expect(b, 4)
				first, ttft = first+r.account(b, way.first), ttft+r.TTFT
				second, gap = second+r.account(b, way.second), gap+r.Second
			}
			b.ReportMetric(100*float64(ttft-first)/float64(ttft), "%TTFT-missing")
			if way.second != nil {
				b.ReportMetric(100*float64(gap-second)/float64(gap), "%second-missing")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
