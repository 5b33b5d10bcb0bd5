package client

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/bench/client/clienttest"
	"kvferry/bench/nullserver"
	"kvferry/kvcache"
	"kvferry/load"
)

// read has pieces read as an answer, each a millisecond after the one before.
func read(t *testing.T, a *answer, pieces ...string) error {
	t.Helper()
	if err := a.Head(&http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}}, 0); err != nil {
		t.Fatal(err)
	}
	for i, p := range pieces {
		if err := a.Body([]byte(p), time.Duration(i+1)*time.Millisecond, 0); err != nil {
			return a.end(err)
		}
	}
	return a.end(nil)
}

// TestChunks: which chunk brought what, in each wire format.
func TestChunks(t *testing.T) {
	for _, c := range []struct {
		name   string
		kind   kind
		pieces []string
		want   Record // but for what all have
		text   string
		ids    []kvcache.Token
	}{
		{
			name: "chat", kind: chat,
			pieces: []string{
				`{"choices":[{"delta":{"role":"assistant","content":""}}]}`,
				`{"choices":[{"delta":{"reasoning_content":"Hm"}}]}`, `{"choices":[{"delta":{"reasoning_content":" so"}}]}`,
				`{"choices":[{"delta":{"content":"A\u00e9\n"}}]}`, `{"choices":[{"delta":{"content":"\ud83d\ude00"}}]}`, `{"choices":[{"delta":{},"finish_reason":"stop"}]}`,
				`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}}`,
			},
			want: Record{
				FirstToken: .002, FirstText: .002, LastLine: .008, TokenTimes: []float64{.001, .002, .003, .004, .005, .006}, FinishReason: "stop", NoText: []int{0, 5},
				Usage: &Usage{PromptTokens: 3, CompletionTokens: 5, CachedTokens: 2}, Notes: []string{NoteStopped},
			},
			text: "Hm soAé\n😀",
		},
		{
			name: "calls of tools", kind: chat,
			pieces: []string{
				`{"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[]}}]}`,
				`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"ls","arguments":""}}]}}]}`, `{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}`,
				`{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}`,
				`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":6}}`,
			},
			want: Record{
				FirstToken: .002, LastLine: .006, TokenTimes: []float64{.001, .002, .003, .004}, FinishReason: "tool_calls", NoText: []int{0, 1, 2, 3},
				Usage: &Usage{PromptTokens: 3, CompletionTokens: 6}, Notes: []string{NoteChunks},
			},
		},
		{
			name: "usage by chunk",
			pieces: []string{
				`{"choices":[{"text":"a"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`, `{"choices":[{"text":"bc"}],"usage":{"prompt_tokens":3,"completion_tokens":3}}`,
				`{"choices":[{"text":"def","finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":6}}`,
			},
			want: Record{
				FirstToken: .001, FirstText: .001, LastLine: .004, TokenTimes: []float64{.001, .002, .003}, FinishReason: "length", ChunkTokens: []int{1, 2, 3},
				Usage: &Usage{PromptTokens: 3, CompletionTokens: 6}, Notes: []string{NoteChunks},
			},
			text: "abcdef",
		},
		{
			name: "SGLang's", kind: generate,
			pieces: []string{
				`{"text":"","output_ids":[],"meta_info":{"finish_reason":null,"prompt_tokens":3,"completion_tokens":0}}`,
				`{"text":"a","output_ids":[7],"meta_info":{"finish_reason":null,"prompt_tokens":3,"completion_tokens":1}}`,
				`{"text":"abcd","output_ids":[7,8,9],"meta_info":{"finish_reason":null,"prompt_tokens":3,"completion_tokens":4,"cached_tokens":1}}`,
				`{"text":"abcdef","output_ids":[7,8,9,10],"meta_info":{"finish_reason":{"type":"length","length":6},"prompt_tokens":3,"completion_tokens":6,"cached_tokens":1}}`,
			},
			want: Record{
				FirstToken: .002, FirstText: .002, LastLine: .005, TokenTimes: []float64{.001, .002, .003, .004}, FinishReason: "length", ChunkTokens: []int{0, 1, 3, 2}, NoText: []int{0},
				Usage: &Usage{PromptTokens: 3, CompletionTokens: 6, CachedTokens: 1}, Notes: []string{NoteChunks},
			},
			text: "abcdef", ids: []kvcache.Token{7, 8, 9, 10},
		},
		{
			name: "ids of tokens",
			pieces: []string{
				`{"choices":[{"text":"a","token_ids":[4]}]}`, `{"choices":[{"text":"b","token_ids":[5,6]}]}`, `{"choices":[{"text":"c","finish_reason":"length","token_ids":[7]}]}`,
			},
			want: Record{FirstToken: .001, FirstText: .001, LastLine: .004, TokenTimes: []float64{.001, .002, .003}, FinishReason: "length"},
			text: "abc", ids: []kvcache.Token{4, 5, 6, 7},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Record{MaxTokens: 6}
			a := answer{record: &r, kind: c.kind, keepText: true, keepIDs: true}
			var pieces []string
			for _, p := range append(c.pieces, "[DONE]") {
				pieces = append(pieces, "data: "+p+"\n\n")
			}
			if err := read(t, &a, pieces...); err != nil {
				t.Fatal(err)
			}
			w := c.want
			if r.FirstToken != w.FirstToken || r.FirstText != w.FirstText || r.LastLine != w.LastLine || !slices.Equal(r.TokenTimes, w.TokenTimes) || r.FinishReason != w.FinishReason ||
				!slices.Equal(r.ChunkTokens, w.ChunkTokens) || !slices.Equal(r.NoText, w.NoText) || (r.Usage == nil) != (w.Usage == nil) || r.Usage != nil && *r.Usage != *w.Usage || !slices.Equal(r.Notes, w.Notes) {
				t.Errorf("%+v (usage %+v)\nwant %+v", r, r.Usage, w)
			}
			if string(a.text) != c.text || !slices.Equal(a.ids, c.ids) {
				t.Errorf("text %q, ids %v, want %q, %v", a.text, a.ids, c.text, c.ids)
			}
		})
	}
}

