package openai

import (
	"encoding/json"
	"errors"
	"slices"
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
