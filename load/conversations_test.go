package load

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/load/trace"
)

// asked are requests' messages in short, what the request continues first.
func asked(all List) (lines []string) {
	for _, r := range all {
		var says []string
		for _, m := range r.Messages {
			says = append(says, m.Role+": "+m.Content)
		}
		line := strings.Join(says, " / ")
		if line == "" {
			line = fmt.Sprintf("%d tokens", len(r.Prompt))
		}
		if r.Continues {
			line = fmt.Sprintf("%v +%v ", r.After, r.Delay) + line
		}
		lines = append(lines, fmt.Sprintf("%s %s -> %d", r.Group, line, r.MaxTokens))
	}
	return lines
}

// compareLines compares requests in short, as asked or told has them.
func compareLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestConversations: each form of a conversation, with the server's answers and with those
// that were recorded.
func TestConversations(t *testing.T) {
	s := Spec{Kind: "conversation", File: "testdata/conversations.jsonl", Rate: math.Inf(1), Burstiness: 1, Speed: 1, Vocab: 5000}
	all, _ := collected(t, s)
	compareLines(
		t, asked(all),
		"a system: Be brief. / user: What is a block? -> 12",
		"a [0] +1.5s user: And a page?\nIn one word. -> 3",
		"7 system: Be kind. / user: Hello -> 3",
		"7 [2] +0s user: How many GPUs? -> 5",
		"s user: One -> 2",
		"s [4] +0s user: Four -> 1",
		"m 300 tokens -> 40",
		"m [6] +2s 150 tokens -> 20",
		"5 64 tokens -> 8",
	)
	if r := all[1]; r.Text != "\nuser: And a page?\nIn one word.\nassistant:" || r.Prompt != nil {
		t.Errorf("%q, %v", r.Text, r.Prompt)
	}
	s.Recorded, s.Requests = true, 4
	all, _ = collected(t, s)
	compareLines(
		t, asked(all),
		"a system: Be brief. / user: What is a block? -> 12",
		"a system: Be brief. / user: What is a block? / user: And a page?\nIn one word. -> 3",
		"7 system: Be kind. / user: Hello -> 3",
		"7 system: Be kind. / user: Hello / assistant: Hello to you / user: How many GPUs? -> 5",
		"s user: One -> 2",
		"s user: One / assistant: Two three / user: Four -> 1",
		"m 300 tokens -> 40",
		"m 490 tokens -> 20",
	)
	if !slices.Equal(all[6].Prompt, all[7].Prompt[:300]) || !slices.Equal(all[7].After, []int{6}) {
		t.Error("the second turn does not begin with the first, or does not wait for it")
	}
	// One turn each, those after the first two, which come last; answers of one length.
	s = Spec{
		Kind: "conversation", File: s.File, Rate: 2, ArrivalMode: ArrivalLegacy, Burstiness: math.Inf(1), Speed: 2, Vocab: 5000, Tokenizer: thousand{},
		Conversations: Conversations{MaxTurns: 1, Offset: 7, OutputLen: 9}, MaxDelay: time.Second,
	}
	all, l := collected(t, s)
	compareLines(
		t, asked(all),
		"s user: One -> 9", "m 300 tokens -> 40", "3 64 tokens -> 8", "a system: Be brief. / user: What is a block? -> 12", "7 system: Be kind. / user: Hello -> 9",
	)
	if len(all[0].Prompt) == 0 || all[4].At != 2*time.Second || l.End != 2500*time.Millisecond {
		t.Errorf("%d tokens, the last at %v, the run until %v", len(all[0].Prompt), all[4].At, l.End)
	}
	s.Requests = 2
	if all, _ := collected(t, s); len(all) != 2 {
		t.Errorf("%d requests", len(all))
	}
}

// TestConversationTimes: turns with timestamps are not before them, and are still behind the
// answer.
func TestConversationTimes(t *testing.T) {
	s := Spec{Kind: "conversation", Rate: math.Inf(1), Burstiness: 1, Speed: 2, Conversations: Conversations{OutputLen: 5}, Vocab: 5000, File: written(t, `[
{"turns": [{"timestamp": 1000, "text": "a"}, {"timestamp": 4000, "text": "b"}]},
{"turns": [{"timestamp": 2000, "text": "c"}]}]`)}
	all, _ := collected(t, s)
	if len(all) != 3 || all[0].At != 0 || all[1].At != 1500*time.Millisecond || !all[1].Continues || all[2].At != 500*time.Millisecond {
		t.Errorf("%v", told(all))
	}
	s.Untimed = true
	if all, _ := collected(t, s); all[1].At != 0 || all[2].At != 0 {
		t.Errorf("%v", told(all))
	}
}

