package cluster

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/engine/eos"
	"kvferry/handoff"
	"kvferry/kvcache"
	"kvferry/load"
	"kvferry/node"
	"kvferry/proxy"
	"kvferry/sim"
)

// tokensOf is a test's prompt as the engine has it.
func tokensOf(p []int) []kvcache.Token {
	out := make([]kvcache.Token, len(p))
	for i, t := range p {
		out[i] = kvcache.Token(t)
	}
	return out
}

// mayStop is a call whose answer the model may end.
func mayStop(p []int, tokens int, stream bool) call {
	return call{Prompt: p, MaxTokens: tokens, Stream: stream, More: map[string]any{"ignore_eos": false}}
}

// TestEOSAfterKill kills the node that decodes in the middle of an answer that the model ends
// by itself. The node that takes over ends it at the same token, with the same text.
func TestEOSAfterKill(t *testing.T) {
	t.Parallel()
	lengths := eos.Lengths{Median: 120, Sigma: 0.2, Seed: 3}
	for _, hand := range append([]string{"nondisagg"}, handoffs...) {
		t.Run(hand, func(t *testing.T) {
			t.Parallel()
			role := "decode"
			cfg := Spec{Prefill: 1, Decode: 2, Profile: profile(t, cost{Decode: 10}), Proxy: proxy.Config{Handoff: hand, LeaseTTL: patience, EOS: lengths}}
			if hand == "nondisagg" {
				cfg.Prefill, cfg.Decode, cfg.Nondisagg, cfg.Proxy.Handoff, role = 0, 0, 2, "", "nondisagg"
			}
			c := start(t, cfg)
			for attempt := 0; ; attempt++ {
				if attempt == 5 {
					t.Fatal("five answers ended before their node was killed")
				}
				p := prompt(attempt, 48)
				drawn := lengths.Draw(tokensOf(p), 0)
				s := c.open(t.Context(), mayStop(p, 2000, true))
				s.next(5)
				var victim string
				for i := range 2 {
					if name := fmt.Sprintf("%s-%d", role, i); c.running(name) > 0 {
						victim = name
					}
				}
				if victim != "" {
					c.Process(victim).Kill()
				}
				r := s.rest()
				r.expect(t, drawn)
				if w := want(t, call{Prompt: p, MaxTokens: drawn}); r.Text != w || r.Finish != "stop" {
					t.Errorf("%s: got %q, want %q", r.Finish, r.Text, w)
				}
				if c.metric("kvferry:request_retries_total") > 0 {
					return
				}
				if victim != "" {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					if err := c.AddNode(ctx, role, victim); err != nil {
						t.Fatal(err)
					}
					cancel()
					c.poll(victim+" to be back", func() bool { return int(c.metric(fmt.Sprintf(`kvferry:nodes{role=%q}`, role))) == 2 })
				}
			}
		})
	}
}

// TestEOSAsSimulated: a real cluster and a simulated one end the same answers at the same
// tokens.
func TestEOSAsSimulated(t *testing.T) {
	t.Parallel()
	lengths := eos.Lengths{Median: 12, Sigma: 1, Max: 60, Seed: 11}
	for _, h := range []handoff.Handoff{handoff.None, handoff.Pull, handoff.Layerwise} {
		t.Run("handoff="+h.Name, func(t *testing.T) {
			t.Parallel()
			cfg := Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{PrefillToken: 0.01, Decode: 0.5}), Proxy: proxy.Config{Handoff: h.Name, EOS: lengths}}
			if h == handoff.None {
				cfg.Prefill, cfg.Decode, cfg.Nondisagg = 0, 0, 1
			}
			prof, err := engine.LoadProfile(cfg.Profile)
			if err != nil {
				t.Fatal(err)
			}
			var requests []load.Request
			for i := range 24 {
				requests = append(requests, load.Request{At: time.Duration(i) * 10 * time.Millisecond, Prompt: tokensOf(prompt(i, 20+7*i)), MaxTokens: 30, MayStop: i%6 > 0})
			}
			simulated := make([]*sim.Outcome, len(requests))
			list := load.List(requests)
			if _, err := sim.Run(t.Context(), sim.Config{
				Profile: prof, Prefill: cfg.Prefill, Decode: cfg.Decode, Nondisagg: cfg.Nondisagg, Handoff: h, EOS: lengths,
				NICs: []sim.NIC{{BytesPerSecond: 1e9}}, OnOutcome: func(o *sim.Outcome) { simulated[o.Index] = o },
			}, load.Load{Source: &list}); err != nil {
				t.Fatal(err)
			}
			c := start(t, cfg)
			stopped := 0
			for i, q := range requests {
				m := mayStop(prompt(i, 20+7*i), q.MaxTokens, i%2 == 0)
				m.More["ignore_eos"] = !q.MayStop
				r, o := c.do(m), simulated[i]
				if !r.Done || r.Tokens != o.Tokens || (r.Finish == "stop") != o.Stopped {
					t.Errorf("request %d: %v, finish %s; simulated %d tokens, stopped %v", i, r, r.Finish, o.Tokens, o.Stopped)
				}
				if o.Stopped {
					stopped++
				}
			}
			if stopped < 5 || stopped > 19 {
				t.Errorf("%d of 20 that may stop do: the test shows little", stopped)
			}
		})
	}
}

