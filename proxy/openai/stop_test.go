package openai

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

// naive is what a Cut does, written without care for time: the answer's text, how many tokens
// it has, and whether it was stopped.
func naive(ids []uint32, stop *Stop, least int) (text string, tokens int, stopped bool) {
	for i, id := range ids {
		before := text
		text += testTokenizer.Decode([]uint32{id})
		if i < least {
			continue
		}
		for _, t := range stop.Tokens {
			if t == id {
				if !stop.Include {
					text = before
				}
				return text, i + 1, true
			}
		}
		// The match that begins first, of those that end in this token.
		first, match := len(text), ""
		for _, s := range stop.Strings {
			from := max(len(before)-len(s)+1, 0)
			if at := strings.Index(text[from:], s); at >= 0 && from+at < first {
				first, match = from+at, s
			}
		}
		if match != "" {
			if stop.Include {
				first += len(match)
			}
			return text[:first], i + 1, true
		}
	}
	return text, len(ids), false
}

// firstWord is the first token that is generated.
var firstWord, _ = testTokenizer.Words()

// TestCutAgainstNaive gives answers to a Cut in pieces of random size; what goes out must be
// the naive answer's text, and no piece may take back what another has sent.
func TestCutAgainstNaive(t *testing.T) {
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		ids := make([]uint32, 1+rng.IntN(20))
		for i := range ids {
			ids[i] = firstWord + rng.Uint32N(40)
		}
		whole := testTokenizer.Decode(ids)
		stop := &Stop{Include: rng.IntN(2) == 0}
		for range 1 + rng.IntN(3) {
			// A part of the answer, of any place, and sometimes changed so that it almost matches.
			from := rng.IntN(len(whole))
			s := whole[from:min(from+1+rng.IntN(12), len(whole))]
			if rng.IntN(3) == 0 {
				s += "!"
			}
			stop.Strings = append(stop.Strings, s)
		}
		if rng.IntN(3) == 0 {
			stop.Tokens = append(stop.Tokens, firstWord+rng.Uint32N(40))
		}
		least := rng.IntN(4)
		if rng.IntN(2) == 0 {
			least = 0
		}
		want, wantTokens, wantStopped := naive(ids, stop, least)
		c := NewCut(testTokenizer, stop, uint32(least))
		var got strings.Builder
		tokens, stopped := 0, false
		for rest := ids; len(rest) > 0 && !stopped; {
			n := 1 + rng.IntN(len(rest))
			last := n == len(rest)
			var kept int
			var by string
			kept, by, stopped = c.Add(rest[:n], last)
			for i := range kept {
				got.Write(c.piece(i))
			}
			tokens += kept
			if stopped && (by == "" || !json.Valid([]byte(by)) || kept > n) {
				t.Fatalf("seed %d: stopped by %q after %d of %d", seed, by, kept, n)
			}
			rest = rest[n:]
		}
		// With a least length, text before it may have gone out that belongs to a match after it.
		// The naive answer takes it back, so texts are compared without one.
		if tokens != wantTokens || stopped != wantStopped || got.String() != string(c.Text()) || least == 0 && got.String() != want {
			t.Fatalf("seed %d, stops %q %v, include %v, least %d: got %q (%d, %v), text %q; want %q (%d, %v)",
				seed, stop.Strings, stop.Tokens, stop.Include, least, got.String(), tokens, stopped, c.Text(), want, wantTokens, wantStopped)
		}
	}
}

// TestCutHoldsBackNoMoreThanItMust: text goes out at once unless it may be the beginning of a
// stop string.
func TestCutHoldsBackNoMoreThanItMust(t *testing.T) {
	tok := testTokenizer
	ids := []uint32{firstWord, firstWord + 1, firstWord + 2}
	words := []string{tok.Decode(ids[:1]), tok.Decode(ids[1:2]), tok.Decode(ids[2:])}
	c := NewCut(testTokenizer, &Stop{Strings: []string{words[0][3:] + words[1] + "!"}}, 0)
	for i, want := range []string{words[0][:3], "", words[0][3:] + words[1] + words[2]} {
		if n, _, stopped := c.Add(ids[i:i+1], false); n != 1 || stopped || string(c.piece(0)) != want {
			t.Errorf("token %d: %q goes out, want %q", i, c.piece(0), want)
		}
	}
	c = NewCut(testTokenizer, &Stop{Strings: []string{words[0] + "!"}}, 0)
	if c.Add(ids[:1], false); string(c.piece(0)) != "" {
		t.Errorf("%q went out", c.piece(0))
	}
	if n, _, _ := c.Add(nil, true); n != 0 || string(c.rest()) != words[0] || string(c.Text()) != words[0] {
		t.Errorf("at the end: %q", c.rest())
	}
}

func TestParseStop(t *testing.T) {
	for _, c := range []struct {
		raw      string
		ids      []int64
		strings  []string
		contains string // of the error
	}{
		{"", nil, nil, ""},
		{"null", nil, nil, ""},
		{"[]", nil, nil, ""},
		{`"\n"`, nil, []string{"\n"}, ""},
		{`["a","bc"]`, []int64{3}, []string{"a", "bc"}, ""},
		{`""`, nil, nil, "stop: [0] is empty"},
		{`["a",""]`, nil, nil, "stop: [1] is empty"},
		{`7`, nil, nil, "stop: 7: want a string or a list"},
		{`[7]`, nil, nil, "want a string or a list"},
		{`"` + strings.Repeat("x", 1025) + `"`, nil, nil, "1025 bytes"},
		{"", []int64{-1}, nil, "stop_token_ids[0]: -1"},
		{"", []int64{1, testVocab}, nil, "stop_token_ids[1]"},
		{"", make([]int64, 65), nil, "at most 64"},
	} {
		s, err := ParseStop("stop", json.RawMessage(c.raw), "stop_token_ids", c.ids, false, testVocab)
		switch {
		case c.contains != "":
			if err == nil || !strings.Contains(err.Error(), c.contains) {
				t.Errorf("%s %v: %v, want %q", c.raw, c.ids, err, c.contains)
			}
		case err != nil, (s == nil) != (len(c.strings)+len(c.ids) == 0), s != nil && (strings.Join(s.Strings, "|") != strings.Join(c.strings, "|") || len(s.Tokens) != len(c.ids)):
			t.Errorf("%s %v: %+v, %v", c.raw, c.ids, s, err)
		}
	}
}

func BenchmarkCut(b *testing.B) {
	stop := &Stop{Strings: []string{"\n\n", "###", "Question:", "</s>"}}
	c := NewCut(testTokenizer, stop, 0)
	ids := []uint32{firstWord}
	b.ReportAllocs()
	for b.Loop() {
		if c.Add(ids, false); len(c.text) > 1<<16 {
			*c = Cut{tok: testTokenizer, stop: stop, text: c.text[:0], ends: c.ends}
		}
	}
}
