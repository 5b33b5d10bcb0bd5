package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kvferry/clock/clocktest"
	"kvferry/handoff"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/members"
	"kvferry/proxy/openai"
)

var testClusterInfo = members.Cluster{Model: testModel, BlockTokens: 16, Vocab: testVocab, MaxModelLen: testMaxModelLen}

// badRequests are what the API refuses, with the field and a word of the fix.
var badRequests = []struct {
	name, path, body string
	status           int
	param, contains  string
}{
	{"empty body", "/v1/completions", ``, 400, "", "empty"},
	{"no object", "/v1/completions", `[1]`, 400, "", "JSON object"},
	{"null", "/v1/completions", `null`, 400, "", "JSON object"},
	{"malformed JSON", "/v1/completions", "{\"prompt\": \"x\",\n \"max_tokens\": }", 400, "", "line 2, column 16"},
	{"cut JSON", "/v1/completions", `{"prompt":"x`, 400, "", "malformed JSON"},
	{"two objects", "/v1/completions", `{"prompt":"x"} {}`, 400, "", "malformed JSON"},
	{"negative max_tokens", "/v1/completions", `{"prompt":"x","max_tokens":-5}`, 400, "max_tokens", "at least 1"},
	{"zero max_tokens", "/v1/completions", `{"prompt":"x","max_tokens":0}`, 400, "max_tokens", "at least 1"},
	{"fractional max_tokens", "/v1/completions", `{"prompt":"x","max_tokens":1.5}`, 400, "max_tokens", "an integer"},
	{"huge max_tokens", "/v1/completions", `{"prompt":"x","max_tokens":99999999999999999999}`, 400, "max_tokens", "an integer"},
	{"zero max_completion_tokens", "/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"max_completion_tokens":0}`, 400, "max_completion_tokens", "at least 1"},
	{"beyond the context", "/v1/completions", `{"prompt":"x","max_tokens":1000}`, 400, "max_tokens", "max_model_len"},
	{"unknown model", "/v1/completions", `{"model":"gpt-9","prompt":"x"}`, 404, "model", "test-model"},
	{"no prompt", "/v1/completions", `{"max_tokens":3}`, 400, "prompt", "missing"},
	{"null prompt", "/v1/completions", `{"prompt":null}`, 400, "prompt", "missing"},
	{"empty prompt", "/v1/completions", `{"prompt":""}`, 400, "prompt", "at least one token"},
	{"empty ids", "/v1/completions", `{"prompt":[]}`, 400, "prompt", "at least one token"},
	{"number as prompt", "/v1/completions", `{"prompt":7}`, 400, "prompt", "string or a list"},
	{"object as prompt", "/v1/completions", `{"prompt":{}}`, 400, "prompt", "string or a list"},
	{"negative id", "/v1/completions", `{"prompt":[1,-2]}`, 400, "prompt[1]", "token id"},
	{"id outside the vocabulary", "/v1/completions", `{"prompt":[1,2,151936]}`, 400, "prompt[2]", "151935"},
	{"huge id", "/v1/completions", `{"prompt":[99999999999999999999]}`, 400, "prompt[0]", "token id"},
	{"fractional id", "/v1/completions", `{"prompt":[1,2.5]}`, 400, "prompt[1]", "token id"},
	{"mixed list", "/v1/completions", `{"prompt":[1,"a"]}`, 400, "prompt[1]", "token id"},
	{"nested list", "/v1/completions", `{"prompt":[[["a"]]]}`, 400, "prompt[0]", "token ids"},
	{"long prompt", "/v1/completions", `{"prompt":"` + strings.Repeat("word ", testMaxModelLen) + `"}`, 400, "prompt", "max_model_len"},
	{"long chat", "/v1/chat/completions", `{"messages":[{"role":"user","content":"` + strings.Repeat("word ", testMaxModelLen) + `"}]}`, 400, "messages", "max_model_len"},
	{"logprobs", "/v1/completions", `{"prompt":"x","logprobs":5}`, 400, "logprobs", "leave it out"},
	{"stream as string", "/v1/completions", `{"prompt":"x","stream":"yes"}`, 400, "stream", "true or false"},
	{"stream_options as list", "/v1/completions", `{"prompt":"x","stream_options":[]}`, 400, "stream_options", "an object"},
	{"include_usage as number", "/v1/completions", `{"prompt":"x","stream_options":{"include_usage":1}}`, 400, "stream_options.include_usage", "true or false"},
	{"model as number", "/v1/completions", `{"model":1,"prompt":"x"}`, 400, "model", "a string"},
	{"negative timeout", "/v1/completions", `{"prompt":"x","timeout":-1}`, 400, "timeout", "more than 0"},
	{"no messages", "/v1/chat/completions", `{"model":"test-model"}`, 400, "messages", "at least one"},
	{"empty messages", "/v1/chat/completions", `{"messages":[]}`, 400, "messages", "at least one"},
	{"messages as string", "/v1/chat/completions", `{"messages":"hi"}`, 400, "messages", "a list"},
	{"message without role", "/v1/chat/completions", `{"messages":[{"content":"hi"}]}`, 400, "messages[0].role", "missing"},
	{"content as number", "/v1/chat/completions", `{"messages":[{"role":"user","content":5}]}`, 400, "messages[0].content", "string or a list"},
	{"image", "/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}`, 400, "messages[0].content[0].type", "only text"},
	{"body too large", "/v1/completions", `{"prompt":"` + strings.Repeat("x", 1<<16) + `"}`, 413, "", "--max-body"},
}

func TestBadRequests(t *testing.T) {
	c := newTestCluster(t, Config{MaxBodyBytes: 1 << 16})
	c.addPair()
	for _, tc := range badRequests {
		for _, stream := range []string{`{"stream":true,`, `{`} {
			t.Run(tc.name, func(t *testing.T) {
				body := tc.body
				if strings.HasPrefix(body, "{") && !strings.Contains(body, "\n") {
					body = stream + body[1:]
				}
				status, answer, err := c.post(tc.path, body)
				message, param, _ := errorOf(t, answer)
				if status != tc.status || param != tc.param || !strings.Contains(message, tc.contains) || !strings.HasPrefix(message, param) || err != nil {
					t.Errorf("%d %s %v, want %d, field %q and %q", status, answer, err, tc.status, tc.param, tc.contains)
				}
			})
		}
	}
	if s, body, _ := c.post("/v1/completions", `{"prompt":"x"}`); s != 200 {
		t.Errorf("after all that: %d %s", s, body)
	}
}

func FuzzCompletionRequest(f *testing.F) { fuzzRequest(f, openai.Completion, "/v1/completions") }

func FuzzChatRequest(f *testing.F) { fuzzRequest(f, openai.Chat, "/v1/chat/completions") }

// fuzzRequest puts bodies through the parser and through the whole handler of
// a proxy whose nodes are gone, so that even a good one ends in an answer.
func fuzzRequest(f *testing.F, kind openai.Kind, path string) {
	for _, tc := range badRequests {
		if tc.path == path && len(tc.body) < 1<<10 {
			f.Add([]byte(tc.body))
		}
	}
	f.Add([]byte(`{"model":"test-model","prompt":[[1,2,3]],"max_tokens":5,"stream":true,"stream_options":{"include_usage":true},"timeout":1e300}`))
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"max_completion_tokens":4,"stream":true}`))
	p, err := New(Config{HTTPAddr: "127.0.0.1:0", GRPCAddr: "127.0.0.1:0", NodeWait: -1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	f.Cleanup(func() {
		stop()
		clocktest.Receive(f, done, "Run's return")
	})
	p.nodes.cluster = testClusterInfo
	handler := p.handler()
	f.Fuzz(func(t *testing.T, body []byte) {
		g, err := kind.Parse(body, p.model(testClusterInfo))
		var api *openai.Error
		switch {
		case err == nil:
			checkRequest(t, body, g)
		case !errors.As(err, &api) || api.Status < 400 || api.Status > 499 || api.Message == "":
			t.Fatalf("%q: %v", body, err)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(string(body))))
		if err == nil && g.Stream {
			if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "a stream needs a connection") {
				t.Fatalf("%q: %d %s, and a recorder has no connection to take", body, w.Code, w.Body)
			}
			return
		}
		if ok := w.Code == http.StatusServiceUnavailable; ok != (err == nil) || !ok && w.Code != api.Status {
			t.Fatalf("%q: status %d, the parser says %v", body, w.Code, err)
		}
		errorOf(t, w.Body.String())
	})
}

// checkRequest holds what a parser has taken to what the rest relies on.
func checkRequest(t *testing.T, body []byte, g *openai.Request) {
	t.Helper()
	if g.N < 1 || len(g.Choices) == 0 || len(g.Choices) > openai.MaxChoices || len(g.Choices)%g.N != 0 || g.Timeout < 0 {
		t.Fatalf("%q was taken as %+v", body, g)
	}
	for _, c := range g.Choices {
		if len(c.Prompt) == 0 || c.MaxTokens == 0 || c.MinTokens > c.MaxTokens || len(c.Prompt)+int(c.MaxTokens) > testMaxModelLen {
			t.Fatalf("%q has the choice %+v", body, c)
		}
		for _, id := range c.Prompt {
			if id >= testVocab {
				t.Fatalf("%q: token %d", body, id)
			}
		}
	}
}

func TestRequestID(t *testing.T) {
	for _, tc := range []struct {
		header string
		kept   bool
	}{{"bench-0a1b-7", true}, {"", false}, {"a b", false}, {"é", false}, {strings.Repeat("x", 257), false}, {`"quoted"`, true}} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-Request-Id", tc.header)
		if id := requestID(r); (id == tc.header) != tc.kept || id == "" {
			t.Errorf("%q: %q", tc.header, id)
		}
	}
}

func TestProxyConfigValidate(t *testing.T) {
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	err := Config{
		HTTPAddr: "nowhere", GRPCAddr: "8000", Mode: "fast", Handoff: "v1", Placement: "random",
		LeaseTTL: -1, RequestTimeout: -1, MaxConnections: -1, MaxQueue: -1, MaxQueueTime: -1, MaxBodyBytes: -1,
	}.Validate()
	for _, want := range []string{
		`HTTPAddr: "nowhere": write host:port`, `GRPCAddr: "8000"`, `Mode: "fast": use one of auto, disagg, nondisagg`, `Handoff: "v1": use one of v0, pull, push, layerwise`,
		`Placement: "random": use one of ` + strings.Join(placement.Names(), ", "), "LeaseTTL", "RequestTimeout", "MaxConnections", "MaxQueue:", "MaxQueueTime", "MaxBodyBytes",
	} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
	if _, err := New(Config{Mode: "fast"}); err == nil {
		t.Error("New took it")
	}
}

// TestRegistryRefusals: a node that registers is held to the proxy's own hand-off and
// tokenizer, and told why it is refused. The rules are tested where they are, in members.
func TestRegistryRefusals(t *testing.T) {
	c := newTestCluster(t, Config{Handoff: handoff.Pull.Name})
	_, d := c.addPair()
	for _, tc := range []struct {
		code   codes.Code
		want   string
		change func(*proto.NodeInfo)
	}{
		{codes.InvalidArgument, "node.model: empty", func(n *proto.NodeInfo) { n.Model = "" }},
		{codes.InvalidArgument, "node.vocab: 400001: the proxy's tokenizer takes 1 to 400000", func(n *proto.NodeInfo) { n.Vocab = 400_001 }},
		{codes.FailedPrecondition, `node.model: decode-2 serves "other"`, func(n *proto.NodeInfo) { n.Model = "other" }},
		{codes.FailedPrecondition, `node.handoffs: decode-2 knows [v0], the proxy runs "pull"`, func(n *proto.NodeInfo) { n.Handoffs = []string{"v0"} }},
	} {
		n := d.like("decode-2", tc.change)
		_, err := c.reg.Register(t.Context(), &proto.RegisterRequest{Node: n})
		if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, want %v: %s", err, tc.code, tc.want)
		}
	}
	if _, err := c.reg.Register(t.Context(), &proto.RegisterRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no node: %v", err)
	}
}
