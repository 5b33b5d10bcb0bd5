package trace

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const samples = "../testdata/agents/"

// told is a session in short: a line for each call.
func told(s *Session) (lines []string) {
	for _, c := range s.Calls {
		lines = append(lines, fmt.Sprintf("%v-%v %d+%d after %v +%v before %d", c.Start, c.End, c.Input, c.Output, c.After, c.Delay, c.Before))
	}
	return lines
}

func next(t *testing.T, r Reader) *Session {
	t.Helper()
	s, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestWeka: two subagents run side by side after the first call, the next call waits for
// both, and nothing waits for the one that was only launched.
func TestWeka(t *testing.T) {
	w, err := OpenWeka(samples + "weka.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	s := next(t, w)
	want := []string{
		"0s-1.5s 200+40 after [] +0s before -1",
		"2.05s-4.5s 100+30 after [0] +550ms before -1",
		"2.1s-3.1s 130+20 after [0] +600ms before -1",
		"2.2s-2.3s 64+5 after [0] +700ms before -1",
		"3.6s-4s 192+10 after [2] +500ms before 2",
		"5s-7s 300+60 after [1 4] +500ms before 0",
	}
	if got := told(s); s.ID != "s1" || !s.Start.IsZero() || !slices.Equal(got, want) {
		t.Errorf("%s at %v:\n%s\nwant\n%s", s.ID, s.Start, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// The id of a part of a block is left out.
	for i, blocks := range []string{"[1 2 3]", "[11]", "[7 8]", "[7]", "[7 8 9]", "[1 2 3 4]"} {
		if c := s.Calls[i]; fmt.Sprint(c.Blocks) != blocks || c.BlockSize != 64 || c.Shared {
			t.Errorf("call %d: %+v, want blocks %s", i, c, blocks)
		}
	}
	// Without api_time the end is not known, and think_time is the delay.
	s = next(t, w)
	if got, want := told(s), []string{"0s-0s 128+8 after [] +0s before -1", "30s-30s 160+8 after [0] +12.5s before 0"}; !slices.Equal(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
	for range 2 {
		if s := next(t, w); s != nil {
			t.Errorf("a third session: %+v", s)
		}
	}
}

// TestFolder: the files of a folder one after the other, by name, and no others.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	const session = `{"id": "%s", "block_size": 16, "requests": [{"t": 0, "type": "n", "in": 1, "out": 1}]}`
	for name, text := range map[string]string{"b.json": fmt.Sprintf(session, "b"), "a.jsonl": fmt.Sprintf(session, "a1") + fmt.Sprintf(session, "a2"), "read.me": "no JSON"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w, err := OpenWeka(dir)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for s := next(t, w); s != nil; s = next(t, w) {
		ids = append(ids, s.ID)
	}
	if !slices.Equal(ids, []string{"a1", "a2", "b"}) || w.Close() != nil {
		t.Error(ids)
	}
	if _, err := OpenWeka(filepath.Join(dir, "none")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
}

// TestOTLP: the tree of the spans, whatever order they come in. A tool that calls a model is
// waited for, one that failed is left out, and one without a model is only time.
func TestOTLP(t *testing.T) {
	s, err := OpenSpans(samples + "otlp.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	session := next(t, s)
	want := []string{
		"500ms-1.5s 300+50 after [] +0s before -1",
		"1.7s-2.7s 100+20 after [0] +200ms before -1",
		"3.6s-4.5s 420+30 after [1] +900ms before 0",
		"5.5s-6.5s 200+7 after [2] +1s before 2",
	}
	if got := told(session); !slices.Equal(got, want) || session.Calls[3].Cached != 128 || session.Start.UnixNano() != 1771235999500000000 {
		t.Errorf("at %v:\n%s\nwant\n%s", session.Start, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if next(t, s) != nil || s.Len() != 1 || s.Close() != nil {
		t.Error("there is another session")
	}
}

// TestTexts: texts in both forms, a conversation by its id, and the answer that was
// recorded.
func TestTexts(t *testing.T) {
	s, err := OpenSpans(samples + "spans.json")
	if err != nil {
		t.Fatal(err)
	}
	session := next(t, s)
	question := Message{"user", "What is the capital of France?"}
	a, b := session.Calls[0], session.Calls[1]
	if session.ID != "tour" || a.Answer != "Paris, on the Seine." || b.Output != 50 || !slices.Equal(a.Messages, []Message{question}) ||
		!slices.Equal(b.Messages, []Message{question, {"assistant", a.Answer}, {"user", "What is there to see?"}}) || b.Delay != 500*time.Millisecond {
		t.Errorf("%s: %+v, %+v", session.ID, a, b)
	}
}

// TestMessages: what is not text is its JSON, and a system prompt comes first.
func TestMessages(t *testing.T) {
	a := attrs{
		"gen_ai.system_instructions":    `[{"type": "text", "content": "Be brief."}]`,
		"gen_ai.input.messages":         `[{"role": "assistant", "parts": [{"type": "tool_call", "name": "f"}, {"type": "text", "content": "x"}]}, {"content": "y"}]`,
		"gen_ai.usage.output_tokens":    3.0,
		"gen_ai.output.messages":        []any{map[string]any{"role": "assistant", "content": "z"}},
		"gen_ai.usage.input_tokens":     "4",
		"gen_ai.usage.cache_read_input": 1.0,
	}
	c, err := a.call()
	want := []Message{{"system", "Be brief."}, {"assistant", "{\"name\":\"f\",\"type\":\"tool_call\"}\nx"}, {"user", "y"}}
	if err != nil || !slices.Equal(c.Messages, want) || c.Answer != "z" || c.Input != 4 || c.Output != 3 {
		t.Errorf("%+v, %v", c, err)
	}
	// A limit is not a length: it stands for one only where nothing was recorded.
	a["gen_ai.request.max_tokens"] = 500.0
	delete(a, "gen_ai.usage.output_tokens")
	if c, err := a.call(); err != nil || c.Output != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	delete(a, "gen_ai.output.messages")
	if c, err := a.call(); err != nil || c.Output != 500 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestWekaFaults(t *testing.T) {
	request := func(text string) string {
		return "\n" + `{"id": "s", "block_size": 64, "requests": [{"t": 0, "type": "n", "in": 1, "out": 1}, ` + text + `]}`
	}
	for text, want := range map[string]string{
		`{"block_size": 0}`:                                                                   "f:1: block_size: 0: use 1 to",
		`{"block_size": 64, "hash_id_scope": "here"}`:                                         `f:1: hash_id_scope: "here": use local or global`,
		`{"block_size": 64, "requests": []}`:                                                  "f:1: requests: there is none",
		request(`{"type": "n", "in": 1, "out": 1}`):                                           "f:2: requests[1].t is missing",
		request(`{"t": -1, "type": "n", "in": 1, "out": 1}`):                                  "f:2: requests[1].t: -1: use 0 or more",
		request(`{"t": 1, "type": "z"}`):                                                      `f:2: requests[1].type: "z": use n, s or subagent`,
		request(`{"t": 1, "type": "n", "out": 1}`):                                            "f:2: requests[1].in is missing",
		request(`{"t": 1, "type": "n", "in": 1, "out": 0.5}`):                                 "f:2: requests[1].out: 0.5: use a whole number",
		request(`{"t": 1, "type": "n", "in": 65, "out": 1, "hash_ids": [1, 2, 3]}`):           "f:2: requests[1].hash_ids: 3 of them: 65 tokens are 2 blocks",
		request(`{"t": 1, "type": "n", "in": 1, "out": 1, "api_time": -1}`):                   "f:2: requests[1].api_time: -1: use",
		request(`{"t": 1, "type": "n", "in": 1, "out": 1, "think_time": 1e99}`):               "f:2: requests[1].think_time: 1e+99: use",
		request(`{"t": 1, "type": "subagent", "requests": [{"type": "n"}]}`):                  "f:2: requests[1].requests[0].t is missing",
		request(`{"t": 1, "type": "subagent", "duration_ms": -5, "requests": []}`):            "f:2: requests[1].duration_ms: -5: use",
		request(`{"t": 1, "type": "subagent", "requests": [{"t": 2, "type": "n", "in": 1}]}`): "f:2: requests[1].requests[0].out is missing",
	} {
		w := ReadWeka("f", strings.NewReader(text))
		var err error
		for s := new(Session); s != nil && err == nil; {
			s, err = w.Next()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q in it", text, err, want)
		}
		if _, again := w.Next(); again == nil || again.Error() != err.Error() {
			t.Errorf("%s: then %v", text, again)
		}
	}
}

func TestSpansFaults(t *testing.T) {
	span := func(more string) string {
		return "\n" + `{"trace_id": "t", "span_id": "s", "start_time": "2026-02-25T10:00:00Z", "end_time": "2026-02-25 10:00:01+00:00"` + more + `}`
	}
	for text, want := range map[string]string{
		`{"span_id": "s"}`:                                                                      "f:1: trace_id or span_id is missing",
		`{"trace_id": "t", "span_id": "s"}`:                                                     "f:1: span s: start_time is missing",
		`{"trace_id": "t", "span_id": "s", "start_time": "noon"}`:                               `f:1: span s: start_time: "noon": want a date`,
		`{"traceId": "t", "spanId": "s", "startTimeUnixNano": "x"}`:                             "f:1: span s: start_time: x: want nanoseconds",
		`{"traceId": "t", "spanId": "s", "startTimeUnixNano": 5, "endTimeUnixNano": "4"}`:       "f:1: span s: end_time: it is before",
		span(`, "attributes": 5`):                                                               "f:2: span s: attributes: ",
		span(`, "attributes": {"gen_ai.operation.name": "chat"}`):                               "f:2: span s: gen_ai.usage.output_tokens is missing",
		span(`, "attributes": {"gen_ai.usage.output_tokens": 5}`):                               "f:2: span s: gen_ai.usage.input_tokens is missing",
		span(`, "attributes": {"gen_ai.usage.output_tokens": "many"}`):                          "f:2: span s: gen_ai.usage.output_tokens: many: want a number",
		span(`, "attributes": {"gen_ai.usage.output_tokens": -5}`):                              "f:2: span s: gen_ai.usage.output_tokens: -5: use",
		span(`, "attributes": {"gen_ai.usage.output_tokens": 5, "gen_ai.input.messages": "{"}`): "f:2: span s: gen_ai.input.messages: it ends",
		span(`, "attributes": {"gen_ai.usage.output_tokens": 5, "gen_ai.input.messages": 7}`):   "f:2: span s: gen_ai.input.messages: want a list",
		span(`, "attributes": {"gen_ai.usage.output_tokens": 5, "gen_ai.input.messages": [7]}`): "f:2: span s: gen_ai.input.messages: [0]: want an object",
		span(``) + span(``): "f:2: trace t has two spans of the same span_id",
		span(`, "parent_span_id": "r"`) + strings.Replace(span(`, "parent_span_id": "s"`), `"span_id": "s"`, `"span_id": "r"`, 1): "f:2: trace t has spans that are their own",
	} {
		if _, err := ReadSpans("f", strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q in it", text, err, want)
		}
	}
	// A session in which nobody calls a model is none.
	if s, err := ReadSpans("f", strings.NewReader(span(``))); err != nil || s.Len() != 0 {
		t.Error(s, err)
	}
}

// whole holds a session to what the package says of it.
func whole(t *testing.T, s *Session) {
	t.Helper()
	if len(s.Calls) == 0 {
		t.Error("a session without calls")
	}
	for i, c := range s.Calls {
		if c.Delay < 0 || c.Before >= i || c.Input < 1 || c.Output < 1 && c.Answer == "" || c.Start < 0 || c.End < c.Start || i > 0 && c.Start < s.Calls[i-1].Start {
			t.Errorf("call %d: %+v", i, c)
		}
		for _, a := range c.After {
			if a < 0 || a >= i || s.Calls[a].End > c.Start {
				t.Errorf("call %d at %v follows %d, which ends at %v", i, c.Start, a, s.Calls[a].End)
			}
		}
		if len(c.Blocks)*c.BlockSize > c.Input {
			t.Errorf("call %d: %d blocks of %d in %d tokens", i, len(c.Blocks), c.BlockSize, c.Input)
		}
	}
}

// FuzzAgents: whatever the file, sessions are whole, or an error names the file.
func FuzzAgents(f *testing.F) {
	for _, name := range []string{"weka.jsonl", "otlp.jsonl", "spans.json", "tracelab.jsonl"} {
		text, err := os.ReadFile(samples + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		readers := []Reader{ReadWeka("f", bytes.NewReader(text))}
		s, err := ReadSpans("f", bytes.NewReader(text))
		if err == nil {
			readers = append(readers, s)
		}
		if l, late := ReadTraceLab("f", bytes.NewReader(text)); late == nil {
			readers = append(readers, l)
		} else {
			err = late
		}
		for _, r := range readers {
			for s, late := r.Next(); s != nil || late != nil; s, late = r.Next() {
				if late != nil {
					err = late
					break
				}
				whole(t, s)
			}
		}
		if err != nil && !strings.HasPrefix(err.Error(), "f:") {
			t.Errorf("%v does not name the line", err)
		}
	})
}
