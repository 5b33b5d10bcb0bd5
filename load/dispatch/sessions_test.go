package dispatch

import (
	"testing"
	"time"

	"kvferry/kvcache"
	"kvferry/load"
)

// TestSessionsRun: the queue lets a session's calls go as it says, and a call gets the whole
// conversation.
func TestSessionsRun(t *testing.T) {
	l, err := load.Spec{Kind: "otel", File: "../testdata/agents/otlp.jsonl", Speed: 1, Vocab: 5000}.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	q := New(l)
	now := time.Duration(0)
	for i, want := range []struct {
		due    time.Duration
		prompt int
	}{{0, 300}, {1200 * time.Millisecond, 100}, {3100 * time.Millisecond, 420}, {5100 * time.Millisecond, 200}} {
		now = q.Wake(now)
		s, ok, err := q.Next(now)
		if !ok || err != nil || s.Due != want.due || len(s.Conversation()) != want.prompt {
			t.Fatalf("call %d: %v at %v with %d tokens, %t, %v: want %+v", i, s.Due, now, len(s.Conversation()), ok, err, want)
		}
		now += time.Second
		q.Ended(s.Index, now, Answer{Tokens: make([]kvcache.Token, s.MaxTokens)}, false)
	}
	if !q.Done() {
		t.Error("it goes on")
	}
}