// TestCountedBy: the server's word goes first, then the tokenizer's, then the chunks.
func TestCountedBy(t *testing.T) {
	for _, c := range []struct {
		name   string
		silent bool
		cfg    Config
		by     string
		output int
		input  int
		text   string
		again  int
	}{
		{name: "usage", by: CountUsage, output: 3, input: 2},
		{name: "usage and tokenizer", cfg: Config{Tokenizer: letters{}, Retokenize: true, KeepText: true}, by: CountUsage, output: 3, input: 2, text: " tok tok tok", again: 12},
		{name: "tokenizer", silent: true, cfg: Config{Tokenizer: letters{}}, by: CountTokenizer, output: 12, input: 2},
		{name: "chunks", silent: true, cfg: Config{KeepText: true}, by: CountChunks, output: 3, input: 2, text: " tok tok tok"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.cfg.URL = null(t, nullserver.Config{NoUsage: c.silent}).URL()
			k := New(c.cfg)
			defer k.Close()
			if _, err := k.Probe(t.Context(), "null", Needs{}); err != nil {
				t.Fatal(err)
			}
			records, _, err := collect(t.Context(), k, list(load.Request{Prompt: []kvcache.Token{104, 105}, MaxTokens: 3}))
			if err != nil {
				t.Fatal(err)
			}
			r := records[0]
			if r.Error != "" || r.CountedBy != c.by || r.Output() != c.output || r.Input() != c.input || r.Text != c.text || r.Retokenized != c.again || r.Unconfirmed {
				t.Errorf("%+v", r)
			}
			if k.Accepts().CountedBy != c.by {
				t.Errorf("accepts: %+v", k.Accepts())
			}
			if m := measure(records, 1); m.Successful != 1 || m.GeneratedTokens != c.output || m.InputTokens != c.input {
				t.Errorf("%+v", m)
			}
		})
	}
}

// TestConversation: the next turn has what was answered, and comes after it.
func TestConversation(t *testing.T) {
	for backend, want := range map[string]string{
		"openai":      `"prompt":"One tok tokTwo"`,
		"openai-chat": `"messages":[{"role":"user","content":"One"},{"role":"assistant","content":" tok tok"},{"role":"user","content":"Two"}]`,
		"sglang":      `"text":"One tok tokTwo"`,
	} {
		s := null(t, nullserver.Config{})
		var bodies clienttest.Bodies
		tap := clienttest.Tap(t, s.URL(), &bodies)
		c := New(Config{URL: tap, Backend: backend})
		records, _, err := collect(t.Context(), c, list(load.Request{Text: "One", MaxTokens: 2}, load.Request{Text: "Two", MaxTokens: 1, After: []int{0}, Continues: true}))
		c.Close()
		if err != nil || len(records) != 2 || records[0].Error+records[1].Error != "" || len(records[1].Notes) != 0 || records[1].Sent < records[0].Finish {
			t.Errorf("%s: %+v, %v", backend, records, err)
		}
		if got := bodies.All(); len(got) != 2 || !strings.Contains(got[1], want) {
			t.Errorf("%s: %q, want %s", backend, got, want)
		}
	}
}

// TestWorkers: several servers are asked in turn, or as told, and records say which.
func TestWorkers(t *testing.T) {
	var urls []string
	for range 3 {
		urls = append(urls, null(t, nullserver.Config{}).URL())
	}
	asked := func() load.Load {
		var all []load.Request
		for range 6 {
			all = append(all, load.Request{Text: "x", MaxTokens: 1})
		}
		return list(all...)
	}
	for name, assign := range map[string]func(int, *load.Request) int{"in turn": nil, "the last": func(int, *load.Request) int { return 2 }, "none": func(int, *load.Request) int { return 3 }} {
		c := New(Config{URLs: urls, Assign: assign})
		records, _, err := collect(t.Context(), c, asked())
		c.Close()
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range records {
			want := urls[i%3]
			switch name {
			case "the last":
				want = urls[2]
			case "none":
				if r.Fault != FaultRequest || !strings.Contains(r.Error, "worker 3 of 3") {
					t.Errorf("%+v", r)
				}
				continue
			}
			if r.Error != "" || r.Worker != want {
				t.Errorf("%s: request %d: %q, %s, want %s", name, i, r.Worker, r.Error, want)
			}
		}
	}
}

