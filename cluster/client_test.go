package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/handoff/handofftest"
	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/node"
	"kvferry/proxy"
)

// TestClientGone leaves in mid-stream and while queued: the nodes stop working
// for nobody, and their blocks come back.
func TestClientGone(t *testing.T) {
	t.Parallel()
	for _, handoff := range append([]string{"nondisagg"}, handoffs...) {
		t.Run(handoff, func(t *testing.T) {
			t.Parallel()
			cfg := Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{PrefillToken: 5, Decode: 20}), Proxy: proxy.Config{Handoff: handoff}, Node: node.Config{KVBlocks: 64}}
			first, last := "prefill-0", "decode-0"
			if handoff == "nondisagg" {
				cfg.Prefill, cfg.Decode, cfg.Nondisagg, cfg.Proxy.Handoff = 0, 0, 1, ""
				first, last = "nondisagg-0", "nondisagg-0"
			}
			c := start(t, cfg)
			having := []string{first, last} // a request: on one of them, in turns
			if first == last || handofftest.DecodeFirst(handoff) {
				having = having[1:] // or from its begin to its end
			}

			ctx, leave := context.WithCancel(t.Context())
			s := c.open(ctx, call{Prompt: prompt(1, 64), MaxTokens: 900, Stream: true})
			if !s.next(3) {
				t.Fatal(s.r)
			}
			c.poll("the stream to run", func() bool { return c.running(last) == 1 })
			leave()
			c.quiet()
			_ = s.rest()

			// Two seconds of prompt each, and eight of tokens.
			ctx, leave = context.WithCancel(t.Context())
			var all sync.WaitGroup
			for i := range 4 {
				all.Go(func() { _ = c.open(ctx, call{Prompt: prompt(2+i, 400), MaxTokens: 400, Stream: true}).rest() })
			}
			c.poll("one to be computed and all others to queue", func() bool {
				m := c.metrics()
				all := 0.0
				for _, node := range having {
					all += value(m, ofNode("vllm:num_requests_running", node)) + value(m, ofNode("vllm:num_requests_waiting", node))
				}
				return value(m, ofNode("vllm:num_requests_running", first)) > 0 && all >= 4
			})
			leave()
			all.Wait()
			c.quiet()
			q := call{Prompt: prompt(1, 64), MaxTokens: 4}
			r := c.do(q)
			r.expect(t, 4)
			if got := c.metric("vllm:request_success_total{engine=\"0\",finished_reason=\"abort\",model_name=\"" + model + "\"}"); got != 5 {
				t.Errorf("%v requests counted as aborted, want 5", got)
			}
		})
	}
}

// TestDeadline: a request that cannot be done in its time ends then, before the
// first token with a status, after it with an event, and holds nothing.
func TestDeadline(t *testing.T) {
	t.Parallel()
	for _, handoff := range append([]string{"nondisagg"}, handoffs...) {
		t.Run(handoff, func(t *testing.T) {
			t.Parallel()
			cfg := Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{PrefillToken: 2, Decode: 20}), Proxy: proxy.Config{Handoff: handoff}}
			if handoff == "nondisagg" {
				cfg.Prefill, cfg.Decode, cfg.Nondisagg, cfg.Proxy.Handoff = 0, 0, 1, ""
			}
			c := start(t, cfg)
			// A second of prompt in a third of one.
			if r := c.do(call{Prompt: prompt(1, 500), MaxTokens: 4, Stream: true, Timeout: 0.3}); !r.unsent("deadline_exceeded") || r.Status != http.StatusGatewayTimeout {
				t.Errorf("%v: want 504 deadline_exceeded", r)
			}
			c.quiet()
			// A minute of tokens in half a second, or in what a busy machine takes for the
			// first.
			for limit := 0.5; ; limit *= 2 {
				r := c.do(call{Prompt: prompt(2, 32), MaxTokens: 3000, Stream: true, Timeout: limit})
				c.quiet()
				if r.unsent("deadline_exceeded") && limit < 30 {
					continue
				}
				if !r.broken() || r.Err.Code != "deadline_exceeded" || r.Tokens == 0 {
					t.Errorf("%v: want some tokens and then deadline_exceeded", r)
				}
				break
			}
		})
	}
}

