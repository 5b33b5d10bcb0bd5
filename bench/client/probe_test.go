package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/bench/client/clienttest"
	"kvferry/bench/nullserver"
	"kvferry/bench/nullserver/nullservertest"
	"kvferry/kvcache"
	"kvferry/load"
)

// null is a server that answers at given times and knows nothing of kvferry.
func null(t *testing.T, cfg nullserver.Config) *nullserver.Server {
	return nullservertest.Start(t, cfg)
}

// TestProbe: what servers of all kinds accept is found, and after that nothing of a run is
// refused.
func TestProbe(t *testing.T) {
	for _, c := range []struct {
		name    string
		server  nullserver.Config
		client  Config
		needs   Needs
		want    Accepts // but for what is checked apart
		refused []string
		notes   string // a part of them
	}{
		{
			name: "takes all",
			want: Accepts{Prompt: PromptIDs, Stream: true, Limit: "max_tokens", IgnoreEOS: true, Usage: true, UsageOption: true, CountedBy: CountUsage, Probed: 1},
		},
		{
			name: "texts", needs: Needs{Texts: true},
			want: Accepts{Prompt: PromptText, Stream: true, Limit: "max_tokens", IgnoreEOS: true, Usage: true, UsageOption: true, CountedBy: CountUsage, Probed: 1},
		},
		{
			name:   "as strict as can be",
			server: nullserver.Config{Strict: true, TextOnly: true, Key: "secret", NoHealth: true}, client: Config{APIKey: "secret"},
			want:    Accepts{Prompt: PromptText, Stream: true, Limit: "max_tokens", Usage: true, UsageOption: true, CountedBy: CountUsage, Probed: 7},
			refused: []string{string(PromptIDs), "ignore_eos", "return_breakdown"}, notes: "--tokenizer makes prompts of tokens",
		},
		{
			name:   "strict, and sampling is asked for",
			server: nullserver.Config{Strict: true}, client: Config{Sampling: []Parameter{{"top_p", 0.9}, {"top_k", 20}, {"temperature", 0.5}, {"repetition_penalty", 1.1}}},
			want:    Accepts{Prompt: PromptIDs, Stream: true, Limit: "max_tokens", Sampling: []string{"top_p", "temperature"}, Usage: true, UsageOption: true, CountedBy: CountUsage, Probed: 11},
			refused: []string{"ignore_eos", "return_breakdown", "top_k", "repetition_penalty"},
		},
		{
			name:    "counts nothing",
			server:  nullserver.Config{TextOnly: true, NoUsage: true},
			want:    Accepts{Prompt: PromptText, Stream: true, Limit: "max_tokens", IgnoreEOS: true, CountedBy: CountChunks, Unconfirmed: true, Probed: 7},
			refused: []string{"stream_options", string(PromptIDs)}, notes: "--tokenizer makes prompts of tokens",
		},
		{
			name: "does not stream", server: nullserver.Config{NoStream: true},
			want:  Accepts{Prompt: PromptIDs, Stream: true, Limit: "max_tokens", IgnoreEOS: true, Usage: true, UsageOption: true, CountedBy: CountUsage, Probed: 1},
			notes: "does not stream",
		},
		{
			name: "is not asked to", client: Config{NoStream: true},
			want: Accepts{Prompt: PromptIDs, Limit: "max_tokens", IgnoreEOS: true, Usage: true, CountedBy: CountUsage, Probed: 1},
		},
		{
			name: "chat", server: nullserver.Config{Strict: true}, client: Config{Backend: "openai-chat"},
			want:    Accepts{Prompt: PromptChat, Stream: true, Limit: "max_completion_tokens", Usage: true, UsageOption: true, CountedBy: CountUsage, Probed: 6},
			refused: []string{"ignore_eos", "return_breakdown"}, notes: "--tokenizer makes prompts of tokens",
		},
		{
			name: "SGLang's", client: Config{Backend: "sglang"},
			want: Accepts{Prompt: PromptIDs, Stream: true, Limit: "max_new_tokens", IgnoreEOS: true, Usage: true, PerChunk: true, TokenIDs: true, CountedBy: CountUsage, Probed: 1},
		},
		{
			name: "ids of answers are not known", needs: Needs{Turns: true},
			want:  Accepts{Prompt: PromptIDs, Stream: true, Limit: "max_tokens", IgnoreEOS: true, Usage: true, UsageOption: true, CountedBy: CountUsage, Probed: 1},
			notes: "return_token_ids",
		},
		{
			name: "no count by chunk", client: Config{ChunkUsage: true},
			want:  Accepts{Prompt: PromptIDs, Stream: true, Limit: "max_tokens", IgnoreEOS: true, Usage: true, UsageOption: true, CountedBy: CountUsage, Probed: 1},
			notes: "continuous_usage_stats",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := null(t, c.server)
			c.client.URL = s.URL() + "/v1"
			k := New(c.client)
			defer k.Close()
			model, err := k.Ready(t.Context())
			if err != nil || model != "null" {
				t.Fatalf("Ready = %q, %v", model, err)
			}
			got, err := k.Probe(t.Context(), model, c.needs)
			if err != nil {
				t.Fatal(err)
			}
			c.want.Model, c.want.Backend, c.want.Endpoint = "null", k.backend.Name, s.URL()+k.backend.Path
			if c.name != "does not stream" { // what is written fast may be read at once
				got.Notes = slices.DeleteFunc(got.Notes, func(n string) bool { return strings.Contains(n, "does not stream") })
			}
			if notes := strings.Join(got.Notes, "; "); !strings.Contains(notes, c.notes) || c.notes == "" && notes != "" {
				t.Errorf("notes %q, want %q", notes, c.notes)
			}
			var refused []string
			for _, r := range got.Refused {
				if !strings.HasPrefix(r.Reason, "HTTP 400 Bad Request: ") {
					t.Errorf("%+v", r)
				}
				refused = append(refused, r.Field)
			}
			if !slices.Equal(refused, c.refused) {
				t.Errorf("refused %q, want %q", refused, c.refused)
			}
			got.Notes, got.Refused = nil, nil
			if a, b := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", c.want); a != b {
				t.Errorf("accepts %s\nwant    %s", a, b)
			}
			records, _, err := collect(t.Context(), k, list(load.Request{Prompt: []kvcache.Token{5, 6, 7}, MaxTokens: 5}, load.Request{Prompt: []kvcache.Token{8}, MaxTokens: 3, MayStop: true}))
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []int{5, 3} {
				if r := records[i]; r.Error != "" || r.Output() != want || r.CountedBy != c.want.CountedBy || r.Unconfirmed != c.want.Unconfirmed || r.Input() == 0 {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

// picky is a server that takes what judge lets pass, and answers as clienttest's.
func picky(t *testing.T, judge func(path string, body map[string]any) (status int, why string)) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		_ = json.NewDecoder(r.Body).Decode(&body) // GETs have none
		if status, why := judge(r.URL.Path, body); status != http.StatusOK {
			http.Error(w, why, status)
			return
		}
		says(token, token, token, last, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":4}}\n\n", doneAt)(w)
	}))
	t.Cleanup(s.Close)
	return s
}

