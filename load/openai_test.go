package load

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

// TestOpenAI: messages and the other fields go out as they stand in the file, but for those that
// the client decides; a line without messages counts and is not asked.
func TestOpenAI(t *testing.T) {
	s := Spec{Kind: "openai", Chat: true, Rate: math.Inf(1), Vocab: 9, Requests: 3, File: written(t, `{"messages": [{"role": "user", "content": "Hi"}], "model": "other", "max_tokens": 7, "stream": false, "ignore_eos": false, "top_p": 0.9}

{"messages": []}
{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"role": "assistant", "content": null, "tool_calls": []}]}
{"messages": [{"role": "user", "content": "never"}]}
`)}
	all, l := collected(t, s)
	compareLines(t, asked(all), " user: Hi -> 7", " user: ab / assistant:  -> 256")
	if names := slices.Sorted(maps.Keys(all[0].Fields)); !slices.Equal(names, []string{"ignore_eos", "messages", "top_p"}) || !all[0].MayStop || all[1].MayStop {
		t.Errorf("%v of the first, may stop %t and %t", names, all[0].MayStop, all[1].MayStop)
	}
	if raw := string(all[1].Fields["messages"]); !strings.Contains(raw, `"tool_calls": []`) || !strings.Contains(raw, `{"type": "text", "text": "b"}`) {
		t.Errorf("messages are sent as %s", raw)
	}
	if s.Chat = false; len(l.Notes) > 0 {
		t.Errorf("notes %q", l.Notes)
	}
	if _, l = collected(t, s); len(l.Notes) != 1 || !strings.Contains(l.Notes[0], "--backend openai-chat") {
		t.Errorf("an endpoint without chats: notes %q", l.Notes)
	}
	for text, want := range map[string]string{
		`{"messages": 5}`: "file:1: messages: ",
		`{"messages": [{"role": "user", "content": 5}]}`:           "file:1: messages[0].content: give a text",
		`{"messages": [{"content": "a"}]}`:                         "file:1: messages[0].role is missing",
		`{"messages": [{"role": "a"}], "max_tokens": 0}`:           "file:1: max_tokens: 0: use a whole number",
		`{"messages": [{"role": "a"}]}` + "\n" + `{"messages": [}`: "file:2: this is no JSON",
	} {
		if _, err := collect(Spec{Kind: "openai", Rate: 1, Burstiness: 1, Vocab: 9, File: written(t, text)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q in it", text, err, want)
		}
	}
}

// TestNames: a name is known however it is written, and what a tool has and we have not is
// refused with the reason.
func TestNames(t *testing.T) {
	for name, want := range map[string]string{"speed-bench": SpeedBenchName, "prefix-repetition": PrefixRepetitionName, "agentic_trace": "agentic-trace", "": Random, "nothing": "nothing"} {
		if got := NameOf(name); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{
		"random-mm": "images and sound", "custom_image": "images and sound", "mmmu": "images and sound", "image": "images and sound", "random-rerank": "a reranker generates nothing", "hf": "use custom with --dataset-path",
		"bursty": "there is no such load: use random, ",
	} {
		if err := (Spec{Kind: name}).Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q in it", name, err, want)
		}
	}
}