// TestOverload sends 60 times what the pool can hold at once, or 30 times with -short. Everyone gets all
// of their tokens or is told why not, and afterwards nothing is left behind.
func TestOverload(t *testing.T) {
	load := 240
	if testing.Short() {
		load /= 2
	}
	for _, handoff := range append([]string{"nondisagg"}, handoffs...) {
		t.Run(handoff, func(t *testing.T) {
			// Not in parallel, it takes the whole machine. 64 blocks hold 4 prompts of 240
			// tokens, and not their output: some are preempted.
			cfg := Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{PrefillToken: 0.005, Decode: 0.1}), Proxy: proxy.Config{Handoff: handoff, MaxQueue: load * 3 / 4}, Node: node.Config{KVBlocks: 64}}
			if handoff == "nondisagg" {
				cfg.Prefill, cfg.Decode, cfg.Nondisagg, cfg.Proxy.Handoff = 0, 0, 1, ""
			}
			c := start(t, cfg)
			q := call{Prompt: prompt(0, 240), MaxTokens: 24, Stream: true}
			c.do(q).expect(t, q.MaxTokens) // what is made once is there
			c.quiet()
			before := make(map[string]int)
			for _, p := range c.Processes() {
				before[p.Name] = descriptors(t, p)
			}
			c.http.CloseIdleConnections()

			client := &http.Client{Transport: &http.Transport{}}
			burst := &testCluster{Cluster: c.Cluster, t: t, http: client}
			results := make(chan result, load)
			for i := range load {
				go func() {
					q := call{Prompt: prompt(i%8, 240), MaxTokens: 24, Stream: i%2 == 0}
					results <- burst.do(q)
				}()
			}
			limit := time.After(2 * patience)
			served, refused := 0, 0
			texts := make(map[string]int)
			for range load {
				select {
				case r := <-results:
					switch {
					case r.Status == http.StatusOK:
						r.expect(t, 24)
						texts[r.Text]++
						served++
					case (r.Status == http.StatusTooManyRequests || r.Status == http.StatusServiceUnavailable) && r.Err.Message != "":
						refused++
					default:
						t.Fatalf("%v: want all tokens, 429 or 503", r)
					}
				case <-limit:
					t.Fatalf("%d of %d requests have not ended", load-served-refused, load)
				}
			}
			if served < load/2-20 || len(texts) != 8 {
				t.Errorf("%d of %d served with %d different texts: want %d or more and 8 texts", served, load, len(texts), load/2-20)
			}
			t.Logf("%d served, %d refused, %v preemptions", served, refused, c.metric("vllm:num_preemptions_total"))
			client.CloseIdleConnections()
			c.quiet()
			if bad := c.metric("kvferry:kv_blocks_bad_total"); bad != 0 {
				t.Errorf("%v bad blocks", bad)
			}
			for _, p := range c.Processes() {
				// The connections for metrics and between nodes come and go.
				c.poll(fmt.Sprintf("%s to have %d files open again", p.Name, before[p.Name]), func() bool {
					c.http.CloseIdleConnections()
					return descriptors(t, p) <= before[p.Name]
				})
			}
		})
	}
}

// TestBadRequests: the error names the field, and the next request is served.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	// A pool of 40 blocks, 640 tokens, and a model of 1,000.
	c := start(t, Spec{Prefill: 1, Decode: 1, Profile: profile(t, cost{MaxLen: 1000}), Node: node.Config{KVBlocks: 40}})
	p := func(n int) string { return strings.Trim(strings.ReplaceAll(fmt.Sprint(prompt(1, n)), " ", ","), "[]") }
	for _, bad := range []struct {
		name, body string
		status     int
		names      string // in the message
		param      string
	}{
		{"prompt longer than the pool", `{"prompt":[` + p(700) + `],"max_tokens":4,"ignore_eos":true}`, 400, "KV pool", ""},
		{"prompt and output longer than the pool", `{"prompt":[` + p(600) + `],"max_tokens":60,"ignore_eos":true}`, 400, "KV pool", ""},
		{"prompt longer than the model", `{"prompt":[` + p(1000) + `],"max_tokens":4}`, 400, "max_model_len", "prompt"},
		{"output longer than the model", `{"prompt":[` + p(500) + `],"max_tokens":501}`, 400, "max_model_len", "max_tokens"},
		{"malformed JSON", `{"prompt":[1,2,3,"max_tokens":4}`, 400, "malformed JSON at line 1", ""},
		{"no body", ``, 400, "body is empty", ""},
		{"negative max_tokens", `{"prompt":[1,2,3],"max_tokens":-1}`, 400, "max_tokens", "max_tokens"},
		{"max_tokens of the wrong type", `{"prompt":[1,2,3],"max_tokens":"many"}`, 400, "max_tokens", "max_tokens"},
		{"unknown model", `{"model":"gpt-5","prompt":[1,2,3]}`, 404, "gpt-5", "model"},
		{"token outside the vocabulary", `{"prompt":[1,2,151936]}`, 400, "prompt[2]", "prompt[2]"},
		{"empty prompt", `{"prompt":[]}`, 400, "prompt", "prompt"},
		{"no prompt", `{"max_tokens":4}`, 400, "prompt", "prompt"},
	} {
		t.Run(bad.name, func(t *testing.T) {
			resp, err := c.http.Post(c.URL()+"/v1/completions", "application/json", strings.NewReader(bad.body))
			if err != nil {
				t.Fatal(err)
			}
			s := &stream{t: t, resp: resp}
			s.r.Status, s.in = resp.StatusCode, bufio.NewReader(resp.Body)
			r := s.rest()
			if r.Status != bad.status || !strings.Contains(r.Err.Message, bad.names) || r.Err.Param != bad.param || r.Err.Type != "invalid_request_error" {
				t.Errorf("%v: want %d, a message with %q and param %q", r, bad.status, bad.names, bad.param)
			}
		})
	}
	c.quiet()
	c.do(call{Prompt: prompt(1, 600), MaxTokens: 40}).expect(t, 40) // exactly the pool
}

