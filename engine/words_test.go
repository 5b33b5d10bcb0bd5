package engine_test

import (
	"math"
	"strings"
	"testing"

	"kvferry/engine"
	"kvferry/kvcache"
)

// TestWords: what is generated is one of the request's words, or of the whole vocabulary.
func TestWords(t *testing.T) {
	const vocab = 1000
	for _, w := range []engine.Words{{}, {First: 100, Count: 1}, {First: 990, Count: 10}, {First: 0, Count: vocab}} {
		if err := w.Validate(vocab); err != nil {
			t.Fatal(err)
		}
		low, high := w.First, w.First+w.Count
		if w.Count == 0 {
			high = vocab
		}
		seen := map[kvcache.Token]bool{}
		for seed := range kvcache.Token(500) {
			tok := engine.NewSequence(engine.Request{Prompt: []kvcache.Token{seed}, MaxTokens: 1, Words: w}).NextToken(vocab)
			if tok < low || tok >= high {
				t.Fatalf("%d from %d words after %d", tok, w.Count, w.First)
			}
			seen[tok] = true
		}
		if len(seen) < min(int(high-low), 100) {
			t.Errorf("%+v: only %d different tokens of 500", w, len(seen))
		}
	}
	for _, w := range []engine.Words{{First: 0, Count: vocab + 1}, {First: 991, Count: 10}, {First: math.MaxUint32, Count: math.MaxUint32}} {
		if err := w.Validate(vocab); err == nil || !strings.Contains(err.Error(), "words: ") {
			t.Errorf("%+v: %v", w, err)
		}
	}
}
