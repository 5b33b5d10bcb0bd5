package tokenizer_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"kvferry/kvcache"
	"kvferry/load"
	"kvferry/tokenizer"
)

var _ load.Tokenizer = (*tokenizer.Tokenizer)(nil)

// expectation is a line of expected.jsonl: what the Python library made of a text, and of ids
// that were drawn, some of which are no tokens.
type expectation struct {
	Text         string          `json:"text"`
	IDs          []kvcache.Token `json:"ids"`     // encode(text).ids
	Plain        []kvcache.Token `json:"plain"`   // encode(text, add_special_tokens=False).ids
	Decoded      string          `json:"decoded"` // decode(ids, skip_special_tokens=True)
	Drawn        []kvcache.Token `json:"drawn"`
	DrawnDecoded string          `json:"drawn_decoded"` // decode(drawn, skip_special_tokens=False)
}

// counts is the first line of chat.jsonl, and a chat each of the others.
type counts struct {
	Len       int             `json:"len"`
	VocabSize int             `json:"vocab_size"`
	Special   []kvcache.Token `json:"special"`
}

type conversation struct {
	Messages []load.Message `json:"messages"`
	Prompt   bool           `json:"prompt"`
	Text     string         `json:"text"`
	Error    string         `json:"error"`
}

// lines calls do with each line of a file of JSON.
func lines(t *testing.T, name string, do func(n int, decode func(any))) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := json.NewDecoder(f)
	for n := 0; d.More(); n++ {
		do(n, func(v any) {
			if err := d.Decode(v); err != nil {
				t.Fatalf("%s:%d: %v", name, n+1, err)
			}
		})
	}
}

// compareTexts holds the tokenizer of a folder to what the Python library said, token by
// token, and returns how many texts there were.
func compareTexts(t *testing.T, folder string) (texts int) {
	t.Helper()
	tok, err := tokenizer.Load(filepath.Join(folder, tokenizer.FileName))
	if err != nil {
		t.Fatal(err)
	}
	wrong := 0
	lines(t, filepath.Join(folder, "expected.jsonl"), func(n int, decode func(any)) {
		var e expectation
		decode(&e)
		texts++
		same := func(what string, got, want []kvcache.Token) {
			if wrong < 5 && !slices.Equal(got, want) {
				wrong++
				t.Errorf("text %d, %q %s:\n%v\n%v, want\n%v", n, e.Text, what, pieces(tok, got), got, want)
			}
		}
		same("with special tokens", tok.Encode(e.Text, true), e.IDs)
		same("without", tok.Encode(e.Text, false), e.Plain)
		for _, c := range []struct {
			ids       []kvcache.Token
			got, want string
		}{{e.IDs, tok.Decode(e.IDs, true), e.Decoded}, {e.Drawn, tok.Decode(e.Drawn, false), e.DrawnDecoded}} {
			if wrong < 5 && c.got != c.want {
				wrong++
				t.Errorf("text %d: %v decodes to\n%q, want\n%q", n, c.ids, c.got, c.want)
			}
		}
	})
	return texts
}

func pieces(tok *tokenizer.Tokenizer, ids []kvcache.Token) (texts []string) {
	for _, id := range ids {
		texts = append(texts, tok.Token(id))
	}
	return texts
}

// compareChats holds a folder's chat template to what transformers rendered, and returns how
// many chats there were. Where the template raises an error, so must Chat.
func compareChats(t *testing.T, folder string) (chats int) {
	t.Helper()
	tok, err := tokenizer.Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	lines(t, filepath.Join(folder, "chat.jsonl"), func(n int, decode func(any)) {
		if n == 0 {
			var c counts
			decode(&c)
			if tok.Len() != c.Len || tok.VocabSize() != c.VocabSize || !slices.Equal(tok.Special(), c.Special) {
				t.Errorf("%d tokens, %d of the model, special %v; want %+v", tok.Len(), tok.VocabSize(), tok.Special(), c)
			}
			return
		}
		var c conversation
		decode(&c)
		chats++
		got, err := tok.Chat(c.Messages, c.Prompt)
		if got != c.Text || (err != nil) != (c.Error != "") {
			t.Errorf("chat %d: %q, %v; want\n%q, error %q", n, got, err, c.Text, c.Error)
		}
	})
	return chats
}

func TestAgainstPython(t *testing.T) {
	folders, err := filepath.Glob("testdata/*/expected.jsonl")
	if err != nil || len(folders) != 7 {
		t.Fatalf("%q, %v", folders, err)
	}
	for _, f := range folders {
		folder := filepath.Dir(f)
		t.Run(filepath.Base(folder), func(t *testing.T) {
			if n := compareTexts(t, folder); n < 40 {
				t.Errorf("%d texts", n)
			}
		})
	}
	for _, name := range []string{"qwen", "llama3"} {
		t.Run(name+"/chat", func(t *testing.T) {
			if n := compareChats(t, filepath.Join("testdata", name)); n != 12 {
				t.Errorf("%d chats", n)
			}
		})
	}
}

// TestLargeTokenizers: the vocabularies that models have are too large to lie here. The
// variable names a folder with a folder for each, as testdata/README.md says how to make.
func TestLargeTokenizers(t *testing.T) {
	all := os.Getenv("KVFERRY_TOKENIZERS")
	if all == "" {
		t.Skip("SKIPPED: KVFERRY_TOKENIZERS names no folder of tokenizers; testdata/README.md says how to make one")
	}
	folders, err := filepath.Glob(filepath.Join(all, "*", "expected.jsonl"))
	if err != nil || len(folders) == 0 {
		t.Fatalf("%s: there is no */expected.jsonl, %v", all, err)
	}
	for _, f := range folders {
		folder := filepath.Dir(f)
		t.Run(filepath.Base(folder), func(t *testing.T) {
			texts, chats := compareTexts(t, folder), 0
			if _, err := os.Stat(filepath.Join(folder, "chat.jsonl")); err == nil {
				chats = compareChats(t, folder)
			}
			t.Logf("%d texts and %d chats compared", texts, chats)
		})
	}
}
