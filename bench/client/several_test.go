package client

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"kvferry/bench/nullserver"
	"kvferry/kvcache"
	"kvferry/load"
)

// choiceOf is a chunk of one of several answers.
func choiceOf(index int, text, finish string) string {
	return fmt.Sprintf("data: {\"choices\":[{\"index\":%d,\"text\":%q,\"finish_reason\":%s}]}\n\n", index, text, finish)
}

// TestSeveralAnswers: with n all answers of a request are read, in whatever order their chunks
// come, and the text is the first's.
func TestSeveralAnswers(t *testing.T) {
	const null, length, eos = "null", `"length"`, `"stop"`
	counted := func(n int) string {
		return fmt.Sprintf("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":%d}}\n\n", n)
	}
	for _, c := range []struct {
		name   string
		pieces []string
		tok    load.Tokenizer
		output int
		chunks int
		text   string
		fault  string
		notes  []string
	}{
		{
			"one after the other",
			[]string{choiceOf(1, "x", null), choiceOf(0, "a", null), choiceOf(1, "y", length), choiceOf(0, "b", length), counted(4), doneAt},
			nil, 4, 4, "ab", "", nil,
		},
		{
			"two in a chunk",
			[]string{
				`data: {"choices":[{"index":0,"text":"a"},{"index":1,"text":"x"}]}` + "\n\n",
				`data: {"choices":[{"index":1,"text":"y","finish_reason":"length"},{"index":0,"text":"b","finish_reason":"length"}]}` + "\n\n", counted(4), doneAt,
			},
			nil, 4, 2, "ab", "",
			[]string{NoteNotStreamed, NoteChunks},
		},
		{"counted by the tokenizer", []string{choiceOf(0, "abc", length), choiceOf(1, "xy", length), doneAt}, letters{}, 5, 2, "abc", "", []string{NoteChunks, NoteLong}},
		{"one too short", []string{choiceOf(0, "ab", length), choiceOf(1, "x", length), counted(3), doneAt}, nil, 3, 2, "ab", FaultShort, nil},
		{"one that stops", []string{choiceOf(0, "ab", length), choiceOf(1, "x", eos), counted(3), doneAt}, nil, 3, 2, "ab", "", []string{NoteStopped, NoteChunks}},
		{"one that does not end", []string{choiceOf(0, "a", null), choiceOf(0, "b", length), choiceOf(1, "x", null)}, letters{}, 3, 3, "ab", FaultNoEnd, nil},
		{
			"runes cut in both",
			[]string{"data: {\"choices\":[{\"index\":1,\"text\":\"\xe2\x82\"}]}\n\n", choiceOf(0, "a", null), "data: {\"choices\":[{\"index\":1,\"text\":\"\xac\",\"finish_reason\":\"length\"}]}\n\n", choiceOf(0, "b", length), counted(4), doneAt},
			nil, 4, 4, "ab", "", nil,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var body struct{ N int }
				if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.N != 2 {
					t.Errorf("n is %d, %v", body.N, err)
				}
				says(c.pieces...)(w)
			}))
			defer s.Close()
			cfg := Config{URL: s.URL, Extra: map[string]json.RawMessage{"n": []byte("2")}, KeepText: true, Tokenizer: c.tok}
			r := single(t, cfg, load.Request{Prompt: []kvcache.Token{1}, MaxTokens: 2})
			if r.Fault != c.fault || r.Output() != c.output || len(r.TokenTimes) != c.chunks || r.Text != c.text || r.Answers != 2 || r.Wanted() != 4 {
				t.Errorf("%+v", r)
			}
			// What is written fast may be read at once.
			odd := slices.DeleteFunc(r.Notes, func(n string) bool { return slices.Contains(c.notes, n) || n == NoteNotStreamed })
			if c.fault == "" && len(odd) > 0 {
				t.Errorf("notes %q", odd)
			}
		})
	}
}

// TestSeveralAnswersIgnored: a server that gives one answer all the same is found by the probe.
func TestSeveralAnswersIgnored(t *testing.T) {
	k := New(Config{URL: null(t, nullserver.Config{}).URL(), Extra: map[string]json.RawMessage{"n": []byte("2")}})
	defer k.Close()
	if _, err := k.Probe(t.Context(), "null", Needs{}); err == nil || !strings.Contains(err.Error(), "Extra: server at") || !strings.Contains(err.Error(), "for 2 answers, and the server gives 1") {
		t.Errorf("%v", err)
	}
}

// TestSeveralAnswersRefused: what cannot be read is refused before anything is sent.
func TestSeveralAnswersRefused(t *testing.T) {
	for _, c := range []struct{ backend, field, value, want string }{
		{"openai", "n", "0", "n: 0: use 1 to"},
		{"openai-chat", "n", `"two"`, "use 1 to"},
		{"sglang", "sampling_params", `{"n":2}`, "sampling_params: n is 2"},
	} {
		err := Config{URL: "http://localhost", Backend: c.backend, Extra: map[string]json.RawMessage{c.field: []byte(c.value)}}.Validate()
		if err == nil || !strings.Contains(err.Error(), "Extra: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %q", c.field, c.value, err, c.want)
		}
	}
}
