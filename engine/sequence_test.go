package engine

import (
	"slices"
	"testing"
	"time"

	"kvferry/kvcache"
)

// TestVariants: each variant of a prompt has tokens of its own, and a sequence that begins
// with a part of an answer goes on as the one that was cut off: a node takes a request over so.
func TestVariants(t *testing.T) {
	prompt := []kvcache.Token{5, 6, 7}
	generate := func(variant uint64, prompt []kvcache.Token, n int) []kvcache.Token {
		s := NewSequence(Request{Prompt: prompt, Variant: variant, MaxTokens: n})
		for range n {
			s.Append(s.NextToken(1 << 17))
		}
		return s.Tokens(len(prompt))
	}
	base := generate(0, prompt, 20)
	for _, variant := range []uint64{1, 2, 1 << 40} {
		whole := generate(variant, prompt, 20)
		if slices.Equal(whole, base) {
			t.Errorf("variant %d is variant 0", variant)
		}
		if rest := generate(variant, slices.Concat(prompt, whole[:8]), 12); !slices.Equal(rest, whole[8:]) {
			t.Errorf("variant %d goes on as %v, want %v", variant, rest, whole[8:])
		}
	}
}

// TestLaunchedAtOnce: a sequence whose first step begins at 0, as in virtual time, has been launched: what it
// finds in caches afterwards, once its blocks were taken, was not there when it began.
func TestLaunchedAtOnce(t *testing.T) {
	for _, at := range []time.Duration{0, time.Second} {
		s := NewSequence(Request{Prompt: make([]kvcache.Token, 8), MaxTokens: 2})
		s.Load(1)
		s.Launch(at)
		s.Launch(at + time.Millisecond) // the next part of its prompt
		s.Load(4)
		if s.Launched != at || s.Found() != 1 || s.Cached() != 5 {
			t.Errorf("launched at %v: %v, %d tokens found and %d cached", at, s.Launched, s.Found(), s.Cached())
		}
	}
}
