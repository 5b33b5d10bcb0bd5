package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/placement"
	"kvferry/proxy/serverinfo"
	"kvferry/proxy/upstream"
)

// TestEnginesPass: a prefill engine is asked for one token, as vLLM's own proxies ask it, and a decode
// engine gets the client's request with what the first has answered. The client gets the second's bytes.
func TestEnginesPass(t *testing.T) {
	for name, tc := range map[string]struct{ path, body, prefill, decode string }{
		"completion": {
			"/v1/completions", `{"prompt":"hi there","max_tokens":3,"temperature":0}`,
			`{"prompt":"hi there","max_tokens":1,"min_tokens":1,"stream":false,"temperature":0,"kv_transfer_params":<remote>}`,
			`{"prompt":"hi there","max_tokens":3,"temperature":0,"kv_transfer_params":<offer>}`,
		},
		"completion stream": {
			"/v1/completions", `{"prompt":[1,2,3],"max_tokens":3,"min_tokens":2,"stream":true,"stream_options":{"include_usage":true}}`,
			`{"prompt":[1,2,3],"max_tokens":1,"min_tokens":1,"stream":false,"kv_transfer_params":<remote>}`,
			`{"prompt":[1,2,3],"max_tokens":3,"min_tokens":2,"stream":true,"stream_options":{"include_usage":true},"kv_transfer_params":<offer>}`,
		},
		"chat stream": {
			"/v1/chat/completions", `{"model":"org/real","messages":[{"role":"user","content":"hi"}],"max_completion_tokens":3,"stream":true,"timeout":30}`,
			`{"model":"org/real","messages":[{"role":"user","content":"hi"}],"max_completion_tokens":1,"max_tokens":1,"min_tokens":1,"stream":false,"kv_transfer_params":<remote>}`,
			`{"model":"org/real","messages":[{"role":"user","content":"hi"}],"max_completion_tokens":3,"stream":true,"kv_transfer_params":<offer>}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, d := newFakeEngine(t), newFakeEngine(t)
			c := newTestPair(t, Config{}, p, d)
			resp, text := c.ask(http.MethodPost, tc.path, tc.body, "Authorization: Bearer key", "X-Request-Id: req-1", "Cookie: secret")
			if resp.StatusCode != http.StatusOK || text != d.answered() {
				t.Fatalf("%d %s, want the decode engine's bytes\n%s", resp.StatusCode, text, d.answered())
			}
			remote := `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`
			for of, want := range map[*fakeEngine]string{p: tc.prefill, d: tc.decode} {
				want = strings.NewReplacer("<remote>", remote, "<offer>", fakeOffer).Replace(want)
				got := of.requests()
				if len(got) != 1 || !sameJSON(t, got[0].text, want) {
					t.Fatalf("got %d requests: %v, want\n%s", len(got), got, want)
				}
				h := got[0].header
				if id := h.Get("X-Request-Id"); !strings.HasPrefix(id, "req-1-") || id != p.requests()[0].header.Get("X-Request-Id") || h.Get("Authorization") != "Bearer key" || h.Get("Cookie") != "" || h.Get("Content-Type") != "application/json" {
					t.Errorf("headers %v", h)
				}
			}
		})
	}
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal([]byte(a), &x); err != nil {
		t.Fatalf("%s: %v", a, err)
	}
	if err := json.Unmarshal([]byte(b), &y); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return fmt.Sprint(x) == fmt.Sprint(y)
}

// TestEnginesAlone: one that serves alone gets the client's own bytes. It also serves while a pair is
// not up.
func TestEnginesAlone(t *testing.T) {
	one, p, d := newFakeEngine(t), newFakeEngine(t), newFakeEngine(t)
	d.ill.Store(true)
	c := newTestEngines(t, Config{}, upstream.URLs{Both: urls(one)})
	body := `{ "stream":true, "prompt":["a","b"],"max_tokens":2 }`
	if status, text, err := c.post("/v1/completions", body); status != 200 || err != nil || text != one.answered() || one.requests()[0].text != body {
		t.Errorf("%d %v %s; it got %v", status, err, text, one.requests())
	}
	c = newTestCluster(t, Config{Upstreams: upstream.URLs{Prefill: urls(p), Decode: urls(d), Both: urls(one)}, LeaseTTL: 60 * time.Millisecond})
	if status, text, _ := c.post("/v1/completions", `{"prompt":"x","max_tokens":2}`); status != 200 || len(one.requests()) != 2 || len(p.requests()) != 0 {
		t.Errorf("without a decode engine: %d %s", status, text)
	}
}

// TestEnginesOneSequence: kv_transfer_params are of one sequence. Several prompts or answers, and a
// prompt whose KV nobody offers, the decode engine computes itself: with the parameters it would
// take one prompt's KV for another's.
func TestEnginesOneSequence(t *testing.T) {
	for name, tc := range map[string]struct {
		path, body, fault string
		prefills          int
	}{
		"two prompts":    {"/v1/completions", `{"prompt":["a","b"],"max_tokens":2}`, "", 0},
		"two of ids":     {"/v1/completions", `{"prompt":[[1],[2]],"max_tokens":2}`, "", 0},
		"two answers":    {"/v1/completions", `{"prompt":"a","n":2,"max_tokens":2}`, "", 0},
		"another Prompt": {"/v1/completions", `{"prompt":["a","b"],"Prompt":"a","max_tokens":2}`, "", 0},
		"the best one":   {"/v1/completions", `{"prompt":"a","best_of":2,"max_tokens":2}`, "", 0},
		"two in chat":    {"/v1/chat/completions", `{"messages":[],"n":2,"max_tokens":2}`, "", 0},
		"the prompt":     {"/v1/completions", `{"prompt":"a","echo":true,"logprobs":1,"max_tokens":2}`, "", 0},
		"its logprobs":   {"/v1/chat/completions", `{"messages":[],"prompt_logprobs":1,"max_tokens":2}`, "", 0},
		"no offer":       {"/v1/completions", `{"prompt":"a","n":1,"max_tokens":2}`, "no offer", 1},
	} {
		t.Run(name, func(t *testing.T) {
			p, d := newFakeEngine(t, tc.fault), newFakeEngine(t)
			c := newTestPair(t, Config{}, p, d)
			if status, text, err := c.post(tc.path, tc.body); status != 200 || err != nil {
				t.Fatalf("%d %s %v", status, text, err)
			}
			if len(p.requests()) != tc.prefills || len(d.requests()) != 1 || d.requests()[0].text != tc.body {
				t.Errorf("prefill was asked %d times, decode got %v", len(p.requests()), d.requests())
			}
		})
	}
}

// TestEnginesRefuse: what is wrong with a request is said by who knows.
func TestEnginesRefuse(t *testing.T) {
	p, d := newFakeEngine(t), newFakeEngine(t)
	c := newTestPair(t, Config{MaxBodyBytes: 1000}, p, d)
	for _, tc := range []struct {
		body   string
		status int
		want   string
	}{
		{`{"prompt":`, 400, "malformed JSON"},
		{`{"prompt":"x","timeout":0}`, 400, "timeout: 0: want seconds"},
		{`{"prompt":"x","kv_transfer_params":{"do_remote_decode":true}}`, 400, "kv_transfer_params: this proxy makes them"},
		{`{"prompt":"x","timeout":"soon"}`, 400, "timeout: \\\"soon\\\": want seconds"},
		{`{"prompt":"` + strings.Repeat("x", 1000) + `"}`, 413, "--max-body"},
	} {
		if status, text, _ := c.post("/v1/completions", tc.body); status != tc.status || !strings.Contains(text, tc.want) {
			t.Errorf("%s: %d %s", tc.body[:20], status, text)
		}
	}
	if len(p.requests())+len(d.requests()) > 0 {
		t.Error("an engine was asked all the same")
	}
	if status, text := c.get("/generate"); status != 404 || !strings.Contains(text, "no such endpoint") {
		t.Errorf("%d %s", status, text)
	}
}

// TestEnginesSay: what the proxy says of itself, and what it leaves to an engine.
func TestEnginesSay(t *testing.T) {
	p, d := newFakeEngine(t), newFakeEngine(t)
	c := newTestPair(t, Config{LeaseTTL: time.Minute}, p, d)
	var info serverinfo.Server
	_, text := c.get("/server_info")
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		t.Fatal(err)
	}
	k := info.Kvferry
	if k.Compute != "measured" || k.Serving != ModeDisagg || k.Handoff != "connector" || k.Model != "org/real" || k.MaxModelLen != 4096 || len(k.Nodes) != 2 || k.EOS != "" {
		t.Errorf("%s", text)
	}
	c.poll("an engine's adapters", func() bool {
		n := c.serverInfo().Nodes[1]
		return slices.Equal(n.Adapters, []string{"sql"}) && n.MaxLoRAs == 4
	})
	if n := k.Nodes[1]; n.URL != d.URL || n.ID != strings.TrimPrefix(d.URL, "http://") || n.Role != "decode" || !n.Up {
		t.Errorf("%+v", n)
	}
	if status, text := c.get("/v1/models"); status != 200 || !strings.Contains(text, `"owned_by": "vllm"`) {
		t.Errorf("%d %s", status, text)
	}
	if status, text, _ := c.post("/tokenize", `{"prompt":"x"}`); status != 200 || text != `{"count": 14}` {
		t.Errorf("%d %s", status, text)
	}
	if status, text, _ := c.post("/v1/completions", `{"prompt":"hi there","max_tokens":3,"stream":true}`); status != 200 {
		t.Fatal(text)
	}
	c.waitInFlight(0)
	_, text = c.get("/metrics")
	for _, line := range []string{
		`kvferry:nodes{role="decode"} 1`,
		`vllm:engine_sleep_state{engine="` + k.Nodes[0].ID + `",model_name="org/real",sleep_state="awake"} 1`,
		`vllm:request_success_total{engine="0",finished_reason="length",model_name="org/real"} 1`,
		`vllm:prompt_tokens_total{engine="0",model_name="org/real"} 5`,
		`vllm:generation_tokens_total{engine="0",model_name="org/real"} 3`,
		`vllm:time_to_first_token_seconds_count{engine="0",model_name="org/real"} 1`,
		`vllm:inter_token_latency_seconds_count{engine="0",model_name="org/real"} 2`,
		`kvferry:request_stage_seconds_count{model_name="org/real",stage="prefill"} 1`,
		`kvferry:request_stage_seconds_count{model_name="org/real",stage="first_decode"} 1`,
		`kvferry:request_stage_seconds_count{model_name="org/real",stage="queue"} 0`, // nobody has said
		`kvferry:request_stage_seconds_count{model_name="org/real",stage="wire"} 0`,
		`vllm:request_queue_time_seconds_count{engine="0",model_name="org/real"} 0`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
	if strings.Contains(text, "\nvllm:kv_cache_usage_perc{") {
		t.Error("the proxy says how full an engine's cache is, and does not know")
	}
}

// TestEnginesCount: the event that opens a chat has no token, and KV that came from the prefill engine was
// in no prefix cache, whatever the decode engine counts.
func TestEnginesCount(t *testing.T) {
	p, d := newFakeEngine(t), newFakeEngine(t)
	p.cached, d.cached = 2, 4
	logs := &clocktest.Log{}
	c := newTestEngines(t, Config{Logger: slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug}))}, upstream.URLs{Prefill: urls(p), Decode: urls(d)})
	if status, text, err := c.post("/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"max_tokens":3,"stream":true}`); status != 200 || err != nil || text != d.answered() {
		t.Fatalf("%d %v %s", status, err, text)
	}
	if status, text, err := c.post("/v1/completions", `{"prompt":"hi","max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}`); status != 200 || err != nil {
		t.Fatalf("%d %v %s", status, err, text)
	}
	c.waitInFlight(0)
	_, text := c.get("/metrics")
	for _, line := range []string{
		`vllm:prompt_tokens_cached_total{engine="0",model_name="org/real"} 4`,
		`vllm:generation_tokens_total{engine="0",model_name="org/real"} 6`,
		`vllm:inter_token_latency_seconds_count{engine="0",model_name="org/real"} 4`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
	if n := strings.Count(logs.String(), "prompt=5 tokens=3"); n != 2 {
		t.Errorf("%d of 2 lines have the engines' counts:\n%s", n, logs)
	}
}

// TestEnginesBreakdown: what nobody has said of a request is null, and never 0.
func TestEnginesBreakdown(t *testing.T) {
	const unknown = `"post_us":null,"wire_us":null,"land_us":null,`
	said := `, "kv_transfer_params": {"kvferry": {"post_us": 1, "wire_us": 2, "land_us": 3, "kv_bytes": 4096, "kv_blocks_checked": 7, "kv_blocks_bad": 0}}`
	for name, tc := range map[string]struct {
		stream bool
		says   string
		alone  bool
		want   []string
	}{
		"nothing is said": {true, "", false, []string{`"queue_us":null,"prefill_us":`, unknown, `"kv_bytes":null,"kv_blocks_checked":null,"kv_blocks_bad":null,`, `"retries":0}`}},
		"connector":       {true, said, false, []string{`"post_us":1,"wire_us":2,"land_us":3,"first_decode_us":`, `"kv_bytes":4096,"kv_blocks_checked":7,"kv_blocks_bad":0,`}},
		"whole":           {false, "", false, []string{unknown + `"first_decode_us":null,`}},
		"whole, said":     {false, said, false, []string{`"wire_us":2,`, `"first_decode_us":null,`, `"kv_bytes":4096,`}},
		"alone":           {true, "", true, []string{`"queue_us":null,"prefill_us":`, `"post_us":0,"wire_us":0,"land_us":0,"first_decode_us":0,"kv_bytes":0,`}},
		"alone, whole":    {false, "", true, []string{`"queue_us":null,"prefill_us":null,`}},
	} {
		t.Run(name, func(t *testing.T) {
			p, d := newFakeEngine(t), newFakeEngine(t)
			d.says = tc.says
			engines := upstream.URLs{Prefill: urls(p), Decode: urls(d)}
			if tc.alone {
				engines = upstream.URLs{Both: urls(d)}
			}
			c := newTestEngines(t, Config{}, engines)
			status, text, err := c.post("/v1/completions", fmt.Sprintf(`{"prompt":"hi there","max_tokens":3,"stream":%v,"return_breakdown":true}`, tc.stream))
			if status != 200 || err != nil {
				t.Fatalf("%d %s %v", status, text, err)
			}
			for _, want := range append(tc.want, `"decode_node":"`+strings.TrimPrefix(d.URL, "http://")+`"`) {
				if !strings.Contains(text, want) {
					t.Errorf("no %s in\n%s", want, text)
				}
			}
			if tc.stream && !strings.HasSuffix(text, "data: [DONE]\n\n") || !tc.stream && !json.Valid([]byte(text)) {
				t.Errorf("it ends with %q", text[len(text)-20:])
			}
			if _, asked := d.requests()[0].fields["return_breakdown"]; asked {
				t.Error("an engine got this proxy's own field")
			}
		})
	}
}

// TestEnginesPlacement: equal prompts go where they were before, others to whom has less to do.
func TestEnginesPlacement(t *testing.T) {
	a, b := newFakeEngine(t), newFakeEngine(t)
	c := newTestEngines(t, Config{Placement: placement.PrefixAware}, upstream.URLs{Both: urls(a, b)})
	prompt := strings.Repeat("to be or not to be ", 40)
	for range 6 {
		if status, text, _ := c.post("/v1/completions", `{"prompt":"`+prompt+`","max_tokens":1}`); status != 200 {
			t.Fatal(text)
		}
	}
	if x, y := len(a.requests()), len(b.requests()); max(x, y) != 6 {
		t.Errorf("%d and %d of 6 requests with one prompt", x, y)
	}
	a, b = newFakeEngine(t), newFakeEngine(t)
	c = newTestEngines(t, Config{Placement: placement.RoundRobin}, upstream.URLs{Both: urls(a, b)})
	for range 6 {
		c.post("/v1/completions", `{"prompt":"x","max_tokens":1}`)
	}
	if x, y := len(a.requests()), len(b.requests()); x != 3 || y != 3 {
		t.Errorf("%d and %d of 6 requests in turn", x, y)
	}
}

// TestEnginesNames: a request has a name of its own at the engines, also where two clients have the same.
func TestEnginesNames(t *testing.T) {
	p, d := newFakeEngine(t), newFakeEngine(t)
	c := newTestPair(t, Config{}, p, d)
	seen := make(map[string]bool)
	for range 3 {
		if status, text, _ := c.post("/v1/completions", `{"prompt":"x","max_tokens":1}`); status != 200 {
			t.Fatal(text)
		}
	}
	for i, q := range p.requests() {
		id := q.header.Get("X-Request-Id")
		if seen[id] || d.requests()[i].header.Get("X-Request-Id") != id {
			t.Errorf("request %d is called %s", i, id)
		}
		seen[id] = true
	}
}

// TestEnginesWhole: nobody says when an answer begins that does not stream. Its request runs once an engine
// has it: the time that it decodes for is no wait for others.
func TestEnginesWhole(t *testing.T) {
	p, d := newFakeEngine(t), newFakeEngine(t, "", "stall")
	c := newTestPair(t, Config{MaxQueue: 1, MaxQueueTime: time.Nanosecond}, p, d)
	ask := func(ctx context.Context, done chan<- error) {
		resp, err := c.client.Do(c.request(ctx, "/v1/completions", `{"prompt":"x"}`))
		if err == nil {
			resp.Body.Close()
		}
		done <- err
	}
	done := make(chan error, 1)
	ask(t.Context(), done) // the backlogs have a rate
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go ask(ctx, done)
	clocktest.Until(t, "the decode engine has it", func() bool { return len(d.requests()) == 2 })
	if waiting, running := c.proxy.Requests(); waiting != 0 || running != 1 {
		t.Errorf("%d wait, %d run", waiting, running)
	}
	if status, text, _ := c.post("/v1/completions", `{"prompt":"x"}`); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	cancel()
	if err := clocktest.Receive(t, done, "the end of the request"); err == nil {
		t.Error("a request that stalls was answered")
	}
}

// TestEnginesBodies: what a request keeps of its body until it has ended is counted for as long.
func TestEnginesBodies(t *testing.T) {
	one := newFakeEngine(t, "stall")
	c := newTestEngines(t, Config{}, upstream.URLs{Both: urls(one)})
	all := func() error { // all that bodies of this size can have
		errTaken := errors.New("it is taken")
		hold, err := c.proxy.bodies.Take(t.Context(), time.Millisecond, errTaken, netip.Addr{}, 24<<20, func() {})
		if err == nil {
			hold.Release()
		}
		return err
	}
	if err := all(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if resp, err := c.client.Do(c.request(ctx, "/v1/completions", `{"prompt":"x"}`)); err == nil {
			resp.Body.Close()
		}
	}()
	clocktest.Until(t, "the engine has it", func() bool { return len(one.requests()) == 1 })
	if all() == nil {
		t.Error("a request that runs counts as if it kept nothing")
	}
	cancel()
	<-ended
	clocktest.Until(t, "it is free again", func() bool { return all() == nil })
}

// TestEnginesPassOn: what generates nothing is asked of the next engine where one fails it, and ends by its
// deadline.
func TestEnginesPassOn(t *testing.T) {
	a, b := newFakeEngine(t), newFakeEngine(t)
	c := newTestEngines(t, Config{LeaseTTL: time.Minute}, upstream.URLs{Both: urls(a, b)})
	a.broken.Store("500")
	if status, text, _ := c.post("/tokenize", `{"prompt":"x"}`); status != 200 {
		t.Errorf("one that says 500: %d %s", status, text)
	}
	b.broken.Store("400")
	if status, text, _ := c.post("/tokenize", `{"prompt":"x"}`); status != 400 || text != "scripted 400" {
		t.Errorf("one that refuses: %d %s", status, text)
	}
	b.broken.Store("")
	a.Close()
	if status, text := c.get("/v1/models"); status != 200 {
		t.Errorf("one that is not there: %d %s", status, text)
	}
	b.broken.Store("stall")
	c = newTestEngines(t, Config{LeaseTTL: time.Minute}, upstream.URLs{Both: urls(b)}, func(p *Proxy) { p.timeouts.answer = 200 * time.Millisecond })
	if status, text, _ := c.post("/tokenize", `{"prompt":"x"}`); status != 504 || !strings.Contains(text, "the engine had 200ms to answer") {
		t.Errorf("one that stalls: %d %s", status, text)
	}
}

// TestEnginesQueue: requests that no engine has begun to answer wait, and one more than may is
// refused.
func TestEnginesQueue(t *testing.T) {
	one := newFakeEngine(t, "stall first")
	c := newTestEngines(t, Config{MaxQueue: 1}, upstream.URLs{Both: urls(one)})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		resp, err := c.client.Do(c.request(ctx, "/v1/completions", `{"prompt":"x","stream":true}`))
		if err == nil {
			resp.Body.Close()
		}
		answered <- err
	}()
	clocktest.Until(t, "the request waits", func() bool {
		waiting, _ := c.proxy.Requests()
		return waiting == 1 && len(one.requests()) == 1
	})
	clocktest.Until(t, "a wait is expected", func() bool {
		c.proxy.mu.Lock()
		defer c.proxy.mu.Unlock()
		return c.proxy.expectedWait() > 0
	})
	if status, text, _ := c.post("/v1/completions", `{"prompt":"x"}`); status != 429 || !strings.Contains(text, "--max-queue") {
		t.Errorf("%d %s", status, text)
	}
	cancel()
	if err := clocktest.Receive(t, answered, "the end of the request"); err == nil {
		t.Error("a request that stalls was answered")
	}
	clocktest.Receive(t, one.gone, "the end of it at the engine")
	c.waitInFlight(0)
	if status, text, _ := c.post("/v1/completions", `{"prompt":"x"}`); status != 200 {
		t.Errorf("afterwards: %d %s", status, text)
	}
}