// TestStopString: an answer that a stop string ends, at its first token among others, leaves
// nothing behind on the nodes, whatever KV was on its way; and several choices end each by
// itself.
func TestStopString(t *testing.T) {
	t.Parallel()
	for _, hand := range append([]string{"nondisagg"}, handoffs...) {
		t.Run(hand, func(t *testing.T) {
			t.Parallel()
			cfg := Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{PrefillToken: 0.1, Decode: 2}), Link: "rate=20MB/s", Proxy: proxy.Config{Handoff: hand}}
			if hand == "nondisagg" {
				cfg.Prefill, cfg.Decode, cfg.Nondisagg, cfg.Proxy.Handoff, cfg.Link = 0, 0, 1, "", ""
			}
			c := start(t, cfg)
			p := prompt(3, 300)
			w := want(t, call{Prompt: p, MaxTokens: 12})
			words := strings.Fields(w)
			for _, at := range []int{0, 1, 7} {
				for _, stream := range []bool{false, true} {
					r := c.do(call{Prompt: p, MaxTokens: 400, Stream: stream, More: map[string]any{"stop": words[at]}})
					text, _, _ := strings.Cut(w, words[at])
					if !r.Done || r.Text != text || r.Finish != "stop" {
						t.Errorf("stop at token %d: %v, %s %q, want %q", at, r, r.Finish, r.Text, text)
					}
				}
			}
			c.quiet()
			// The other choice has other words, and goes on.
			r := c.do(call{Prompt: p, MaxTokens: 12, More: map[string]any{"stop": words[7], "n": 2}})
			if first, _, _ := strings.Cut(w, words[7]); !r.Done || !strings.HasPrefix(r.Text, first) || strings.Count(r.Text, " ") != 8+12 {
				t.Errorf("two choices: %v, %q", r, r.Text)
			}
			c.quiet()
		})
	}
}

// TestPrefixCachesApart: an adapter's prefixes are not the model's, nor another's, nor are those of a cache
// salt; and a flush empties the caches of all nodes.
func TestPrefixCachesApart(t *testing.T) {
	t.Parallel()
	for _, hand := range []string{"nondisagg", "pull", "layerwise"} {
		t.Run(hand, func(t *testing.T) {
			t.Parallel()
			cfg := Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{PrefillToken: 0.01, Decode: 0.5}), Proxy: proxy.Config{Handoff: hand, Placement: "prefix-aware", LoRAs: []proxy.LoRA{{Name: "sql", Path: "/adapters/sql"}, {Name: "chat", Path: "/adapters/chat"}}}, Node: node.Config{PrefixCaching: true}}
			if hand == "nondisagg" {
				cfg.Prefill, cfg.Decode, cfg.Nondisagg, cfg.Proxy.Handoff = 0, 0, 1, ""
			}
			c := start(t, cfg)
			p := prompt(1, 500)
			for _, step := range []struct {
				model, salt string // asked for; without a model: flush the caches
				cached      bool
			}{
				{model, "", false},
				{model, "", true},
				{"sql", "", false},
				{"sql", "", true},
				{"chat", "", false},
				{model, "a", false},
				{model, "b", false},
				{model, "a", true},
				{model, "", true},
				{"sql", "a", false},
				{"sql", "a", true},
				{"", "", false},
				{"sql", "", false},
				{model, "", false},
				{model, "", true},
				{"chat", "", false},
				{model, "b", false},
			} {
				if step.model == "" {
					resp, err := c.http.Post(c.URL()+"/flush_cache", "", nil)
					if err != nil || resp.StatusCode != http.StatusOK {
						t.Fatal(resp, err)
					}
					resp.Body.Close()
					continue
				}
				q := call{Prompt: p, MaxTokens: 4, More: map[string]any{"model": step.model}}
				if step.salt != "" {
					q.More["cache_salt"] = step.salt
				}
				r := c.do(q)
				r.expect(t, 4)
				if w := want(t, q); r.Text != w || (r.Cached > 400) != step.cached || !step.cached && r.Cached != 0 {
					t.Errorf("%+v: %d tokens from the cache; text %q, want %q", step, r.Cached, r.Text, w)
				}
				c.quiet()
			}
			if bad := c.metric("kvferry:kv_blocks_bad_total"); bad != 0 {
				t.Errorf("%v bad blocks", bad)
			}
		})
	}
}