// TestAgenticTrace: SGLang's conversations, the new messages of each turn.
func TestAgenticTrace(t *testing.T) {
	s := Spec{Kind: "agentic-trace", Compat: CompatSGLang, File: "testdata/agentic_trace.json", Rate: 4, Burstiness: 1, Vocab: 9, Seed: 42}
	all, l := collected(t, s)
	compareLines(
		t, asked(all),
		"1 system: You are a coding agent. / user: Fix the test. -> 220",
		"1 [0] +0s tool: FAIL: TestQueue -> 220",
		"1 [1] +0s tool: ok -> 220",
		"2 user: Write a test. -> 220",
	)
	// Conversations come at SGLang's gaps: numpy.random.seed(42); numpy.random.exponential(0.25, 2).
	if math.Abs(all[3].At.Seconds()-0.11731702) > 1e-8 || math.Abs(l.End.Seconds()-(0.11731702+0.75253036)) > 1e-7 {
		t.Errorf("the second at %v, the run until %v", all[3].At, l.End)
	}
	s.Conversations = Conversations{MaxTurns: 2, Offset: 3}
	all, _ = collected(t, s)
	compareLines(
		t, asked(all),
		"1 user: Write a test. -> 220",
		"2 system: You are a coding agent. / user: Fix the test. -> 220",
		"2 [1] +0s tool: FAIL: TestQueue -> 220",
	)
}

// TestMultiTurn: turns, lengths and delays within their bounds, and a context that grows.
func TestMultiTurn(t *testing.T) {
	s := Spec{
		Kind: "multi-turn", Requests: 200, Rate: 10, Burstiness: 1, InputLen: 40, OutputLen: 20, RangeRatio: 0.5, PrefixLen: 16, Vocab: 5000,
		MultiTurn: MultiTurn{MinTurns: 2, MaxTurns: 5, MinThink: time.Second, MaxThink: 3 * time.Second, ContextLen: 100},
	}
	all, _ := collected(t, s)
	turns := map[string]int{}
	var longest time.Duration
	for i, r := range all {
		first := !r.Continues
		turns[r.Group]++
		longest = max(longest, r.Delay)
		if n := len(r.Prompt); first && (n < 136 || n > 176 || len(r.After) > 0) || !first && (n < 20 || n > 60 || r.After[0] != i-1 || r.Delay < time.Second || r.Delay > 3*time.Second) {
			t.Errorf("request %d: %s", i, told(List{r})[0])
		}
		if first && i > 0 && (!slices.Equal(r.Prompt[:16], all[0].Prompt[:16]) || slices.Equal(r.Prompt[16:32], all[0].Prompt[16:32])) {
			t.Errorf("request %d does not share exactly the prefix", i)
		}
	}
	counts := map[int]int{}
	for _, n := range turns {
		counts[n]++
	}
	if len(turns) != 200 || len(counts) != 4 || counts[2] == 0 || counts[5] == 0 || longest < 2500*time.Millisecond {
		t.Errorf("%d conversations, of %v turns, the longest delay %v", len(turns), counts, longest)
	}
	s.MaxDelay = 1500 * time.Millisecond
	if all, _ := collected(t, s); slices.MaxFunc(all, func(a, b Request) int { return int(a.Delay - b.Delay) }).Delay != s.MaxDelay {
		t.Error("delays are longer than the longest")
	}
}

