package node

import (
	"slices"
	"testing"
)

func TestTokenizerRoundTrip(t *testing.T) {
	var tok Tokenizer
	ids := make([]uint32, VocabularySize)
	for i := range ids {
		ids[i] = uint32(i)
	}
	text := tok.Decode(ids)
	if got := tok.Encode(text); !slices.Equal(got, ids) {
		t.Fatalf("the vocabulary does not survive decode and encode: %d ids came back as %d", len(ids), len(got))
	}
}

func TestTokenizerEnglishRate(t *testing.T) {
	const text = `The quick brown fox, having considered its position at some length, jumped over the lazy dog.
Prefill nodes compute a prompt's cache, ferry its blocks to decode nodes over a transport, and a proxy
serves and measures the whole: time to first token and time per output token, against the same load on
nodes that do both. From fairest creatures we desire increase, that thereby beauty's rose might never die.`
	rate := float64(len(text)) / float64(len(Tokenizer{}.Encode(text)))
	if rate < 3.5 || rate > 4.6 {
		t.Fatalf("%.2f characters a token, want about 4", rate)
	}
}

func TestTokenizerChat(t *testing.T) {
	var tok Tokenizer
	one := tok.EncodeChat([]ChatMessage{{"user", "hello there"}})
	two := tok.EncodeChat([]ChatMessage{{"user", "hello there"}, {"assistant", "hi"}, {"user", "bye"}})
	n := len(one) - len(tok.EncodeChat(nil))
	if !slices.Equal(one[:n], two[:n]) {
		t.Fatalf("a longer conversation must begin with the shorter one's tokens:\n%v\n%v", one[:n], two[:n])
	}
}

func FuzzTokenizer(f *testing.F) {
	for _, s := range []string{"", " ", "  a", "hello world", " bobad cedif", "héllo\xff\xfe", "你好，世界", "a\n\n b", "            x ", "2026-11-21"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var tok Tokenizer
		ids := tok.Encode(s)
		if (len(ids) == 0) != (s == "") {
			t.Fatalf("%q: %d tokens", s, len(ids))
		}
		if len(ids) > len(s) {
			t.Fatalf("%q: %d tokens from %d bytes", s, len(ids), len(s))
		}
		if again := tok.Encode(s); !slices.Equal(ids, again) {
			t.Fatalf("%q encodes to %v, then to %v", s, ids, again)
		}
		if back := tok.Encode(tok.Decode(ids)); !slices.Equal(back, ids) {
			t.Fatalf("%q: ids %v decode and encode to %v", s, ids, back)
		}
	})
}
