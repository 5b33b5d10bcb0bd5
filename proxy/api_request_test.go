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

	"kvferry/handoff"
	"kvferry/internal/clock/clocktest"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/members"
	"kvferry/proxy/openai"
	"kvferry/proxy/wire"
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
	{"n of none", "/v1/completions", `{"prompt":"x","n":0}`, 400, "n", "1 to 128"},
	{"n of many", "/v1/completions", `{"prompt":"x","n":129}`, 400, "n", "1 to 128"},
	{"too many choices", "/v1/completions", `{"prompt":["a","b","c","d","e","f","g","h","i"],"n":128}`, 400, "n", "at most 1024"},
	{"best_of", "/v1/completions", `{"prompt":"x","n":2,"best_of":3}`, 400, "best_of", "want n (2)"},
	{"chat echo", "/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"echo":true}`, 400, "echo", "leave it out"},
	{"min_tokens beyond max_tokens", "/v1/completions", `{"prompt":"x","max_tokens":3,"min_tokens":4}`, 400, "min_tokens", "0 to 3"},
	{"empty stop", "/v1/completions", `{"prompt":"x","stop":""}`, 400, "stop", "empty"},
	{"stop as number", "/v1/completions", `{"prompt":"x","stop":3}`, 400, "stop", "a list of strings"},
	{"stop token outside the vocabulary", "/v1/completions", `{"prompt":"x","stop_token_ids":[151936]}`, 400, "stop_token_ids[0]", "151935"},
	{"seed as text", "/v1/completions", `{"prompt":"x","seed":"a"}`, 400, "seed", "an integer"},
	{"second prompt empty", "/v1/completions", `{"prompt":["a",""]}`, 400, "prompt[1]", "at least one token"},
	{"second prompt too long", "/v1/completions", `{"prompt":["a","` + strings.Repeat("word ", testMaxModelLen) + `"]}`, 400, "prompt[1]", "max_model_len"},
	{"no adapters", "/v1/completions", `{"prompt":"x","lora_path":"sql"}`, 400, "lora_path", "--lora-modules"},
	{"generate without a prompt", "/generate", `{"sampling_params":{}}`, 400, "text", "missing"},
	{"generate with two prompts", "/generate", `{"text":"x","input_ids":[1]}`, 400, "input_ids", "one of them"},
	{"generate with ids as text", "/generate", `{"text":[1,2]}`, 400, "text", "input_ids"},
	{"generate with texts as ids", "/generate", `{"input_ids":["a"]}`, 400, "input_ids", "go into text"},
	{"generate an id outside the vocabulary", "/generate", `{"input_ids":[[1],[151936]]}`, 400, "input_ids[1][0]", "151935"},
	{"generate beyond the context", "/generate", `{"text":"x","sampling_params":{"max_new_tokens":1000}}`, 400, "sampling_params.max_new_tokens", "max_model_len"},
	{"generate nothing", "/generate", `{"text":"x","sampling_params":{"max_new_tokens":0}}`, 400, "sampling_params.max_new_tokens", "at least 1"},
	{"generate with too few params", "/generate", `{"text":["a","b"],"sampling_params":[{}]}`, 400, "sampling_params", "for 2 prompts"},
	{"generate with n that differ", "/generate", `{"text":["a","b"],"sampling_params":[{"n":1},{"n":2}]}`, 400, "sampling_params.n", "in two"},
	{"generate with an adapter", "/generate", `{"text":"a","lora_path":"sql"}`, 400, "lora_path", "--lora-modules"},
	{"generate with a breakdown", "/generate", `{"text":"a","return_breakdown":true}`, 400, "return_breakdown", "/v1/completions"},
	{"generate with params of the wrong type", "/generate", `{"text":"a","sampling_params":{"n":"x"}}`, 400, "sampling_params", "cannot"},
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

func FuzzCompletionRequest(f *testing.F) { fuzzRequest(f, completions, "/v1/completions") }

func FuzzGenerateRequest(f *testing.F) { fuzzRequest(f, native, "/generate") }

func FuzzChatRequest(f *testing.F) { fuzzRequest(f, chats, "/v1/chat/completions") }

// fuzzRequest puts bodies through the parser and through the whole handler of
// a proxy whose nodes are gone, so that even a good one ends in an answer.
func fuzzRequest(f *testing.F, a api, path string) {
	for _, tc := range badRequests {
		if tc.path == path && len(tc.body) < 1<<10 {
			f.Add([]byte(tc.body))
		}
	}
	f.Add([]byte(`{"model":"test-model","prompt":[[1,2,3]],"max_tokens":5,"stream":true,"stream_options":{"include_usage":true},"timeout":1e300}`))
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"max_completion_tokens":4,"stream":true}`))
	f.Add([]byte(`{"prompt":[[1,2],[3]],"n":2,"seed":-1,"stop":["a","\u00e9"],"stop_token_ids":[4],"min_tokens":2,"echo":true,"max_tokens":5}`))
	f.Add([]byte(`{"text":["a","b"],"sampling_params":[{"max_new_tokens":3},{"n":1,"stop":"x"}],"rid":["p","q"],"lora_path":[null,"sql"],"stream":true}`))
	f.Add([]byte(`{"input_ids":[[1,2],[3]],"sampling_params":{"n":2,"ignore_eos":true,"min_new_tokens":1},"return_logprob":false}`))
	p, err := New(Config{HTTPAddr: "127.0.0.1:0", GRPCAddr: "127.0.0.1:0", NodeWait: -1, LoRAs: []LoRA{{Name: "sql", Path: "/adapters/sql"}}, Logger: slog.New(slog.DiscardHandler)})
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
		g, err := a.parse(body, p.model(testClusterInfo))
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
		if id := wire.RequestID(r); (id == tc.header) != tc.kept || id == "" {
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
		{codes.InvalidArgument, "node.vocab: 400001: the proxy's tokenizer takes 4096 to 400000", func(n *proto.NodeInfo) { n.Vocab = 400_001 }},
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

// TestRefusedFields: what would change an answer and cannot be had is refused by its name;
// values that ask for nothing are taken, and so are fields that cannot matter.
func TestRefusedFields(t *testing.T) {
	c := newTestCluster(t, Config{})
	c.addPair()
	post := func(path, fields string) (int, string) {
		body := `{"prompt":"x","max_tokens":2,` + fields + `}`
		switch path {
		case "/v1/chat/completions":
			body = `{"messages":[{"role":"user","content":"x"}],"max_tokens":2,` + fields + `}`
		case "/generate":
			body = `{"text":"x","sampling_params":{"max_new_tokens":2},` + fields + `}`
		}
		status, answer, _ := c.post(path, body)
		return status, answer
	}
	openAI := []string{"/v1/completions", "/v1/chat/completions"}
	for _, tc := range []struct {
		field  string
		refuse []string
		take   []string
	}{
		{"logprobs", []string{"5", "true", "1", "0"}, []string{"null", "false"}},
		{"top_logprobs", []string{"2"}, []string{"null", "0"}},
		{"prompt_logprobs", []string{"1", "0"}, []string{"null"}},
		{"suffix", []string{`"end"`}, []string{"null", `""`}},
		{"tools", []string{`[{"type":"function"}]`}, []string{"null", "[]", "[ ]"}},
		{"tool_choice", []string{`"required"`, `{"type":"function"}`}, []string{"null", `"none"`, `"auto"`}},
		{"functions", []string{`[{}]`}, []string{"null"}},
		{"function_call", []string{`{"name":"f"}`}, []string{`"auto"`}},
		{"response_format", []string{`{"type":"json_object"}`, `{"type":"json_schema"}`}, []string{"null", `{"type":"text"}`, `{ "type" : "text" }`}},
		{"structured_outputs", []string{`{"choice":["a"]}`}, []string{"null"}},
		{"guided_json", []string{`{}`}, []string{"null"}},
		{"guided_regex", []string{`"a"`}, []string{"null"}},
		{"guided_choice", []string{`["a"]`}, []string{"null"}},
		{"guided_grammar", []string{`"a"`}, []string{"null"}},
		{"regex", []string{`"a"`}, []string{"null"}},
		{"ebnf", []string{`"a"`}, []string{"null"}},
		{"json_schema", []string{`"{}"`}, []string{"null"}},
		{"logit_bias", []string{`{"1":-100}`}, []string{"null", "{}"}},
		{"bad_words", []string{`["x"]`}, []string{"[]"}},
		{"allowed_token_ids", []string{`[1]`}, []string{"null"}},
		{"use_beam_search", []string{"true"}, []string{"false"}},
		{"stop_regex", []string{`"a"`}, []string{"null"}},
		{"modalities", []string{`["text","audio"]`}, []string{`["text"]`}},
		{"audio", []string{`{}`}, []string{"null"}},
		{"web_search_options", []string{`{}`}, []string{"null"}},
		{"prompt_embeds", []string{`"aGk="`}, []string{"null"}},
		{"add_generation_prompt", []string{"false"}, []string{"true"}},
		{"continue_final_message", []string{"true"}, []string{"false"}},
		{"chat_template", []string{`"x"`}, []string{"null"}},
		{"documents", []string{`[{}]`}, []string{"[]"}},
		{"truncate_prompt_tokens", []string{"10"}, []string{"null"}},
		{"return_token_ids", []string{"true"}, []string{"false"}},
		{"return_hidden_states", []string{"true"}, []string{"false"}},
		{"priority", []string{"1"}, []string{"0"}},
		{"kv_transfer_params", []string{`{"do_remote_decode":true}`}, []string{"null", "{}"}},
		{"bootstrap_host", []string{`"h"`}, []string{"null"}},
		{"bootstrap_room", []string{"7"}, []string{"null"}},
	} {
		for _, path := range openAI {
			for _, value := range tc.refuse {
				status, answer := post(path, fmt.Sprintf("%q:%s", tc.field, value))
				if message, param, _ := errorOf(t, answer); status != 400 || param != tc.field || !strings.HasPrefix(message, tc.field+": "+value) {
					t.Errorf("%s %s %s: %d %s", path, tc.field, value, status, answer)
				}
			}
			for _, value := range tc.take {
				if status, answer := post(path, fmt.Sprintf("%q:%s", tc.field, value)); status != 200 {
					t.Errorf("%s %s %s: %d %s", path, tc.field, value, status, answer)
				}
			}
		}
	}
	for field, value := range map[string]string{
		"return_logprob": "true", "return_hidden_states": "true", "return_routed_experts": "true", "return_indexer_topk": "true", "return_sampling_mask": "true",
		"input_embeds": "[[0.5]]", "image_data": `"x"`, "video_data": `"x"`, "audio_data": `"x"`, "session_params": `{"id":1}`, "custom_logit_processor": `"x"`,
		"watermark": `{"a":1}`, "priority": "2", "bootstrap_host": `"h"`, "bootstrap_room": "3",
	} {
		if status, answer := post("/generate", fmt.Sprintf("%q:%s", field, value)); status != 400 || !strings.Contains(answer, `"param":"`+field+`"`) {
			t.Errorf("/generate %s: %d %s", field, status, answer)
		}
		if status, answer := post("/generate", fmt.Sprintf("%q:null", field)); status != 200 {
			t.Errorf("/generate %s null: %d %s", field, status, answer)
		}
	}
	for _, params := range []string{`"json_schema":"{}"`, `"regex":"a"`, `"ebnf":"a"`, `"structural_tag":"a"`, `"stop_regex":"a"`, `"logit_bias":{"1":2}`} {
		status, answer, _ := c.post("/generate", `{"text":"x","sampling_params":{`+params+`}}`)
		if field := "sampling_params." + strings.Split(params, `"`)[1]; status != 400 || !strings.Contains(answer, `"param":"`+field+`"`) {
			t.Errorf("%s: %d %s", params, status, answer)
		}
	}
	// As vLLM's client, SGLang's and OpenAI's send them: without effect, or in use.
	harmless := `"temperature":0.7,"top_p":0.9,"top_k":5,"min_p":0.1,"repetition_penalty":1.0,"presence_penalty":0.5,"frequency_penalty":0.5,"length_penalty":1.0,"user":"me",` +
		`"best_of":1,"seed":null,"skip_special_tokens":true,"store":false,"metadata":{"a":"b"},"service_tier":"auto","parallel_tool_calls":true,"reasoning_effort":"low",` +
		`"chat_template_kwargs":{"enable_thinking":false},"stream_options":null,"add_special_tokens":true,"request_id":"x","nobody_knows":[1,{"a":2}]`
	for _, path := range openAI {
		if status, answer := post(path, harmless); status != 200 {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
}