// TestProbeOlderChat: a server that knows max_tokens only, of a chat.
func TestProbeOlderChat(t *testing.T) {
	s := picky(t, func(_ string, body map[string]any) (int, string) {
		if body["max_completion_tokens"] != nil {
			return http.StatusUnprocessableEntity, "extra inputs are not permitted"
		}
		return http.StatusOK, ""
	})
	c := New(Config{URL: s.URL, Backend: "openai-chat", Model: "m"})
	defer c.Close()
	got, err := c.Probe(t.Context(), "m", Needs{Texts: true})
	if err != nil || got.Limit != "max_tokens" || !got.IgnoreEOS || len(got.Refused) != 1 || got.Refused[0].Field != "max_completion_tokens" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestProbeFails: what no field changes is said as it is.
func TestProbeFails(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		want   []string
	}{
		{"a key is wanted", http.StatusUnauthorized, []string{"wants an API key", "OPENAI_API_KEY", "HTTP 401"}},
		{"wrong path", http.StatusNotFound, []string{"Endpoint: server at", "has no such path", "/v1/completions", "--backend"}},
		{"whatever is sent", http.StatusBadRequest, []string{"Backend: server at", "even the least request", `--model ("m")`, "HTTP 400"}},
		{"never ready", http.StatusServiceUnavailable, []string{"not ready within", "HTTP 503"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			var asked atomic.Int32
			s := picky(t, func(string, map[string]any) (int, string) {
				// The time is over once it is asked again: until then its first answer may not have come.
				if asked.Add(1) == 2 && c.status == http.StatusServiceUnavailable {
					cancel(errors.New("not ready within 200ms"))
				}
				return c.status, "no"
			})
			k := New(Config{URL: s.URL})
			defer k.Close()
			_, err := k.Probe(ctx, "m", Needs{})
			for _, part := range c.want {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("%v does not say %q", err, part)
				}
			}
		})
	}
}

// TestReadyWithoutHealth: servers without /health, without /v1/models, that want a key.
func TestReadyWithoutHealth(t *testing.T) {
	for _, c := range []struct {
		name   string
		server nullserver.Config
		client Config
		model  string
		err    string
	}{
		{"no /health", nullserver.Config{NoHealth: true}, Config{}, "null", ""},
		{"neither, a model is given", nullserver.Config{NoHealth: true, NoModels: true}, Config{Model: "m"}, "m", ""},
		{"neither, none is given", nullserver.Config{NoHealth: true, NoModels: true}, Config{}, "", "Model: server at "},
		{"a given model goes before the server's", nullserver.Config{}, Config{Model: "m"}, "m", ""},
		{"no key", nullserver.Config{Key: "k"}, Config{}, "", "wants an API key, and none is given: give one, or set OPENAI_API_KEY"},
		{"a wrong key", nullserver.Config{Key: "k"}, Config{APIKey: "x"}, "", "refuses this API key"},
		{"its key", nullserver.Config{Key: "k"}, Config{APIKey: "k"}, "null", ""},
		{"its key in a header", nullserver.Config{Key: "k"}, Config{Header: http.Header{"authorization": {"Bearer k"}}}, "null", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.client.URL = null(t, c.server).URL()
			k := New(c.client)
			defer k.Close()
			model, err := k.Ready(t.Context())
			if model != c.model || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q, %v", model, err)
			}
		})
	}
}

