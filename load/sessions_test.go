package load

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// told are requests in short.
func told(all List) (lines []string) {
	for _, r := range all {
		line := fmt.Sprintf("%v %d+%d", r.At, len(r.Prompt), r.MaxTokens)
		if len(r.After) > 0 {
			line += fmt.Sprintf(" after %v +%v", r.After, r.Delay)
		}
		if r.Continues {
			line += " continues"
		}
		lines = append(lines, line)
	}
	return lines
}

// TestWekaLoad: calls wait for what they waited for, prompts share the blocks of their ids
// and no more, and not those of another session.
func TestWekaLoad(t *testing.T) {
	s := Spec{Kind: "weka", File: "testdata/agents/weka.jsonl", Rate: math.Inf(1), Burstiness: 1, Speed: 1, Vocab: 5000}
	all, _ := collected(t, s)
	compareLines(
		t, told(all),
		"0s 200+40",
		"0s 100+30 after [0] +550ms",
		"0s 130+20 after [0] +600ms",
		"0s 64+5 after [0] +700ms",
		"0s 192+10 after [2] +500ms",
		"0s 300+60 after [1 4] +500ms",
		"0s 128+8",
		"0s 160+8 after [6] +12.5s",
	)
	shared := func(a, b int) (n int) {
		x, y := all[a].Prompt, all[b].Prompt
		for n < min(len(x), len(y)) && x[n] == y[n] {
			n++
		}
		return n
	}
	for _, c := range []struct{ a, b, want int }{{0, 5, 192}, {2, 4, 128}, {2, 3, 64}, {0, 1, 0}, {6, 7, 128}, {0, 6, 0}} {
		if got := shared(c.a, c.b); got != c.want {
			t.Errorf("requests %d and %d share %d tokens, want %d", c.a, c.b, got, c.want)
		}
	}
	if all[0].Group != "s1" || all[7].Group != "s2" {
		t.Errorf("groups %q and %q", all[0].Group, all[7].Group)
	}
	// Twice as fast, no longer than 2 s, and the second session comes later.
	s.Speed, s.MaxDelay, s.Rate, s.ArrivalMode, s.Burstiness = 2, 2*time.Second, 0.5, ArrivalNormalized, math.Inf(1)
	all, _ = collected(t, s)
	compareLines(
		t, told(all),
		"2s 200+40",
		"0s 100+30 after [0] +275ms",
		"0s 130+20 after [0] +300ms",
		"0s 64+5 after [0] +350ms",
		"0s 192+10 after [2] +250ms",
		"0s 300+60 after [1 4] +250ms",
		"4s 128+8",
		"0s 160+8 after [6] +1s",
	)
	s.Requests = 1
	if all, _ := collected(t, s); len(all) != 6 {
		t.Errorf("one session has %d calls", len(all))
	}
}

// TestSpansLoad: without texts a call that goes on with its agent's context continues it
// with what is new, one that does not begins with what was cached.
func TestSpansLoad(t *testing.T) {
	s := Spec{Kind: "otel", File: "testdata/agents/otlp.jsonl", Speed: 1, Vocab: 5000}
	all, _ := collected(t, s)
	compareLines(
		t, told(all),
		"0s 300+50",
		"0s 100+20 after [0] +200ms",
		"0s 70+30 after [0 1] +900ms continues",
		"0s 200+7 after [2] +1s",
	)
	if !slices.Equal(all[3].Prompt[:128], all[0].Prompt[:128]) || all[3].Prompt[128] == all[0].Prompt[128] {
		t.Error("the last call does not begin with the 128 tokens that were cached")
	}
	recorded := s
	recorded.Recorded = true
	whole, _ := collected(t, recorded)
	compareLines(
		t, told(whole),
		"0s 300+50",
		"0s 100+20 after [0] +200ms",
		"0s 420+30 after [1] +900ms",
		"0s 200+7 after [2] +1s",
	)
	if !slices.Equal(whole[2].Prompt[:300], all[0].Prompt) || !slices.Equal(whole[2].Prompt[350:], all[2].Prompt) {
		t.Error("the recorded call is not the first, an answer, and what is new")
	}
}

// TestTraceLabLoad: a round goes on with the one before it, and a subagent's between them does
// not.
func TestTraceLabLoad(t *testing.T) {
	all, _ := collected(t, Spec{Kind: "tracelab", File: "testdata/agents/tracelab.jsonl", Speed: 1, Vocab: 5000})
	compareLines(
		t, told(all),
		"0s 1000+50",
		"0s 300+20 after [0] +1s",
		"0s 150+40 after [0 1] +4.5s continues",
		"0s 400+8 after [2] +53.5s",
		"10s 70+5",
	)
	if !slices.Equal(all[3].Prompt[:256], all[0].Prompt[:256]) || all[3].Prompt[256] == all[0].Prompt[256] {
		t.Error("the last round does not begin with what was cached")
	}
}

