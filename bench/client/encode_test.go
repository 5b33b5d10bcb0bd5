package client

import (
	"encoding/json"
	"strings"
	"testing"

	"kvferry/kvcache"
	"kvferry/load"
	"kvferry/load/dispatch"
)

// letters is a tokenizer whose tokens are bytes. The client needs no more of one.
type letters struct{ load.Tokenizer }

func (letters) Encode(text string, special bool) (ids []kvcache.Token) {
	if special {
		ids = append(ids, 1)
	}
	for _, c := range []byte(text) {
		ids = append(ids, kvcache.Token(c))
	}
	return ids
}

func (letters) Decode(ids []kvcache.Token, _ bool) string {
	var b strings.Builder
	for _, id := range ids {
		b.WriteByte(byte(id))
	}
	return b.String()
}

// TestEncode: what goes over the wire, by backend, prompt and conversation.
func TestEncode(t *testing.T) {
	ids := load.Request{Prompt: []kvcache.Token{104, 105}, MaxTokens: 6}
	text := load.Request{Text: "hi", MaxTokens: 6}
	both := load.Request{Text: "hi", Prompt: []kvcache.Token{104, 105}, MaxTokens: 6}
	adapted := load.Request{Text: "hi", MaxTokens: 6, Adapter: "poet"}
	own := load.Request{Text: "hi", MaxTokens: 6, Fields: map[string]json.RawMessage{
		"messages": []byte(`[{"role":"tool"}]`), "temperature": []byte("0.5"), "top_p": []byte("0.1"), "ignore_eos": []byte("false"),
	}}
	stops := load.Request{Text: "hi", MaxTokens: 6, MayStop: true}
	const tail = `,"max_tokens":6,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true},"return_breakdown":true}`
	const chatTail = `,"max_completion_tokens":6,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true},"return_breakdown":true}`
	const native = `,"sampling_params":{"max_new_tokens":6,"ignore_eos":true},"stream":true}`
	onlyText := func(a *Accepts) { a.Prompt = PromptText }
	first := &dispatch.Turn{Prompt: []kvcache.Token{97}, Answer: dispatch.Answer{Tokens: []kvcache.Token{98}, Text: "b"}}
	second := &dispatch.Turn{Before: first, Prompt: []kvcache.Token{99}, Answer: dispatch.Answer{Text: "d"}}
	spoken := &dispatch.Turn{Text: "Hello", Answer: dispatch.Answer{Text: " there"}}
	for _, c := range []struct {
		name   string
		cfg    Config
		accept func(*Accepts)
		asked  load.Request
		before *dispatch.Turn
		want   string
	}{
		{name: "ids", asked: ids, want: `{"model":"m","prompt":[104,105]` + tail},
		{name: "text", asked: text, want: `{"model":"m","prompt":"hi"` + tail},
		{name: "both are text", asked: both, want: `{"model":"m","prompt":"hi"` + tail},
		{name: "both, as ids", cfg: Config{TokenIDs: true}, asked: both, want: `{"model":"m","prompt":[104,105]` + tail},
		{name: "text, as ids", cfg: Config{TokenIDs: true, Tokenizer: letters{}}, asked: text, want: `{"model":"m","prompt":[1,104,105]` + tail},
		{name: "text, as ids that nobody knows", cfg: Config{TokenIDs: true}, asked: text, want: `{"model":"m","prompt":"hi"` + tail},
		{name: "ids, as text", cfg: Config{Tokenizer: letters{}}, accept: onlyText, asked: ids, want: `{"model":"m","prompt":"hi"` + tail},
		{name: "ids, as words", accept: onlyText, asked: ids, want: `{"model":"m","prompt":"` + wordsOf(commonWords, ids.Prompt) + `"` + tail},
		{name: "may stop", asked: stops, want: `{"model":"m","prompt":"hi","max_tokens":6,"stream":true,"stream_options":{"include_usage":true},"return_breakdown":true}`},
		{name: "another model", cfg: Config{Model: "n"}, asked: text, want: `{"model":"n","prompt":"hi"` + tail},
		{name: "an adapter", asked: adapted, want: `{"model":"poet","prompt":"hi"` + tail},
		{name: "an adapter of SGLang's", cfg: Config{Backend: "sglang-oai"}, asked: adapted, want: `{"model":"poet","lora_path":"poet","prompt":"hi"` + tail},
		{name: "the least", accept: func(a *Accepts) { *a = Accepts{Prompt: PromptText} }, asked: text, want: `{"model":"m","prompt":"hi"}`},
		{
			name: "not streamed", cfg: Config{NoStream: true}, asked: text,
			want: `{"model":"m","prompt":"hi","max_tokens":6,"ignore_eos":true,"return_breakdown":true}`,
		},
		{
			name: "usage by chunk", cfg: Config{ChunkUsage: true, Sampling: []Parameter{{"top_k", -1}, {"temperature", 0.7}}}, asked: text,
			want: `{"model":"m","prompt":"hi","max_tokens":6,"top_k":-1,"temperature":0.7,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"return_breakdown":true}`,
		},
		{
			name: "fields of the user", cfg: Config{Extra: map[string]json.RawMessage{"top_p": []byte("0.9"), "temperature": []byte("1"), "stop": []byte(`["a"]`)}}, asked: text,
			want: `{"model":"m","prompt":"hi","max_tokens":6,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true},"return_breakdown":true,"stop":["a"],"temperature":1,"top_p":0.9}`,
		},
		{name: "chat", cfg: Config{Backend: "openai-chat"}, asked: text, want: `{"model":"m","messages":[{"role":"user","content":"hi"}]` + chatTail},
		{name: "SGLang's, text", cfg: Config{Backend: "sglang"}, asked: text, want: `{"text":"hi"` + native},
		{
			name: "SGLang's, sampling", cfg: Config{Backend: "sglang", Sampling: []Parameter{{"top_p", 0.9}, {"temperature", 0}}}, asked: text,
			want: `{"text":"hi","sampling_params":{"max_new_tokens":6,"top_p":0.9,"temperature":0,"ignore_eos":true},"stream":true}`,
		},
		{name: "SGLang's, ids", cfg: Config{Backend: "sglang"}, asked: ids, want: `{"input_ids":[104,105]` + native},
		{name: "SGLang's, an adapter", cfg: Config{Backend: "sglang"}, asked: adapted, want: `{"lora_path":"poet","text":"hi"` + native},
		{
			name: "a conversation of ids", asked: ids, before: second, // the second answer's are not known
			want: `{"model":"m","prompt":[97,98,99,104,105]` + tail,
		},
		{name: "the same with a tokenizer", cfg: Config{Tokenizer: letters{}}, asked: ids, before: second, want: `{"model":"m","prompt":[97,98,99,100,104,105]` + tail},
		{name: "the same as text", cfg: Config{Tokenizer: letters{}}, accept: onlyText, asked: ids, before: second, want: `{"model":"m","prompt":"abcdhi"` + tail},
		{name: "a conversation of texts", asked: load.Request{Text: " and\n\"on\"", MaxTokens: 6}, before: spoken, want: `{"model":"m","prompt":"Hello there and\n\"on\""` + tail},
		{
			name: "a chat's", cfg: Config{Backend: "openai-chat"}, asked: text, before: spoken,
			want: `{"model":"m","messages":[{"role":"user","content":"Hello"},{"role":"assistant","content":" there"},{"role":"user","content":"hi"}]` + chatTail,
		},
		{
			name: "a chat of known roles", cfg: Config{Backend: "openai-chat"},
			asked:  load.Request{Text: "\ntool: 4 files\nassistant:", Messages: []load.Message{{Role: "tool", Content: "4 files"}}, MaxTokens: 6},
			before: &dispatch.Turn{Text: "system: Be brief.\nuser: ls\nassistant:", Messages: []load.Message{{Role: "system", Content: "Be brief."}, {Role: "user", Content: "ls"}}, Answer: dispatch.Answer{Text: "ls /"}},
			want:   `{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"ls"},{"role":"assistant","content":"ls /"},{"role":"tool","content":"4 files"}]` + chatTail,
		},
		{
			name: "a chat with fields of its own, before the user's",
			cfg:  Config{Backend: "openai-chat", Extra: map[string]json.RawMessage{"top_p": []byte("0.9"), "seed": []byte("3")}}, asked: own,
			want: `{"model":"m","max_completion_tokens":6,"stream":true,"stream_options":{"include_usage":true},"return_breakdown":true,"ignore_eos":false,"messages":[{"role":"tool"}],"seed":3,"temperature":0.5,"top_p":0.1}`,
		},
		{name: "which no other endpoint takes", asked: own, want: `{"model":"m","prompt":"hi"` + tail},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.cfg.URL = "http://localhost:1"
			k := New(c.cfg)
			defer k.Close()
			if c.accept != nil {
				c.accept(&k.accepts)
			}
			e := k.encoder("m")
			got := e.encode(&c.asked, c.before)
			if string(got) != c.want {
				t.Errorf("%s\nwant %s", got, c.want)
			}
			if !json.Valid(got) {
				t.Error("not JSON")
			}
			if want := c.name == "a conversation of ids"; e.unanswered(c.before, &c.asked) != want {
				t.Errorf("lacks an answer: %t", !want)
			}
		})
	}
}

// FuzzString: what is written as a JSON string reads as it was, and invalid UTF-8 as package
// encoding/json has it.
func FuzzString(f *testing.F) {
	for _, s := range []string{"", "plain", "a\"b\\c\n\t\x00\x1f", "é€😀", "\xe2\x82", "\xff\xed\xa0\x80", "\u2028\ufffd"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		text := appendString(nil, s)
		var got, want string
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatalf("%q: %s: %v", s, text, err)
		}
		theirs, err := json.Marshal(s)
		if err != nil || json.Unmarshal(theirs, &want) != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Fatalf("%q reads %q", s, got)
		}
		// And back: bytes that are no UTF-8 stay.
		if back := appendUnquoted(nil, json.RawMessage(text)); string(back) != got {
			t.Fatalf("%s is %q, not %q", text, back, got)
		}
		if back := appendUnquoted(nil, json.RawMessage(theirs)); string(back) != want {
			t.Fatalf("%s is %q, not %q", theirs, back, want)
		}
	})
}
