package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kvferry/handoff"
	"kvferry/internal/clock/clocktest"
	"kvferry/placement"
	"kvferry/proto"
)

var helloPrompt = testTokenizer.Encode("hi there")

// golden replaces what differs from run to run.
func golden(s string) string {
	s = regexp.MustCompile(`"created":\d+`).ReplaceAllString(s, `"created":0`)
	s = regexp.MustCompile(`"proxy_own_us":\d+,`).ReplaceAllString(s, "")
	return regexp.MustCompile(`"proxy_us":\d+`).ReplaceAllString(s, `"proxy_us":0`)
}

func compare(t *testing.T, got, want string) {
	t.Helper()
	got = golden(got)
	for i, tok := range fakeTokens(helloPrompt, 3) {
		want = strings.ReplaceAll(want, fmt.Sprintf("<%d>", i), testTokenizer.Decode([]uint32{tok}))
	}
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestAnswers(t *testing.T) {
	const (
		open     = `{"id":"cmpl-req-1","object":"text_completion","created":0,"model":"test-model","choices":[`
		rest     = `"logprobs":null,"finish_reason":null,"stop_reason":null}]`
		last     = `"logprobs":null,"finish_reason":"length","stop_reason":null}]`
		chatOpen = `{"id":"chatcmpl-req-1","object":"chat.completion.chunk","created":0,"model":"test-model","choices":[{"index":0,"delta":`
		chatRest = `,"logprobs":null,"finish_reason":null}],"usage":null}`
	)
	for _, tc := range []struct{ name, path, body, want string }{
		{
			"completion", "/v1/completions", `{"prompt":"hi there","max_tokens":3}`,
			open + `{"index":0,"text":"<0><1><2>",` + last + `,"usage":{"prompt_tokens":2,"total_tokens":5,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":1}}}`,
		},
		{
			"completion stream", "/v1/completions", `{"model":"test-model","prompt":"hi there","max_tokens":3,"stream":true,"best_of":1,"temperature":0.0,"ignore_eos":true}`,
			"data: " + open + `{"index":0,"text":"<0>",` + rest + ",\"usage\":null}\n\n" +
				"data: " + open + `{"index":0,"text":"<1>",` + rest + ",\"usage\":null}\n\n" +
				"data: " + open + `{"index":0,"text":"<2>",` + last + ",\"usage\":null}\n\n" +
				"data: [DONE]\n\n",
		},
		{
			"completion stream with usage", "/v1/completions", `{"prompt":["hi there"],"max_tokens":2,"logprobs":null,"repetition_penalty":1.0,"stream":true,"stream_options":{"include_usage":true}}`,
			"data: " + open + `{"index":0,"text":"<0>",` + rest + ",\"usage\":null}\n\n" +
				"data: " + open + `{"index":0,"text":"<1>",` + last + ",\"usage\":null}\n\n" +
				"data: " + open + `],"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}` + "\n\n" +
				"data: [DONE]\n\n",
		},
		{
			"continuous usage", "/v1/completions", `{"prompt":"hi there","max_tokens":2,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`,
			"data: " + open + `{"index":0,"text":"<0>",` + rest + `,"usage":{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1,"prompt_tokens_details":null}}` + "\n\n" +
				"data: " + open + `{"index":0,"text":"<1>",` + last + `,"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2,"prompt_tokens_details":null}}` + "\n\n" +
				"data: " + open + `],"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}` + "\n\n" +
				"data: [DONE]\n\n",
		},
		{
			"breakdown", "/v1/completions", `{"prompt":"hi there","max_tokens":2,"return_breakdown":true}`,
			open + `{"index":0,"text":"<0><1>",` + last + `,"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}},` +
				`"breakdown":{"proxy_us":0,"queue_us":11,"prefill_us":200,"post_us":3,"wire_us":40,"land_us":5,"first_decode_us":60,"kv_bytes":1048576,"kv_blocks_checked":7,"kv_blocks_bad":0,"prefill_node":"prefill-1","decode_node":"decode-1","retries":0}}`,
		},
		{
			"chat", "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"max_tokens":2}`,
			`{"id":"chatcmpl-req-1","object":"chat.completion","created":0,"model":"test-model","choices":[{"index":0,"message":{"role":"assistant","content":"<c0><c1>"},` + last + `,"usage":{"prompt_tokens":11,"total_tokens":13,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}`,
		},
		{
			"chat stream", "/v1/chat/completions", `{"model":"test-model","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"max_completion_tokens":2,"stream":true}`,
			"data: " + chatOpen + `{"role":"assistant","content":""}` + chatRest + "\n\n" +
				"data: " + chatOpen + `{"content":"<c0>"}` + chatRest + "\n\n" +
				"data: " + chatOpen + `{"content":"<c1>"},"logprobs":null,"finish_reason":"length"}],"usage":null}` + "\n\n" +
				"data: [DONE]\n\n",
		},
	} {
		for i, tok := range fakeTokens(helloChat, 2) {
			tc.want = strings.ReplaceAll(tc.want, fmt.Sprintf("<c%d>", i), testTokenizer.Decode([]uint32{tok}))
		}
		for _, hand := range handoff.Names() {
			t.Run(tc.name+"/"+hand, func(t *testing.T) {
				c := newTestCluster(t, Config{Handoff: hand})
				c.addPair()
				status, body, err := c.post(tc.path, tc.body)
				if status != http.StatusOK || err != nil {
					t.Fatalf("%d %s %v", status, body, err)
				}
				compare(t, body, tc.want)
			})
		}
	}
}

func TestHeaders(t *testing.T) {
	c := newTestCluster(t, Config{})
	c.addPair()
	for body, contentType := range map[string]string{
		`{"prompt":"x","stream":true}`: "text/event-stream; charset=utf-8",
		`{"prompt":"x"}`:               "application/json",
		`{"prompt":""}`:                "application/json",
	} {
		r := c.request(context.Background(), "/v1/completions", body)
		r.Header.Set("Accept-Encoding", "gzip")
		resp, err := c.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		readAll(t, resp)
		resp.Body.Close()
		h := resp.Header
		if h.Get("Content-Type") != contentType || h.Get("X-Request-Id") != "req-1" || h.Get("Content-Encoding") != "" {
			t.Errorf("%s: %v", body, h)
		}
	}
}

// TestLegs checks what each node is asked for.
func TestLegs(t *testing.T) {
	for _, tc := range []struct {
		handoff   string
		maxTokens int
		prefill   string
		decode    string
	}{
		{handoff.V0.Name, 3, "PREFILL v0 max=1 kv=", "DECODE v0 max=3 kv=prefill-1"},
		{handoff.Pull.Name, 3, "PREFILL pull max=1 kv=", "DECODE pull max=3 kv=prefill-1"},
		{handoff.Layerwise.Name, 3, "PREFILL layerwise max=1 kv=decode-1", "DECODE layerwise max=3 kv="},
		{handoff.Pull.Name, 1, "PREFILL  max=1 kv=", ""},
		{handoff.Layerwise.Name, 1, "PREFILL  max=1 kv=", ""},
	} {
		t.Run(fmt.Sprintf("%s/%d", tc.handoff, tc.maxTokens), func(t *testing.T) {
			c := newTestCluster(t, Config{Handoff: tc.handoff})
			p, d := c.addPair()
			status, body, _ := c.post("/v1/completions", fmt.Sprintf(`{"prompt":[7,8,9],"max_tokens":%d,"stream":true,"timeout":5}`, tc.maxTokens))
			if want := testTokenizer.Decode(fakeTokens([]uint32{7, 8, 9}, tc.maxTokens)); status != 200 || streamText(t, body) != want {
				t.Fatalf("%d %s, want the text %q", status, body, want)
			}
			check := func(n *fakeNode, want string) {
				if want == "" {
					select {
					case s := <-n.submits:
						t.Errorf("%s got %v", n.info.Id, s)
					default:
					}
					return
				}
				s := clocktest.Receive(t, n.submits, n.info.Id+"'s submit")
				got := fmt.Sprintf("%s %s max=%d kv=%s", strings.TrimPrefix(s.Leg.String(), "LEG_"), s.Handoff, s.MaxTokens, s.Kv.GetNodeId())
				if got != want {
					t.Errorf("%s was asked for %q, want %q", n.info.Id, got, want)
				}
				if prompt := promptOf(s); !slices.Equal(prompt, []uint32{7, 8, 9}) || s.RequestId != "req-1" || s.Prior != 0 {
					t.Errorf("%s: prompt %v, request %q, prior %d", n.info.Id, prompt, s.RequestId, s.Prior)
				}
				if s.DeadlineMs == 0 || s.DeadlineMs > 5000 || s.AgeUs == 0 || s.AgeUs > 5e6 {
					t.Errorf("%s: deadline %d ms, age %d us", n.info.Id, s.DeadlineMs, s.AgeUs)
				}
			}
			check(p, tc.prefill)
			check(d, tc.decode)
		})
	}
}

func TestNondisagg(t *testing.T) {
	c := newTestCluster(t, Config{})
	n := c.addNode("both-1", proto.Role_ROLE_NONDISAGG, nil)
	status, body, err := c.post("/v1/completions", `{"prompt":"hi there","stream":true}`) // 16 tokens
	if status != 200 || err != nil {
		t.Fatalf("%d %v", status, err)
	}
	if got, want := streamText(t, body), testTokenizer.Decode(fakeTokens(helloPrompt, 16)); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if s := clocktest.Receive(t, n.submits, "submit"); s.Leg != proto.Leg_LEG_FULL || s.Handoff != "" {
		t.Errorf("submitted %v", s)
	}
}

// TestNodeStops: a node does not end an answer by itself, with a token or after it. The proxy knows
// where the answer ends.
func TestNodeStops(t *testing.T) {
	for _, together := range []bool{true, false} {
		c := newTestCluster(t, Config{Placement: placement.RoundRobin})
		c.addNode("both-1", proto.Role_ROLE_NONDISAGG, func(_ *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
			finished := []*proto.Finished{{Id: s.Id, Reason: proto.FinishReason_FINISH_STOP}}
			m := firstTokens(s, 0, 2)
			if together {
				m.Finished = finished
				send(m)
				return
			}
			send(m)
			send(&proto.FromNode{Finished: finished})
		})
		c.addNode("both-2", proto.Role_ROLE_NONDISAGG, nil)
		want := testTokenizer.Decode(fakeTokens(helloPrompt, 16))
		for range 2 {
			status, body, err := c.post("/v1/completions", `{"prompt":"hi there","stream":true}`)
			if status != 200 || err != nil || streamText(t, body) != want || strings.Count(body, `"finish_reason":"length"`) != 1 {
				t.Errorf("%d %v\n%s", status, err, body)
			}
		}
	}
}

func TestHealthAndModels(t *testing.T) {
	c := newTestCluster(t, Config{NodeWait: -1})
	status, body := c.get("/health")
	if message, _, code := errorOf(t, body); status != 503 || code != "no_node" || !strings.Contains(message, "prefill") {
		t.Errorf("%d %s", status, body)
	}
	if status, body := c.get("/v1/models"); status != 503 || !strings.Contains(body, `"no_node"`) {
		t.Errorf("%d %s: SGLang's client takes an empty list for ready", status, body)
	}
	c.addNode("prefill-1", proto.Role_ROLE_PREFILL, nil)
	if status, body = c.get("/health"); status != 503 || !strings.Contains(body, "a decode node is missing") {
		t.Errorf("%d %s", status, body)
	}
	if status, body, _ := c.post("/v1/completions", `{"prompt":"x"}`); status != 503 || !strings.Contains(body, "a decode node is missing") {
		t.Errorf("%d %s", status, body)
	}
	c.addNode("decode-1", proto.Role_ROLE_DECODE, nil)
	ctx, cancel := context.WithTimeout(context.Background(), clocktest.Patience)
	defer cancel()
	if err := c.proxy.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if status, body = c.get("/health"); status != 200 || body != "" {
		t.Errorf("%d %s", status, body)
	}
	var models struct {
		Data []struct {
			ID, Root    string
			MaxModelLen int `json:"max_model_len"`
		}
	}
	_, body = c.get("/v1/models")
	if err := json.Unmarshal([]byte(body), &models); err != nil || len(models.Data) != 1 ||
		models.Data[0].ID != testModel || models.Data[0].Root != testModel || models.Data[0].MaxModelLen != testMaxModelLen {
		t.Errorf("%s: %v", body, err)
	}
	for _, path := range []string{"/version", "/ping", "/server_info"} {
		if status, body := c.get(path); status != 200 {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, body := c.get("/v1/completions"); status != http.StatusMethodNotAllowed {
		t.Errorf("%d %s", status, body)
	}
	if status, body := c.get("/nowhere"); status != http.StatusNotFound {
		t.Errorf("%d %s", status, body)
	}
}

func TestTokenizeEndpoints(t *testing.T) {
	c := newTestCluster(t, Config{})
	c.addPair()
	var tokens struct {
		Tokens      []uint32
		Count       int
		MaxModelLen int `json:"max_model_len"`
	}
	status, body, _ := c.post("/tokenize", `{"model":"test-model","prompt":"hi there","add_special_tokens":false}`)
	if err := json.Unmarshal([]byte(body), &tokens); status != 200 || err != nil || !slices.Equal(tokens.Tokens, helloPrompt) || tokens.Count != 2 || tokens.MaxModelLen != testMaxModelLen {
		t.Errorf("%d %s", status, body)
	}
	status, body, _ = c.post("/detokenize", fmt.Sprintf(`{"tokens":[%d,%d]}`, helloPrompt[0], helloPrompt[1]))
	if want := fmt.Sprintf("{\"prompt\":%q}\n", testTokenizer.Decode(helloPrompt)); status != 200 || body != want {
		t.Errorf("%d %s, want %s", status, body, want)
	}
	if status, body, _ = c.post("/tokenize", `{"prompt":""}`); status != 200 || !strings.Contains(body, `"tokens":[]`) {
		t.Errorf("%d %s", status, body)
	}
	if status, body, _ = c.post("/detokenize", `{"tokens":"x"}`); status != 400 {
		t.Errorf("%d %s", status, body)
	}
}
