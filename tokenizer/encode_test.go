package tokenizer

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"

	"kvferry/kvcache"
)

// testTokenizer is the small tokenizer of a folder of testdata.
func testTokenizer(tb testing.TB, name string) *Tokenizer {
	tb.Helper()
	t, err := Load("testdata/" + name)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// pieceSeeds have what the patterns tell apart.
var pieceSeeds = []string{
	"", "I'll don'T 'ſ x'RE 's", "  a\n\n b \r\n\t c  ", "123456 ½٣", " \u00a0x\u3000", "!?\n\n.", "é e\u0301 你好", "\U00016d40\U00010d40 \u1c89", "a'", "\xff\xfe",
}

// FuzzPatterns holds the patterns that are matched by hand to the regular expressions that
// they are.
func FuzzPatterns(f *testing.F) {
	for _, s := range pieceSeeds {
		f.Add(s)
	}
	expressions := map[string]finder{}
	for text := range known {
		expressions[text] = findRegex(regexp2.MustCompile(widen(text), regexp2.Multiline))
	}
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ToValidUTF8(s, "\uFFFD")
		for text, find := range expressions {
			var got, want []string
			known[text].splitter()(s, true, func(piece string, _ bool) { got = append(got, piece) })
			find(s, func(span string, match bool) { want = append(want, span) })
			if !slices.Equal(got, want) {
				t.Fatalf("%q by %s:\n%q, want\n%q", s, text, got, want)
			}
		}
	})
}

// TestMergesAgree: pieces are merged in one of two ways, by length, to the same tokens.
func TestMergesAgree(t *testing.T) {
	m := testTokenizer(t, "qwen").model.(*bpe)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		ids := make([]kvcache.Token, 1+rng.IntN(shortPiece))
		for i := range ids {
			ids[i] = kvcache.Token(m.bytes["etaoin shrdlu"[rng.IntN(13)]])
		}
		long := slices.Clone(ids)
		short := ids[:m.merges.applyShort(ids)]
		if long = long[:m.merges.applyLong(long)]; !slices.Equal(long, short) {
			t.Fatalf("%v and %v", short, long)
		}
	}
}

// TestWholeTokens: a token that is found at once is one that the merges make; one that they
// do not make stays in parts, however often it is asked for.
func TestWholeTokens(t *testing.T) {
	b, err := newBPE(map[string]kvcache.Token{"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5}, [][2]string{{"b", "c"}, {"a", "b"}, {"ab", "c"}}, true)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for text, want := range map[string][]kvcache.Token{"abc": {0, 4}, "bc": {4}, "ab": {3}, "a": {0}, "x": nil} {
			if got := b.appendEncode(nil, text); !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", text, got, want)
			}
		}
	}
	b.ignore = true
	if got := b.appendEncode(nil, "abc"); !slices.Equal(got, []kvcache.Token{5}) {
		t.Errorf("ignore_merges: %v", got)
	}
}

func TestValidUTF8(t *testing.T) {
	// Table 3-8 of the Unicode standard, and what Python's decode(errors="replace") says.
	for in, want := range map[string]string{
		"a\xf1\x80\x80\xe1\x80\xc2b\x80c\x80\xbfd": "a???b?c??d", "\xe4\xbd": "?", "\xf0\x9f\x98": "?", "\xed\xa0\x80": "???", "\xc0\xaf": "??",
		"\xf4\x90\x80\x80": "????", "\xe0\x80": "??", "\ufffd\xff": "??", "ok": "ok",
	} {
		if got := ValidUTF8([]byte(in)); got != strings.ReplaceAll(want, "?", "\uFFFD") {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// FuzzEncode: no text makes it panic, and a byte-level tokenizer loses nothing, but for what
// its normalizer changes and what is no UTF-8.
func FuzzEncode(f *testing.F) {
	var all []*Tokenizer
	for _, name := range []string{"llama3", "smollm", "qwen", "llama2", "pattern", "metaspace", "wordlevel"} {
		all = append(all, testTokenizer(f, name))
	}
	for _, s := range append(pieceSeeds, "<|im_start|>user\n<think> x</think>", strings.Repeat("ab", 100)) {
		f.Add(s, uint32(3))
	}
	f.Fuzz(func(t *testing.T, s string, id uint32) {
		text := strings.ToValidUTF8(s, "\uFFFD")
		for i, tok := range all {
			ids := tok.Encode(s, i%2 == 0)
			if again := tok.Encode(s, i%2 == 0); !slices.Equal(ids, again) {
				t.Fatalf("%q: %v, then %v", s, ids, again)
			}
			if j := slices.IndexFunc(ids, func(id kvcache.Token) bool { return tok.Token(id) == "" }); j >= 0 {
				t.Fatalf("%q: %d is no token", s, ids[j])
			}
			if back := tok.Decode(tok.Encode(s, false), false); i < 2 && back != text {
				t.Fatalf("%q came back as %q", text, back)
			} else if !utf8.ValidString(back) {
				t.Fatalf("%q decodes to %q", s, back)
			}
			tok.Decode(append(ids, id), true)
		}
	})
}

// FuzzParse: no file makes it panic or allocate without bounds, and what is read encodes.
func FuzzParse(f *testing.F) {
	for _, rest := range []string{
		`,"added_tokens":[{"id":9,"content":"ab","lstrip":true,"rstrip":true,"single_word":true},{"id":3,"content":"é","normalized":true}],"normalizer":{"type":"NFC"}`,
		`,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits"},{"type":"Split","pattern":{"String":"a"},"behavior":"MergedWithNext","invert":true},{"type":"ByteLevel"}]},"decoder":{"type":"ByteLevel"}`,
		`,"pre_tokenizer":{"type":"Metaspace","replacement":"_"},"decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1}]}`,
		`,"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"_"},{"type":"Replace","pattern":{"String":" "},"content":"_"}]},"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"a"}},{"Sequence":{"id":"A"}}],"special_tokens":{"a":{"ids":[0]}}}`,
	} {
		f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}`+rest+"}"), []byte(`{"bos_token":"a","chat_template":"{{ messages }}"}`))
	}
	f.Add([]byte(`{"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"},"pre_tokenizer":{"type":"Whitespace"}}`), []byte(`{"eos_token":{"content":"a"}}`))
	f.Fuzz(func(t *testing.T, file, settings []byte) {
		if strings.Contains(string(file), "Regex") || len(file) > 1<<16 {
			t.Skip("an expression may take for ever, as it does in the Python library")
		}
		tok, err := Parse(file, settings, nil)
		if err != nil {
			if tok != nil || !strings.HasPrefix(err.Error(), "tokenizer") {
				t.Fatal(tok, err)
			}
			return
		}
		for _, s := range pieceSeeds {
			tok.Decode(tok.Encode(s, true), false)
		}
	})
}

// BenchmarkEncode runs over the folder that KVFERRY_TOKENIZER names, or a small one.
func BenchmarkEncode(b *testing.B) {
	folder := os.Getenv("KVFERRY_TOKENIZER")
	if folder == "" {
		folder = "testdata/qwen"
	}
	tok, err := Load(folder)
	if err != nil {
		b.Fatal(err)
	}
	text, err := os.ReadFile("../README.md")
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	ids := []kvcache.Token{}
	for b.Loop() {
		ids = tok.AppendEncode(ids[:0], string(text), true)
	}
	b.ReportMetric(float64(len(text))/float64(len(ids)), "chars/token")
}