// TestBadConfig: what is wrong is said by field, before anything is started or by the child
// that cannot, and the cluster is cleaned up.
func TestBadConfig(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte(`{"name":"x","vocab":0}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	left, known := kvcache.Available() // a pool of three quarters of it fits once
	blocks := int(left/4*3/int64(p.KVGeometry.SlotBytes())) + 1
	for _, bad := range []struct {
		cfg  Spec
		want string
	}{
		{Spec{}, "Nondisagg: 0: with 0 prefill and 0 decode nodes, nothing is served"},
		{Spec{Prefill: 1}, "Nondisagg: 0: with 1 prefill"},
		{Spec{Prefill: -1, Decode: 1}, "Prefill: -1: use 0 or more"},
		{Spec{Nondisagg: 1, Profile: broken}, "vocab: 0: use 1 or more"},
		{Spec{Nondisagg: 1, Profile: "h800"}, "h800"},
		{Spec{Prefill: 1, Decode: 1, Proxy: proxy.Config{Handoff: "drop"}}, `Handoff: "drop": use one of`},
		{Spec{Prefill: 1, Decode: 1, Node: node.Config{Rails: []string{"tcp/nosuch0"}}}, `Rails[0]: "tcp/nosuch0": this machine has no interface`},
		{Spec{Nondisagg: 1, Node: node.Config{KVBlocks: 1 << 40}}, "KVBlocks: 1099511627776: use 1 to"},
		{Spec{Prefill: 1, Decode: 1, Node: node.Config{KVBlocks: blocks, WarmBytes: 1 << 60}}, "WarmBytes: 1099511627776: 2 nodes"},
		{Spec{Prefill: 1, Decode: 1, Link: "rate=fast"}, `Link: "rate=fast": rate: "fast": no unit`},
	} {
		if bad.cfg.Node.WarmBytes > 0 && !known {
			continue // not refused where the system does not say what it has
		}
		c, err := Start(ctx, bad.cfg)
		if err == nil {
			_ = c.Close()
			t.Errorf("%+v: no error", bad.cfg)
			continue
		}
		var invalid *config.Invalid
		if !strings.Contains(err.Error(), bad.want) || !errors.As(err, &invalid) {
			t.Errorf("%+v: %v: want it to name %q", bad.cfg, err, bad.want)
		}
	}
}

// TestFitWarm: what is too much for this machine becomes what it has room for; what is not, stays.
func TestFitWarm(t *testing.T) {
	left, known := kvcache.Available()
	if !known {
		t.Skip("this system does not say how much memory is left")
	}
	p, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	c := Spec{Prefill: 1, Decode: 2, Node: node.Config{KVBlocks: int(left/4*3/int64(p.KVGeometry.SlotBytes())) + 1, WarmBytes: 1 << 60}}
	if err := c.Validate(); err == nil {
		t.Fatal("three nodes with three quarters of the memory each are taken")
	}
	if fit := c.FitWarm(); fit < 1 || int64(fit) > left/3 {
		t.Errorf("%d MiB each for three nodes, of %d that are left", fit>>20, left>>20)
	} else if c.Node.WarmBytes = fit; c.Validate() != nil {
		t.Errorf("%d MiB: %v", fit>>20, c.Validate())
	}
	for _, c := range []Spec{
		{Prefill: 1, Decode: 1, Node: node.Config{WarmBytes: 1 << 20}},
		{Prefill: 1, Decode: 1, Node: node.Config{KVBlocks: 4, WarmBytes: 1 << 60}}, // a pool that is smaller
		{Nondisagg: 1, Node: node.Config{WarmBytes: 1 << 60}},                       // which has none in memory beforehand
	} {
		if fit := c.FitWarm(); fit != c.Node.WarmBytes {
			t.Errorf("%+v: %d MiB", c, fit>>20)
		}
	}
}

// TestKilledBySomebody: of a node that ended by SIGKILL the cluster says what that may have
// been, and what takes less memory.
func TestKilledBySomebody(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := Start(ctx, Spec{Nondisagg: 1, Profile: "zero", StopTimeout: patience, Node: node.Config{KVBlocks: 64}})
	if err != nil {
		t.Fatal(err)
	}
	p := c.Process("nondisagg-0")
	if err := syscall.Kill(p.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if err := c.Close(); err == nil || !strings.Contains(err.Error(), "nondisagg-0 ended by itself: signal: killed: ") || !strings.Contains(err.Error(), "memory ran out: fewer KV blocks (--kv-blocks)") {
		t.Error(err)
	}
}
