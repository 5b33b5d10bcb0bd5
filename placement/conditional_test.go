package placement

import (
	"testing"

	"kvferry/kvcache"
)

// TestConditional is a transcript: short prompts stay, on the decode node with less to do; of a
// long one so does what is not cached there.
func TestConditional(t *testing.T) {
	prompt := func(first kvcache.Token, tokens int) Request {
		ids := make([]kvcache.Token, tokens)
		ids[0] = first
		return Request{Tokens: tokens, KVBytes: int64(tokens), Prefix: kvcache.PrefixHashes(kvcache.Hash{}, ids, 16)}
	}
	k := NewConditional(64, 16)
	decode, _ := New(LeastLoaded, 16, false)
	c := []Candidate{{ID: "a", WaitingTokens: 5}, {ID: "b"}}
	local := func(r Request) string {
		i, ok := k.Local(r, c, decode)
		if !ok {
			return ""
		}
		k.Takes(&c[i], r)
		return c[i].ID
	}
	for i, step := range []struct {
		request Request
		want    string
	}{
		{prompt(1, 64), "b"},
		{prompt(1, 65), "b"},  // 64 of 65 are cached there
		{prompt(2, 65), ""},   // nothing is
		{prompt(1, 128), "b"}, // 64 are
		{prompt(1, 200), ""},  // 128 are, 72 not
		{prompt(1, 160), "b"},
	} {
		if got := local(step.request); got != step.want {
			t.Errorf("step %d, %d tokens: %q, want %q", i, step.request.Tokens, got, step.want)
		}
	}
	// What comes from a prefill node is cached too.
	k.Takes(&c[0], prompt(3, 300))
	if got := local(prompt(3, 320)); got != "a" {
		t.Errorf("288 of 320 tokens are on a: %q", got)
	}
	if _, ok := NewConditional(0, 16).Local(prompt(1, 1), c, decode); ok {
		t.Error("a limit of 0 has a prompt computed where it is decoded")
	}
}