// TestWords: of prompts that are words, those are taken that are one token each by the
// server's own count.
func TestWords(t *testing.T) {
	bad := map[string]bool{"which": true, "three": true, "but": true}
	var asked atomic.Int32
	s := picky(t, func(path string, body map[string]any) (int, string) {
		switch path {
		case "/tokenize":
			asked.Add(1)
			n := 1 // BOS
			for word := range strings.FieldsSeq(body["prompt"].(string)) {
				if n++; bad[word] {
					n++
				}
			}
			return http.StatusAccepted, fmt.Sprintf(`{"count":%d}`, n)
		}
		if _, ids := body["prompt"].([]any); ids {
			return http.StatusBadRequest, "prompt must be a string"
		}
		return http.StatusOK, ""
	})
	s.Config.Handler = accepted(s.Config.Handler)
	c := New(Config{URL: s.URL})
	defer c.Close()
	got, err := c.Probe(t.Context(), "m", Needs{})
	if err != nil || !got.Tokenize || got.Unconfirmed || len(c.words) != len(commonWords)-3 || slices.ContainsFunc(c.words, func(w string) bool { return bad[w] }) {
		t.Errorf("%+v, %v: %d words of %d", got, err, len(c.words), len(commonWords))
	}
	if n := asked.Load(); n > 60 {
		t.Errorf("it took %d questions to find three bad words", n)
	}
	if text := wordsOf(c.words, []kvcache.Token{0, 1, 151935}); len(strings.Fields(text)) != 3 {
		t.Errorf("three ids are %q", text)
	}
}

// accepted makes a 202 a 200: picky's own way to answer with a text.
func accepted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(ok{w}, r) })
}

type ok struct{ http.ResponseWriter }

func (o ok) Unwrap() http.ResponseWriter { return o.ResponseWriter }
func (o ok) Flush()                      { o.ResponseWriter.(http.Flusher).Flush() }
func (o ok) WriteHeader(status int) {
	if status == http.StatusAccepted {
		status = http.StatusOK
	}
	o.ResponseWriter.WriteHeader(status)
}

// TestProbeSlow: a server that answers each request in time has that time for each, however many it takes.
func TestProbeSlow(t *testing.T) {
	t.Parallel()
	const one, first = 1500 * time.Millisecond, 8 * time.Second
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		<-time.NewTimer(one).C
		if err != nil || strings.Contains(string(body), "ignore_eos") {
			http.Error(w, "ignore_eos: unknown", http.StatusBadRequest)
			return
		}
		says(token, token, token, last, doneAt)(w)
	}))
	defer s.Close()
	c := New(Config{URL: s.URL, First: first})
	defer c.Close()
	got, err := c.Probe(t.Context(), "m", Needs{})
	if err != nil || len(got.Refused) != 1 || got.Probed*int(one) < int(first) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestProbeOutlivesTransientErrors: what breaks twice and then does not costs no run and no field. What
// breaks each time is an error.
func TestProbeOutlivesTransientErrors(t *testing.T) {
	for name, breaks := range map[string]func(http.ResponseWriter){
		"connection reset":      func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"answer cut":            dies(token),
		"no end":                says(token),
		"an error in the 200":   says("data: {\"error\":{\"message\":\"no room\"}}\n\n"),
		"internal server error": func(w http.ResponseWriter) { http.Error(w, "no room", http.StatusInternalServerError) },
	} {
		for _, times := range []int32{2, 1 << 20} {
			var n, infos atomic.Int32
			f := clienttest.NewServer(t, &clienttest.Server{Info: `{"kvferry":{}}`, Behave: func(w http.ResponseWriter, _ *http.Request, _ *clienttest.Completion) bool {
				if n.Add(1) > times {
					return false
				}
				breaks(w)
				return true
			}})
			handler := f.Config.Handler
			f.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/server_info" && infos.Add(1) <= times {
					breaks(w)
					return
				}
				handler.ServeHTTP(w, r)
			})
			c := New(Config{URL: f.URL})
			accepts, err := c.Probe(t.Context(), "fake-7b", Needs{})
			switch {
			case times > 2 && (err == nil || n.Load() > 30):
				t.Errorf("%s: %v after %d requests", name, err, n.Load())
			case times == 2 && (err != nil || len(accepts.Refused) > 0 || accepts.Probed != 3):
				t.Errorf("%s, twice: %v, %+v", name, err, accepts)
			}
			if _, err := c.Get(t.Context(), "/server_info"); times == 2 && (name == "connection reset" || name == "internal server error") && err != nil {
				t.Errorf("%s, twice, of /server_info: %v", name, err)
			}
			c.Close()
		}
	}
}
