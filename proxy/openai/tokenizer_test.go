package openai

import (
	"fmt"
	"slices"
	"testing"

	"kvferry/engine"
)

// testVocab is the A10 profile's.
const testVocab = 151936

var testTokenizer = Tokenizer{Vocab: testVocab}

// vocabularies are a test's: tiny ones, Llama 2's, the A10 profile's, Gemma's, the largest.
var vocabularies = []uint32{1, 2, 3, 100, 198, 199, 32000, testVocab, wordCount, 262144, MaxVocab}

func TestTokenizerRoundTrip(t *testing.T) {
	for _, vocab := range vocabularies {
		tok := Tokenizer{Vocab: vocab}
		ids := make([]uint32, vocab)
		for i := range ids {
			ids[i] = uint32(i)
		}
		if got := tok.Encode(tok.Decode(ids)); !slices.Equal(got, ids) {
			t.Fatalf("the vocabulary of %d does not survive decode and encode: came back as %d", len(ids), len(got))
		}
	}
}

// TestTokenizerA10: measurements are of these tokens.
func TestTokenizerA10(t *testing.T) {
	p, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	if p.Vocab != testVocab {
		t.Fatalf("the A10 profile has %d token ids", p.Vocab)
	}
	for _, tc := range []struct{ got, want string }{
		{fmt.Sprint(testTokenizer.Encode("Tell me about ferries, 你好  now.")), "[58778 69079 78054 81066 57798 43695 16055 111261 52560 79198 93781]"},
		{fmt.Sprint(testTokenizer.EncodeChat([]ChatMessage{{"user", "hello there"}})), "[151644 58962 198 73663 55401 151645 198 151644 139045 198]"},
		{testTokenizer.Decode([]uint32{0, 1, 198, 151935}), " babab kowor zunis gakit"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s, want %s", tc.got, tc.want)
		}
	}
}

func TestTokenizerEnglishRate(t *testing.T) {
	const text = `The quick brown fox, having considered its position at some length, jumped over the lazy dog.
Prefill nodes compute a prompt's cache, ferry its blocks to decode nodes over a transport, and a proxy
serves and measures the whole: time to first token and time per output token, against the same load on
nodes that do both. From fairest creatures we desire increase, that thereby beauty's rose might never die.`
	for _, vocab := range vocabularies {
		rate := float64(len(text)) / float64(len(Tokenizer{Vocab: vocab}.Encode(text)))
		if rate < 3.5 || rate > 4.6 {
			t.Errorf("%.2f characters a token in a vocabulary of %d, want about 4", rate, vocab)
		}
	}
}

func TestTokenizerChat(t *testing.T) {
	for _, vocab := range vocabularies {
		tok := Tokenizer{Vocab: vocab}
		one := tok.EncodeChat([]ChatMessage{{"user", "hello there"}})
		two := tok.EncodeChat([]ChatMessage{{"user", "hello there"}, {"assistant", "hi"}, {"user", "bye"}})
		n := len(one) - len(tok.EncodeChat(nil))
		if !slices.Equal(one[:n], two[:n]) {
			t.Errorf("a longer conversation must begin with the shorter one's tokens:\n%v\n%v", one[:n], two[:n])
		}
		if last := slices.Max(two); last >= vocab {
			t.Errorf("token %d in a vocabulary of %d", last, vocab)
		}
		if start, end, newline := one[0], one[n-2], one[n-1]; vocab >= 3 && (start == end || end == newline || newline == start) {
			t.Errorf("marks %d, %d, %d in a vocabulary of %d: want three", start, end, newline, vocab)
		}
	}
}

func FuzzTokenizer(f *testing.F) {
	for i, s := range []string{"", " ", "  a", "hello world", " bobad cedif", "héllo\xff\xfe", "你好，世界", "a\n\n b", "            x ", "2026-11-21"} {
		f.Add(s, vocabularies[i%len(vocabularies)])
	}
	f.Fuzz(func(t *testing.T, s string, vocab uint32) {
		tok := Tokenizer{Vocab: 1 + vocab%MaxVocab}
		ids := tok.Encode(s)
		if (len(ids) == 0) != (s == "") {
			t.Fatalf("%q: %d tokens", s, len(ids))
		}
		if len(ids) > len(s) {
			t.Fatalf("%q: %d tokens from %d bytes", s, len(ids), len(s))
		}
		if i := slices.IndexFunc(ids, func(id uint32) bool { return id >= tok.Vocab }); i >= 0 {
			t.Fatalf("%q: token %d in a vocabulary of %d", s, ids[i], tok.Vocab)
		}
		if again := tok.Encode(s); !slices.Equal(ids, again) {
			t.Fatalf("%q encodes to %v, then to %v", s, ids, again)
		}
		if back := tok.Encode(tok.Decode(ids)); !slices.Equal(back, ids) {
			t.Fatalf("%q: ids %v decode and encode to %v", s, ids, back)
		}
	})
}