func TestConversationFaults(t *testing.T) {
	good := `{"turns": [{"text": "a", "output_length": 1}]}` + "\n"
	for text, want := range map[string]string{
		good + `{"id": 1}`:     "file:2: turns, messages, conversations or input_length is missing",
		good + `{"turns": []}`: "file:2: nobody says anything",
		good + `{"messages": [{"role": "assistant", "content": "a"}]}`:                                                   "file:2: nobody says anything",
		good + `{"turns": [{"delay": 1}]}`:                                                                               "file:2: turns[0].text is missing",
		good + `{"turns": [{"texts": [{"name": "x"}]}]}`:                                                                 "file:2: turns[0].texts: the value: object: want a text",
		good + `{"turns": [{"text": "a"}]}`:                                                                              "file:2: turns[0].output_length: no answer was recorded",
		good + `{"turns": [{"text": "a", "output_length": 0}]}`:                                                          "file:2: turns[0].output_length: 0: use a whole",
		good + `{"turns": [{"text": "a", "delay": -1}]}`:                                                                 "file:2: turns[0].delay: -1: use 0 or more",
		good + `{"turns": [{"text": "a", "timestamp": 1e99}]}`:                                                           "file:2: turns[0].timestamp: 1e+99: too large",
		good + `{"messages": [{"role": "user"}]}`:                                                                        "file:2: messages[0]: role or content is missing",
		good + `{"messages": [{"role": "user", "content": "a"}]}`:                                                        "file:2: messages[0]: no answer was recorded",
		good + `{"input_length": 1.5}`:                                                                                   "file:2: input_length: 1.5: use a whole",
		good + `{"input_length": 1}`:                                                                                     "file:2: output_length: no answer was recorded",
		`{"turns": [{"text": "a", "output_length": 1, "timestamp": 5}]}` + "\n" + good:                                   "file:2: turns[0].timestamp is missing",
		`{"input_length": 1, "output_length": 1, "timestamp": 5}{"input_length": 1, "output_length": 1, "timestamp": 4}`: "file:1: turns[0].timestamp: it is before",
	} {
		s := Spec{Kind: "conversation", File: written(t, text), Rate: math.Inf(1), Burstiness: 1, Speed: 1, Vocab: 9}
		for _, s.Conversations.Offset = range []int{0, 1} {
			if _, err := collect(s); (err == nil || !strings.Contains(err.Error(), want)) && !(s.Conversations.Offset == 1 && strings.Contains(want, "timestamp")) {
				t.Errorf("%s: %v: want %q in it", text, err, want)
			}
		}
	}
	for want, s := range map[string]Spec{
		"Conversations.MaxTurns: -1: use 1": {Kind: "conversation", Conversations: Conversations{MaxTurns: -1}},
		"Conversations.Offset: -1: use 0":   {Kind: "agentic-trace", Conversations: Conversations{Offset: -1}},
		"ShareGPT.OutputLen: -1: use 0 to":  {Kind: "agentic-trace", ShareGPT: ShareGPT{OutputLen: -1}},
		"Recorded: true: leave it out":      {Kind: "agentic-trace", Recorded: true},
		"MultiTurn.MinTurns: 0: use 1":      {Kind: "multi-turn"},
		"MultiTurn.MaxTurns: 1: use as":     {Kind: "multi-turn", MultiTurn: MultiTurn{MinTurns: 2, MaxTurns: 1}},
		"MultiTurn.MinThink: -1ns: use 0":   {Kind: "multi-turn", MultiTurn: MultiTurn{MinThink: -1}},
		"MultiTurn.MaxThink: 1ns: use as":   {Kind: "multi-turn", MultiTurn: MultiTurn{MinThink: 2, MaxThink: 1}},
		"MultiTurn.ContextLen: -1: use 0":   {Kind: "multi-turn", MultiTurn: MultiTurn{ContextLen: -1}},
	} {
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v: want %q in it", s, err, want)
		}
	}
	bad := written(t, `{"conversations": [[{"messages": [{"role": "user"}]}]]}`)
	if _, err := collect(Spec{Kind: "agentic-trace", File: bad, Rate: 1, Burstiness: 1, Vocab: 9}); err == nil || !strings.Contains(err.Error(), "file:1: [0].messages[0]: role or content is missing") {
		t.Error(err)
	}
}

// FuzzConversations: whatever the file, turns wait for one another until the end or an
// error that names the line.
func FuzzConversations(f *testing.F) {
	f.Add([]byte(`{"turns": [{"text": "a", "delay": 5}, {"texts": ["b"]}]}`))
	f.Add([]byte(`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}`))
	f.Add([]byte(`{"session_id": "m", "input_length": 3, "delay": 2}{"session_id": "m", "input_length": 3}`))
	f.Add([]byte(`{"conversations": [[{"messages": [{"role": "user", "content": "a"}]}]]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s := Spec{Vocab: 100, Conversations: Conversations{OutputLen: 3}, Speed: 1, File: "f"}
		for key, from := range map[string]format{"": &fileTurns{Spec: s}, "conversations": &agenticTurns{Spec: s}} {
			c := &conversations{Spec: s, format: from, rows: trace.NewJSON("f", bytes.NewReader(text), key), left: -1, starts: &legacy{gaps: gaps{rate: math.Inf(1)}}}
			for n := 0; ; n++ {
				r, ok, err := c.Next()
				if err != nil && !strings.HasPrefix(err.Error(), "f:") {
					t.Errorf("%v does not name the line", err)
				}
				if !ok || err != nil {
					break
				}
				if r.At < 0 || r.Delay < 0 || r.MaxTokens < 1 || r.Text == "" && len(r.Prompt) == 0 || len(r.After) > 0 && r.After[0] != n-1 {
					t.Errorf("request %d: %+v", n, r)
				}
			}
		}
	})
}