// TestSpansTexts: messages for chats, a text for others; the next turn has what is new.
func TestSpansTexts(t *testing.T) {
	s := Spec{Kind: "otel", File: "testdata/agents/spans.json", Speed: 1, Vocab: 5000, Tokenizer: thousand{}}
	all, _ := collected(t, s)
	question := Message{"user", "What is the capital of France?"}
	if r := all[0]; !slices.Equal(r.Messages, []Message{question}) || r.Text != "user: What is the capital of France?\nassistant:" || len(r.Prompt) != len(r.Text)/4+1 || r.Group != "tour" {
		t.Errorf("%+v", r)
	}
	if r := all[1]; !r.Continues || r.Text != "\nuser: What is there to see?\nassistant:" || len(r.Messages) != 1 || r.Delay != 500*time.Millisecond {
		t.Errorf("%+v", r)
	}
	s.Recorded, s.Tokenizer = true, nil
	all, _ = collected(t, s)
	if all[0].MaxTokens != 9 || all[1].MaxTokens != 50 {
		t.Errorf("%d and %d tokens are wanted", all[0].MaxTokens, all[1].MaxTokens)
	}
	said := s
	said.File = written(t, `{"trace_id": "t", "span_id": "s", "start_time": "2026-02-25T10:00:00Z", "end_time": "2026-02-25T10:00:01Z", "attributes": `+
		`{"gen_ai.operation.name": "chat", "gen_ai.request.max_tokens": 500, "gen_ai.input.messages": [{"role": "user", "content": "a"}], "gen_ai.output.text": "four words of it"}}`)
	if all, _ := collected(t, said); all[0].MaxTokens != 4 {
		t.Errorf("%d tokens are wanted of an answer of four words", all[0].MaxTokens)
	}
	if r := all[1]; r.Continues || len(r.Messages) != 3 || !strings.Contains(r.Text, "assistant: Paris, on the Seine.\n") || r.Prompt != nil || !slices.Equal(r.After, []int{0}) {
		t.Errorf("%+v", r)
	}
}

// span is a line of a file of spans.
func spanLine(trace, id string, start, end time.Duration, in int) string {
	at := func(d time.Duration) string {
		return time.Date(2026, 2, 25, 10, 0, 0, 0, time.UTC).Add(d).Format(time.RFC3339Nano)
	}
	return fmt.Sprintf(`{"trace_id": %q, "span_id": %q, "start_time": %q, "end_time": %q, "attributes": {"gen_ai.usage.input_tokens": %d, "gen_ai.usage.output_tokens": 5}}`+"\n",
		trace, id, at(start), at(end), in)
}

// TestSessionsMerge: sessions that overlap are merged by time, each call that follows none
// with those that follow it; one that waits for two comes with the later.
func TestSessionsMerge(t *testing.T) {
	const ms = time.Millisecond
	file := written(t, spanLine("a", "a1", 0, 400*ms, 10)+spanLine("a", "a2", 300*ms, 500*ms, 20)+spanLine("a", "a3", 600*ms, 700*ms, 30)+
		spanLine("b", "b1", 100*ms, 200*ms, 11)+spanLine("b", "b2", 350*ms, 450*ms, 21)+spanLine("c", "c1", 5000*ms, 5001*ms, 12))
	s := Spec{Kind: "otel", File: file, Speed: 1, Vocab: 5000}
	all, _ := collected(t, s)
	compareLines(
		t, told(all),
		"0s 10+5",
		"100ms 11+5",
		"0s 5+5 after [1] +150ms continues",
		"300ms 20+5",
		"0s 5+5 after [3 0] +100ms continues",
		"5s 12+5",
	)
	// At a rate each session begins when it comes.
	s.Untimed, s.Rate, s.Burstiness, s.ArrivalMode, s.Compat = true, 1, math.Inf(1), ArrivalLegacy, CompatVLLM
	all, l := collected(t, s)
	compareLines(
		t, told(all),
		"0s 10+5",
		"300ms 20+5",
		"0s 5+5 after [1 0] +100ms continues",
		"1s 11+5",
		"0s 5+5 after [3] +150ms continues",
		"2s 12+5",
	)
	if l.End != 3*time.Second {
		t.Errorf("the run lasts until %v, want a gap after each of three sessions", l.End)
	}
	s.Requests = 2
	if all, _ := collected(t, s); len(all) != 5 {
		t.Errorf("two sessions have %d calls", len(all))
	}
}

func TestSessionFaults(t *testing.T) {
	weka := Spec{Kind: "weka", File: "testdata/agents/weka.jsonl", Rate: 1, Burstiness: 1, Speed: 1, Vocab: 10}
	for want, change := range map[string]func(s *Spec){
		"Functions.File: \"x\": leave it out": func(s *Spec) { s.Functions.File = "x" },
		"MaxDelay: -1ns: use more than 0":     func(s *Spec) { s.MaxDelay = -1 },
		"Rate: 0: use more than 0":            func(s *Spec) { s.Rate = 0 },
		"there is no such file":               func(s *Spec) { s.File = "none" },
		"none\": there is no such file":       func(s *Spec) { s.Kind, s.File = "otel", "none" },
		"raise the rate":                      func(s *Spec) { s.Rate = 1e-300 },
		"request 1 would arrive after": func(s *Spec) {
			s.Kind, s.Speed, s.File = "otel", 1e-300, written(t, spanLine("a", "a", 0, 9, 1)+spanLine("a", "b", 1, 9, 1))
		},
		"session b begins too long after": func(s *Spec) {
			s.Kind, s.Speed, s.File = "otel", 1e-300, written(t, spanLine("a", "a", 0, 9, 1)+spanLine("b", "b", 1, 9, 1))
		},
		"file:1: block_size: 0: use 1":          func(s *Spec) { s.File = written(t, "{}") },
		"file:1: block_size: 0: use 1 to 16777": func(s *Spec) { s.File, s.Compat = written(t, "{}"), CompatVLLM },
	} {
		s := weka
		change(&s)
		if _, err := collect(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v: want %q in it", s, err, want)
		}
	}
}
