package openai

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

var testedModel = Model{Name: "test-model", Vocab: testVocab, MaxModelLen: 1000}

func TestGoodRequests(t *testing.T) {
	hello := testTokenizer.Encode("hello")
	for _, tc := range []struct {
		kind   Kind
		body   string
		prompt []uint32
		max    uint32
	}{
		{Completion, `{"prompt":"hello"}`, hello, 16},
		{Completion, ` {"prompt":["hello"],"max_tokens":null,"n":null,"stream":null,"stream_options":null,"logprobs":null,"model":null,"timeout":null} `, hello, 16},
		{Completion, `{"prompt":[1, 2 ,3],"max_tokens":5}`, []uint32{1, 2, 3}, 5},
		{Completion, `{"prompt":[[1,2,3]],"max_tokens":5,"max_completion_tokens":7}`, []uint32{1, 2, 3}, 7},
		{Completion, `{"prompt":"hello","max_tokens":997,"n":1,"best_of":1,"stop":["x"],"top_p":0.5,"unknown":{"a":[1]},"logprobs":false}`, hello, 997},
		{Chat, `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null}]}`, chatOf(t, "user", "hi", "assistant", ""), testedModel.MaxModelLen - uint32(len(chatOf(t, "user", "hi", "assistant", "")))},
		{Chat, `{"messages":[{"role":"user","content":[{"type":"text","text":"h"},{"type":"text","text":"i"}]}],"max_completion_tokens":4}`, chatOf(t, "user", "hi"), 4},
	} {
		g, err := tc.kind.Parse([]byte(tc.body), testedModel)
		if err != nil || len(g.Choices) != 1 || !slices.Equal(g.Choices[0].Prompt, tc.prompt) || g.Choices[0].MaxTokens != tc.max || g.Model != testedModel.Name {
			t.Errorf("%s: %+v, %v; want prompt %v, %d tokens", tc.body, g, err, tc.prompt, tc.max)
		}
	}
}

// TestSalt: vLLM's cache_salt and SGLang's extra_key make up the salt, of each choice and by either endpoint.
// An empty cache_salt is refused, as vLLM does: whoever sends it expects to be apart.
func TestSalt(t *testing.T) {
	long := strings.Repeat("x", maxSalt)
	for fields, want := range map[string]string{
		``: "", `,"cache_salt":null,"extra_key":null`: "", `,"cache_salt":"a"`: "a", `,"extra_key":"b"`: "b", `,"cache_salt":"a","extra_key":"b"`: "ab",
		`,"extra_key":""`: "", `,"cache_salt":"` + long + `"`: long,
		`,"cache_salt":""`: "cache_salt", `,"cache_salt":7`: "cache_salt", `,"cache_salt":["a"]`: "cache_salt", `,"cache_salt":"x` + long + `"`: "cache_salt", `,"cache_salt":"x","extra_key":"` + long + `"`: "cache_salt",
	} {
		for kind, prompt := range map[Kind]string{Completion: `"prompt":["hello","there"]`, Chat: `"messages":[{"role":"user","content":"hi"}]`} {
			g, err := kind.Parse([]byte("{"+prompt+fields+"}"), testedModel)
			var refused *Error
			if want == "cache_salt" {
				if !errors.As(err, &refused) || refused.Param != want || refused.Status != 400 {
					t.Errorf("%s: %v", fields, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", fields, err)
				continue
			}
			for _, c := range g.Choices {
				if c.Salt != want {
					t.Errorf("%s: the salt is %q, want %q", fields, c.Salt, want)
				}
			}
		}
	}
}

// chatOf are the tokens of a conversation, given as roles and contents in turn.
func chatOf(t *testing.T, turns ...string) []uint32 {
	t.Helper()
	var messages []ChatMessage
	for i := 0; i < len(turns); i += 2 {
		messages = append(messages, ChatMessage{Role: turns[i], Content: turns[i+1]})
	}
	ids, err := testTokenizer.EncodeChat(messages)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func FuzzJSONString(f *testing.F) {
	for _, s := range []string{"", "a\"b\\c", "\x00\x1f\x7f\n\t", "héllo\xff", "\u2028<>&"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ours := AppendString(nil, s)
		theirs, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var got, want string
		if err := errors.Join(json.Unmarshal(ours, &got), json.Unmarshal(theirs, &want)); err != nil || got != want {
			t.Fatalf("%q became %s, %v; encoding/json has %s", s, ours, err, theirs)
		}
	})
}