// TestHeaders: what each request has, and what the trace is asked for.
func TestHeaders(t *testing.T) {
	s := null(t, nullserver.Config{Key: "k"})
	var bodies clienttest.Bodies
	tap := clienttest.Tap(t, s.URL(), &bodies)
	c := New(Config{
		URL: tap + "/v1/", APIKey: "k", Header: http.Header{"x-team": {"ferry"}, "User-Agent": {"me"}},
		Trace: func(r *Record) string { return "00-trace-of-" + r.RequestID },
	})
	defer c.Close()
	records, _, err := collect(t.Context(), c, list(load.Request{ID: "r-7", Text: "x", MaxTokens: 1, Routing: "7_2"}, load.Request{ID: "bad\r\nid", Text: "x", MaxTokens: 1}))
	if err != nil || records[0].Error != "" {
		t.Fatalf("%+v, %v", records, err)
	}
	if r := records[1]; r.Fault != FaultRequest || !strings.Contains(r.Error, "control characters") {
		t.Errorf("%+v", r)
	}
	h := bodies.Headers()[0]
	for name, want := range map[string]string{"X-Team": "ferry", "User-Agent": "me", "X-Request-Id": "r-7", "Traceparent": "00-trace-of-r-7", "X-SMG-Routing-Key": "7_2", "Authorization": "Bearer k", "Content-Type": "application/json"} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestConfig: what is wrong with a configuration is said by its field, by Validate and by
// the client's methods.
func TestConfig(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want []string
	}{
		{Config{}, []string{"URL", "http://HOST:PORT"}},
		{Config{URL: "localhost:8000"}, []string{"URL", "http://HOST:PORT"}},
		{Config{URL: "http://a", Backend: "tgi"}, []string{"Backend", `"tgi"`, "openai-chat"}},
		{Config{URL: "http://a", CAFile: "/no/such/file"}, []string{"CAFile", "no such file"}},
		{Config{URL: "http://a", CAFile: "answer_test.go"}, []string{"CAFile", "no certificate"}},
		{Config{URL: "http://a", Header: http.Header{"X": {"a\nb"}}}, []string{"Header", "control characters"}},
		{Config{URL: "http://a", APIKey: "a\n"}, []string{"APIKey", "control characters"}},
		{Config{URL: "http://a", Extra: map[string]json.RawMessage{"x": []byte("{")}}, []string{"Extra", "not JSON"}},
	} {
		k := New(c.cfg)
		_, err := k.Run(t.Context(), "m", list(), nil)
		_, ready := k.Ready(t.Context())
		_, probe := k.Probe(t.Context(), "m", Needs{})
		_, get := k.Get(t.Context(), "/metrics")
		k.Close()
		for _, err := range []error{c.cfg.Validate(), err, ready, probe, get} {
			for _, part := range c.want {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("%+v: %v does not say %q", c.cfg, err, part)
				}
			}
		}
	}
}

// TestEndpoints: where requests go.
func TestEndpoints(t *testing.T) {
	for _, c := range []struct{ url, backend, endpoint, want, base string }{
		{"http://h:1", "", "", "http://h:1/v1/completions", "http://h:1"},
		{"http://h:1/v1", "", "", "http://h:1/v1/completions", "http://h:1"},
		{"http://h:1/v1/", "openai-chat", "", "http://h:1/v1/chat/completions", "http://h:1"},
		{"http://h:1/team", "", "", "http://h:1/team/v1/completions", "http://h:1/team"},
		{"http://h:1", "sglang", "", "http://h:1/generate", "http://h:1"},
		{"http://h:1/v1", "", "/v1/completions", "http://h:1/v1/completions", "http://h:1"},
		{"http://h:1/v1", "", "completions", "http://h:1/v1/completions", "http://h:1"},
		{"http://h:1", "", "/openai/v1/completions", "http://h:1/openai/v1/completions", "http://h:1"},
		{"https://h", "", "", "https://h/v1/completions", "https://h"},
		{"http://[::1]:8", "", "/x?api-version=2", "http://[::1]:8/x?api-version=2", "http://[::1]:8"},
	} {
		k := New(Config{URL: c.url, Backend: c.backend, Endpoint: c.endpoint})
		if k.err != nil || k.targets[0].endpoint.String() != c.want || k.targets[0].base != c.base {
			t.Errorf("%s %s: %v, %v", c.url, c.endpoint, k.targets, k.err)
		}
		k.Close()
	}
}
