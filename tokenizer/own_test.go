package tokenizer

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"kvferry/kvcache"
	"kvferry/load"
)

// ownSizes are the least, the A10 profile's and the greatest, which has words of six letters.
var ownSizes = []int{MinOwn, 151936, MaxOwn}

// compared are the sizes of those that are set beside their files: the least, some model's, and the greatest.
func compared() []int {
	if testing.Short() {
		return []int{MinOwn, 32000}
	}
	return []int{MinOwn, 32000, MaxOwn}
}

func newTestOwn(tb testing.TB, size int) *Tokenizer {
	tb.Helper()
	t, err := Own(size)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// asFile is the same tokenizer as a file makes it, with tables of all its tokens.
func asFile(tb testing.TB, t *Tokenizer) *Tokenizer {
	tb.Helper()
	var b bytes.Buffer
	if err := t.WriteFile(&b); err != nil {
		tb.Fatal(err)
	}
	read, err := Parse(b.Bytes(), t.settings(1000), nil)
	if err != nil {
		tb.Fatal(err)
	}
	return read
}

// TestOwnTokens: each token has a text of its own, each word survives decode and encode
// among others, and the file says the same of every one.
func TestOwnTokens(t *testing.T) {
	for _, size := range compared() {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			own := newTestOwn(t, size)
			read := asFile(t, own)
			seen := map[string]bool{}
			for id := range kvcache.Token(size) {
				text := string(own.AppendBytes(nil, id))
				if seen[text] || text == "" || !own.Has(id) {
					t.Fatalf("%d is %q again", id, text)
				}
				seen[text] = true
				if own.Token(id) != read.Token(id) {
					t.Fatalf("%d is %q, in the file %q", id, own.Token(id), read.Token(id))
				}
			}
			if own.Len() != read.Len() || own.Len() != size || own.Has(kvcache.Token(size)) || own.Token(kvcache.Token(size)) != "" || !slices.Equal(own.Special(), read.Special()) {
				t.Errorf("%d and %d tokens of %d, special %v and %v", own.Len(), read.Len(), size, own.Special(), read.Special())
			}
			first, n := own.Words()
			all := make([]kvcache.Token, n)
			for i := range all {
				all[i] = first + kvcache.Token(i)
			}
			text := own.Decode(all, true)
			if got := own.Encode(text, true); !slices.Equal(got, all) {
				t.Error("the words do not survive decode and encode")
			}
			if got := read.Encode(text, true); !slices.Equal(got, all) {
				t.Error("the words do not survive decode and encode by the file")
			}
		})
	}
	for _, size := range []int{-1, 0, MinOwn - 1, MaxOwn + 1} {
		if _, err := Own(size); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d tokens: kvferry's own tokenizer has 4096 to 400000", size)) {
			t.Errorf("%d: %v", size, err)
		}
	}
}

// FuzzOwn: what is computed is what the file's merges make, of any text, and any text comes
// back.
func FuzzOwn(f *testing.F) {
	for _, s := range append(pieceSeeds, " bobad mifur", " bobada bobadab bobad-bobad bobad", "never nevertheless Never", "<|im_start|>user\n", "  babab\nbabab", strings.Repeat(" nananan", 40)) {
		f.Add(s)
	}
	type both struct{ own, read *Tokenizer }
	var all []both
	for _, size := range compared() {
		own := newTestOwn(f, size)
		all = append(all, both{own, asFile(f, own)})
	}
	f.Fuzz(func(t *testing.T, s string) {
		text := strings.ToValidUTF8(s, "\uFFFD")
		for _, b := range all {
			ids := b.own.Encode(s, true)
			if want := b.read.Encode(s, true); !slices.Equal(ids, want) {
				t.Fatalf("%q in %d tokens:\n%v\n%v by the file", s, b.own.Len(), ids, want)
			}
			if back := b.own.Decode(ids, false); back != text || b.read.Decode(ids, false) != text {
				t.Fatalf("%q came back as %q", text, back)
			}
		}
	})
}

// TestOwnIDs: ids do not change from version to version, or results would no longer compare.
func TestOwnIDs(t *testing.T) {
	own := newTestOwn(t, 151936)
	first, n := own.Words()
	for _, c := range []struct{ got, want string }{
		{fmt.Sprint(first, n), "10376 141557"},
		{fmt.Sprint(own.Encode("Tell me about ferries, 你好  now.", true)), "[84 714 538 574 8709 4955 44 32 228 189 160 229 165 189 32 9453 46]"},
		{fmt.Sprint(own.Encode(" bobad mifur", true)), "[130050 81317]"},
		{own.Decode([]kvcache.Token{first, first + 1, first + 198, first + n - 1, 151933}, false), " babab kowor zunis fikul<|endoftext|>"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
	text, err := own.Chat([]load.Message{{Role: "user", Content: "hello there"}}, true)
	if want := "<|im_start|>user\nhello there<|im_end|>\n<|im_start|>assistant\n"; err != nil || text != want {
		t.Errorf("%q, %v", text, err)
	}
}

// TestOwnEnglish: prose has about as many characters a token as in a model's vocabulary.
func TestOwnEnglish(t *testing.T) {
	const text = `The quick brown fox, having considered its position at some length, jumped over the lazy dog.
Prefill nodes compute a prompt's cache, ferry its blocks to decode nodes over a transport, and a proxy
serves and measures the whole: time to first token and time per output token, against the same load on
nodes that do both. From fairest creatures we desire increase, that thereby beauty's rose might never die.`
	for _, size := range ownSizes {
		rate := float64(len(text)) / float64(len(newTestOwn(t, size).Encode(text, true)))
		t.Logf("%.2f characters a token of %d", rate, size)
		if size >= 32000 && (rate < 3 || rate > 5) {
			t.Errorf("%.2f characters a token in a vocabulary of %d, want about 4", rate, size)
		}
	}
}

func BenchmarkOwn(b *testing.B) {
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			newOwn(151936)
		}
	})
	own := newTestOwn(b, 151936)
	first, n := own.Words()
	var drawn []kvcache.Token
	for i := range kvcache.Token(1200) {
		drawn = append(drawn, first+i*7919%n)
	}
	for name, text := range map[string]string{"words": own.Decode(drawn, true), "prose": strings.Repeat(proseForBenchmark, 7200/len(proseForBenchmark))} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			var ids []kvcache.Token
			for b.Loop() {
				ids = own.AppendEncode(ids[:0], text, true)
			}
		})
	}
}

const proseForBenchmark = "Nobody had told the ferryman that there were no more passengers, and so he waited at the pier until the lamps were lit across the river. "

func TestWholeWords(t *testing.T) {
	for name, want := range map[string]string{
		"llama2": "want a byte-level tokenizer", "metaspace": "want a byte-level tokenizer", "wordlevel": "want a byte-level tokenizer",
		"qwen": "tokens that are a space and letters and are encoded as that one token: want 1000 or more",
	} {
		if _, err := testTokenizer(t, name).WholeWords(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	own := asFile(t, newTestOwn(t, MinOwn))
	words, err := own.WholeWords()
	first, n := newTestOwn(t, MinOwn).Words()
	if err != nil || len(words) < int(n) || !slices.IsSorted(words) || !slices.Contains(words, first) || slices.Contains(words, 0) {
		t.Errorf("%d words, %v; %d of five letters", len(words), err, n)
	}
}
