package openai

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kvferry/engine"
	"kvferry/tokenizer"
)

// testVocab is the A10 profile's.
const testVocab = 151936

var testTokenizer = NewTokenizer(testVocab)

// vocabularies are a test's: the least, Llama 2's, the A10 profile's, the largest.
var vocabularies = []uint32{MinVocab, 32000, testVocab, MaxVocab}

// modelFile is a tokenizer that is no one's own: that of a small kvferry vocabulary, as a file
// with another's tokens would be read.
func modelFile(tb testing.TB) *ModelFile {
	tb.Helper()
	folder := filepath.Join(tb.TempDir(), "model")
	own, err := tokenizer.Own(MinVocab)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := own.Files(1000).Save(folder); err != nil {
		tb.Fatal(err)
	}
	f, err := LoadModelFile(folder)
	if err != nil {
		tb.Fatal(err)
	}
	return f
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
	chat, err := testTokenizer.EncodeChat([]ChatMessage{{Role: "user", Content: "hello there"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ got, want string }{
		{fmt.Sprint(testTokenizer.Encode("Tell me about ferries, 你好  now.")), "[84 714 538 574 8709 4955 44 32 228 189 160 229 165 189 32 9453 46]"},
		// As transformers 5.23.0 renders and encodes it: apply_chat_template.
		{fmt.Sprint(chat), "[151934 370 309 10 104 714 111 516 151935 10 151934 497 6563 10]"},
		{testTokenizer.Decode([]uint32{10376, 10377, 10574, 151932}), " babab kowor zunis fikul"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s, want %s", tc.got, tc.want)
		}
	}
}

// TestWords: what nodes are told to generate is one token a word, for a client that encodes the
// text again, and for the proxy that gets it as a part of the next prompt.
func TestWords(t *testing.T) {
	all := []Tokenizer{modelFile(t).Tokenizer(5000)}
	for _, vocab := range vocabularies {
		all = append(all, NewTokenizer(vocab))
	}
	for _, tok := range all {
		first, n := tok.Words()
		if n < 1000 || first+n > tok.Vocab() {
			t.Fatalf("%d words from %d of %d", n, first, tok.Vocab())
		}
		var ids []uint32
		var text []byte
		for i := range n {
			id := tok.FromNode(first + i*7919%n)
			if tok.ToNode(id) != first+i*7919%n {
				t.Fatalf("%d is %d for nodes", id, tok.ToNode(id))
			}
			ids = append(ids, id)
			text = tok.AppendToken(text, id)
		}
		if got := tok.Encode(string(text)); !slices.Equal(got, ids) {
			t.Errorf("%d words of %d come back as %d tokens", n, tok.Vocab(), len(got))
		}
	}
}

// TestModelFile: ids are renumbered for nodes and back, each to one.
func TestModelFile(t *testing.T) {
	f := modelFile(t)
	tok := f.Tokenizer(5000)
	if f.Size() != MinVocab || tok.Vocab() != 5000 {
		t.Errorf("%d ids, vocabulary %d", f.Size(), tok.Vocab())
	}
	seen := make([]bool, 5000)
	for id := range uint32(5000) {
		there := tok.ToNode(id)
		if seen[there] || tok.FromNode(there) != id {
			t.Fatalf("%d is %d for nodes, and that is %d", id, there, tok.FromNode(there))
		}
		seen[there] = true
	}
	if _, err := LoadModelFile("../../tokenizer/testdata/llama2"); err == nil || !strings.Contains(err.Error(), "want a byte-level tokenizer") {
		t.Error(err)
	}
	if _, err := LoadModelFile(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "there is no such file") {
		t.Error(err)
	}
	// Without a template there is no chat.
	folder := t.TempDir()
	own, _ := tokenizer.Own(MinVocab)
	if _, err := own.Files(1000).Save(folder); err != nil {
		t.Fatal(err)
	}
	bare, err := LoadModelFile(filepath.Join(folder, tokenizer.FileName))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Chat.Parse([]byte(`{"messages":[{"role":"user","content":"x"}]}`), Model{Name: "m", MaxModelLen: 100, Vocab: MinVocab, File: bare})
	if err == nil || !strings.Contains(err.Error(), "messages: the tokenizer has no chat template") {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(folder, tokenizer.ConfigFileName)); err != nil {
		t.Error(err)
	}
}

func TestTokenizerChat(t *testing.T) {
	for _, vocab := range vocabularies {
		tok := NewTokenizer(vocab)
		chat := func(m ...ChatMessage) []uint32 {
			ids, err := tok.EncodeChat(m)
			if err != nil {
				t.Fatal(err)
			}
			return ids
		}
		one := chat(ChatMessage{Role: "user", Content: "hello there"})
		two := chat(ChatMessage{Role: "user", Content: "hello there"}, ChatMessage{Role: "assistant", Content: "hi"}, ChatMessage{Role: "user", Content: "bye"})
		n := len(one) - len(chat())
		if !slices.Equal(one[:n], two[:n]) {
			t.Errorf("a longer conversation must begin with the shorter one's tokens:\n%v\n%v", one[:n], two[:n])
		}
		if start, end := one[0], one[n-2]; start != vocab-2 || end != vocab-1 {
			t.Errorf("marks %d, %d in a vocabulary of %d", start, end, vocab)
		}
	}
}

// FuzzTokenText: text of tokens stands in JSON as it is, and characters of several tokens are
// whole.
func FuzzTokenText(f *testing.F) {
	for _, s := range []string{"", " ", "hello world", " bobad cedif", "héllo\xff\xfe", "你好，世界 😀", "\"\\\n\x00\u2028", "a\n\n b"} {
		f.Add(s, uint32(150))
	}
	f.Fuzz(func(t *testing.T, s string, id uint32) {
		ids := append(testTokenizer.Encode(s), id%testVocab)
		var whole, single []byte
		u := Unbroken{Tokenizer: testTokenizer}
		for i, id := range ids {
			whole = u.AppendToken(whole, id, i == len(ids)-1)
			single = testTokenizer.AppendToken(single, id)
		}
		var got, each string
		if err := json.Unmarshal([]byte(`"`+string(whole)+`"`), &got); err != nil {
			t.Fatalf("%q: %v", whole, err)
		}
		if err := json.Unmarshal([]byte(`"`+string(single)+`"`), &each); err != nil {
			t.Fatalf("%q: %v", single, err)
		}
		if want := testTokenizer.Decode(ids); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	})
}

// TestSpecialTokens: a prompt begins with what the model's file puts there, unless the request
// says otherwise.
func TestSpecialTokens(t *testing.T) {
	own, _ := tokenizer.Own(MinVocab)
	folder := t.TempDir()
	if _, err := own.Files(1000).Save(folder); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(folder, tokenizer.FileName)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	// Llama 3's form: a BOS before each text.
	bos := `"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"b","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"special_tokens":{"b":{"id":"b","ids":[4093],"tokens":["<|endoftext|>"]}}},"decoder"`
	before, after, _ := strings.Cut(string(text), `"post_processor":`)
	_, after, _ = strings.Cut(after, `"decoder"`)
	if err := os.WriteFile(name, []byte(before+bos+after), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := LoadModelFile(folder)
	if err != nil {
		t.Fatal(err)
	}
	model := Model{Name: "m", MaxModelLen: 100, Vocab: MinVocab, File: f}
	for _, c := range []struct {
		body string
		want []uint32
	}{
		{`{"prompt":"a"}`, []uint32{4093, 'a'}},
		{`{"prompt":"a","add_special_tokens":true}`, []uint32{4093, 'a'}},
		{`{"prompt":"a","add_special_tokens":false}`, []uint32{'a'}},
	} {
		g, err := Completion.Parse([]byte(c.body), model)
		if err != nil || !slices.Equal(g.Choices[0].Prompt, c.want) {
			t.Errorf("%s: %+v, %v; want %v", c.body, g, err, c.want)
		}
		if ids, err := ParseTokenize([]byte(c.body), model); err != nil || !slices.Equal(ids, c.want) {
			t.Errorf("/tokenize %s: %v, %v; want %v", c.body, ids, err, c.want)
		}
	}
	chat, err := Chat.Parse([]byte(`{"messages":[{"role":"user","content":"a"}]}`), model)
	if err != nil || chat.Choices[0].Prompt[0] == 4093 {
		t.Errorf("%+v, %v: the template says what a chat begins with", chat, err)
	}
}
