package engine

import (
	"slices"
	"testing"

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
