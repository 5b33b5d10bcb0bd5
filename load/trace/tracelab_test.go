package trace

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestTraceLab: a session that lies within the call of a tool is its subagent, if it is of the
// same user.
func TestTraceLab(t *testing.T) {
	r, err := OpenTraceLab(samples + "tracelab.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	s := next(t, r)
	want := []string{
		"0s-4s 1000+50 after [] +0s before -1",
		"5s-1m0s 300+20 after [0] +1s before -1",
		"1m4.5s-1m6.5s 1200+40 after [1] +4.5s before 0",
		"2m0s-2m1s 400+8 after [2] +53.5s before 2",
	}
	if got := told(s); s.ID != "claude:main" || !slices.Equal(got, want) || s.Calls[3].Cached != 256 || r.Len() != 2 {
		t.Errorf("%s:\n%s\nwant\n%s", s.ID, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if s := next(t, r); s.ID != "claude:other" || len(s.Calls) != 1 {
		t.Errorf("%+v", s)
	}
	if s := next(t, r); s != nil || r.Close() != nil {
		t.Errorf("%+v", s)
	}
}

// TestTraceLabNests: a subagent's subagent is in the shortest call that holds it.
func TestTraceLabNests(t *testing.T) {
	round := func(id string, from, to int, tool string) string {
		return fmt.Sprintf(`{"session_id": %q, "input_tokens_total": 9, "output_tokens": 1, "timing_events": [{"event_type": "user_message", "timestamp": "2026-03-01T10:%02d:00Z"}, `+
			`{"event_type": "text", "timestamp": "2026-03-01T10:%02d:00Z"}], "tools": [%s]}`, id, from, to, tool)
	}
	spawn := func(from, to int) string {
		return fmt.Sprintf(`{"tool_name": "Task", "emitted_at": "2026-03-01T10:%02d:00Z", "result_at": "2026-03-01T10:%02d:00Z"}`, from, to)
	}
	r, err := ReadTraceLab("f", strings.NewReader(round("a", 0, 1, spawn(1, 50))+round("a", 51, 52, "")+round("b", 2, 3, spawn(3, 40))+round("b", 41, 42, "")+round("c", 4, 5, "")))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"0s-1m0s 9+1 after [] +0s before -1",
		"2m0s-3m0s 9+1 after [0] +1m0s before -1",
		"4m0s-5m0s 9+1 after [1] +1m0s before -1",
		"41m0s-42m0s 9+1 after [2] +36m0s before 1",
		"51m0s-52m0s 9+1 after [3] +9m0s before 0",
	}
	if got := told(next(t, r)); r.Len() != 1 || !slices.Equal(got, want) {
		t.Errorf("%d sessions\n%s\nwant\n%s", r.Len(), strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestTraceLabFaults(t *testing.T) {
	const event = `"timing_events": [{"event_type": "text", "timestamp": "2026-03-01T10:00:04Z"}]`
	for text, want := range map[string]string{
		`{}`: "f:1: session_id is missing",
		`{"session_id": "a", "timing_events": [{"timestamp": "noon"}]}`:                                                   `f:1: timing_events[0].timestamp: "noon": want a date`,
		`{"session_id": "a", "tools": [{"emitted_at": "noon", "result_at": "x"}]}`:                                        `f:1: tools[0].emitted_at: "noon": want a date`,
		`{"session_id": "a", "tools": [{"emitted_at": "2026-03-01T10:00:04Z", "result_at": "x"}]}`:                        `f:1: tools[0].result_at: "x": want a date`,
		"\n" + `{"session_id": "a", ` + event + `}`:                                                                       "f:2: input_tokens_total is missing",
		`{"session_id": "a", "input_tokens_total": 5, ` + event + `}`:                                                     "f:1: output_tokens is missing",
		`{"session_id": "a", "input_tokens_total": 5, "output_tokens": 5, "prefix_tokens": -1, ` + event + `}`:            "f:1: prefix_tokens: -1: use",
		`{"session_id": "a", "input_tokens_total": 5, "output_tokens": 5, "reasoning_output_tokens": 0.5, ` + event + `}`: "f:1: reasoning_output_tokens: 0.5: use",
	} {
		if _, err := ReadTraceLab("f", strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q in it", text, err, want)
		}
	}
	if r, err := ReadTraceLab("f", strings.NewReader(`{"session_id": "a"}`)); err != nil || r.Len() != 0 {
		t.Error("a round without events is a session:", err)
	}
}
