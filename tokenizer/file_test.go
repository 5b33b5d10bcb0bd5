package tokenizer_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/load"
	"kvferry/tokenizer"
)

// file is a tokenizer.json with one field as given.
func file(field, value string) string {
	fields := map[string]string{
		"normalizer": "null", "pre_tokenizer": `{"type":"Whitespace"}`, "post_processor": "null", "decoder": "null", "added_tokens": "[]",
		"model": `{"type":"WordLevel","vocab":{"<unk>":0,"a":1},"unk_token":"<unk>"}`,
	}
	if field != "" {
		fields[field] = value
	}
	var b strings.Builder
	b.WriteString(`{"version":"1.0","truncation":null,"padding":null`)
	for name, value := range fields {
		b.WriteString(`,"` + name + `":` + value)
	}
	return b.String() + "}"
}

func bpe(rest string) string {
	return `{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]` + rest + `}`
}

// TestRefusals: what a file asks for that is not done here is an error that names the field,
// and never other tokens than the Python library's.
func TestRefusals(t *testing.T) {
	if _, err := tokenizer.Parse([]byte(file("model", bpe(""))), nil, nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ field, value, want string }{
		{"model", `{"type":"WordPiece","vocab":{}}`, `model.type: "WordPiece" is not read here: use BPE or WordLevel`},
		{"model", `null`, "model: none given"},
		{"model", `{"type":"BPE","vocab":{"a":-1},"merges":[]}`, "vocab: number -1: want a whole number from 0"},
		{"model", `{"type":"BPE","vocab":{"a":0,"b":0},"merges":[]}`, `model.vocab: id 0 is both "a" and "b"`},
		{"model", `{"type":"BPE","vocab":{"a":99999999},"merges":[]}`, "model.vocab: id 99999999: use up to"},
		{"model", `{"type":"BPE","vocab":{"a":0},"merges":["a b"]}`, `model.merges[0]: "b" is not in model.vocab`},
		{"model", `{"type":"BPE","vocab":{"a":0,"b":1},"merges":[["a","b"]]}`, `model.merges[0]: "ab", what it makes of "a" and "b"`},
		{"model", `{"type":"BPE","vocab":{"a":0},"merges":["a"]}`, "model.merges: \"a\": want two tokens"},
		{"model", `{"type":"BPE","vocab":{"a":0},"merges":[["a"]]}`, "model.merges: [\"a\"]: want two tokens"},
		{"model", bpe(`,"dropout":0.1`), "model.dropout: 0.1"},
		{"model", bpe(`,"continuing_subword_prefix":"##"`), "model.continuing_subword_prefix"},
		{"model", bpe(`,"end_of_word_suffix":"</w>"`), "model.end_of_word_suffix"},
		{"model", bpe(`,"unk_token":"x"`), `model.unk_token: "x" is not in model.vocab`},
		{"model", bpe(`,"cleverness":1`), `model: there is no field "cleverness"`},
		{"model", `{"type":"WordLevel","vocab":{"a":0}}`, "model.unk_token: none given"},
		{"model", `{"type":"WordLevel","vocab":{"a":0},"unk_token":"b"}`, "model.unk_token"},
		{"normalizer", `{"type":"BertNormalizer"}`, `normalizer.type: "BertNormalizer" is not read here: use NFC`},
		{"normalizer", `{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Lowercase"}]}`, `normalizer.normalizers[1].type: "Lowercase"`},
		{"normalizer", `{"type":"Replace","pattern":{"Regex":"a+"},"content":"b"}`, "normalizer.pattern: only a String"},
		{"normalizer", `{"type":"NFC","how":1}`, `normalizer: there is no field "how"`},
		{"pre_tokenizer", `{"type":"UnicodeScripts"}`, `pre_tokenizer.type: "UnicodeScripts" is not read here: use ByteLevel`},
		{"pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]}`, `pre_tokenizer.pretokenizers[1].type: "Digits" after ByteLevel`},
		{"pre_tokenizer", `{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"}`, "pre_tokenizer.pattern.Regex"},
		{"pre_tokenizer", `{"type":"Split","pattern":{"Regex":"[a-z&&[^b]]"},"behavior":"Isolated"}`, "&& is not read here"},
		{"pre_tokenizer", `{"type":"Split","pattern":{"Regex":"a*"},"behavior":"Isolated"}`, "matches the empty text"},
		{"pre_tokenizer", `{"type":"Split","pattern":{},"behavior":"Isolated"}`, "pre_tokenizer.pattern: want a String or a Regex"},
		{"pre_tokenizer", `{"type":"Split","pattern":{"String":"a"},"behavior":"Sideways"}`, `pre_tokenizer.behavior: "Sideways": use Removed`},
		{"pre_tokenizer", `{"type":"Metaspace","replacement":"__"}`, "pre_tokenizer.replacement"},
		{"pre_tokenizer", `{"type":"Metaspace","replacement":"_","prepend_scheme":"maybe"}`, "pre_tokenizer.prepend_scheme"},
		{"pre_tokenizer", `{"type":"ByteLevel"}`, "model.type: WordLevel after a pre_tokenizer ByteLevel"},
		{"post_processor", `{"type":"BertProcessing"}`, `post_processor.type: "BertProcessing" is not read here`},
		{"post_processor", `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x","type_id":0}}],"special_tokens":{}}`, `post_processor.single[0]: "x" is not in special_tokens`},
		{"post_processor", `{"type":"TemplateProcessing","single":[],"special_tokens":{}}`, "Sequence A is missing"},
		{"post_processor", `{"type":"TemplateProcessing","single":[{"Sequence":{"id":"B"}}],"special_tokens":{}}`, "post_processor.single[0]: want"},
		{"post_processor", `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}}],"special_tokens":{"x":{"id":"x","ids":[7],"tokens":["x"]}}}`, "7 is no token"},
		{"decoder", `{"type":"WordPiece"}`, `decoder.type: "WordPiece" is not read here`},
		{"decoder", `{"type":"Sequence","decoders":[{"type":"CTC"}]}`, "decoder.decoders[0].type"},
		{"decoder", `{"type":"Strip","content":""}`, "decoder.content: none given"},
		{"added_tokens", `[{"id":5,"content":"a"}]`, `added_tokens[0].id: 5: "a" is 1 in model.vocab`},
		{"added_tokens", `[{"id":1,"content":"b"}]`, `added_tokens[0].id: 1 is "a" already`},
		{"added_tokens", `[{"id":1048577,"content":"b"}]`, "added_tokens[0].id: 1048577: use up to"},
		{"added_tokens", `[{"id":2,"content":"b","magic":true}]`, `there is no field "magic"`},
		{"more", `1`, `there is no field "more"`},
	} {
		_, err := tokenizer.Parse([]byte(file(c.field, c.value)), nil, nil)
		if err == nil || !strings.HasPrefix(err.Error(), tokenizer.FileName+": ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %q", c.field, c.value, err, c.want)
		}
	}
	for text, want := range map[string]string{
		`{"bos_token":"<s>"}`: `tokenizer_config.json: bos_token: "<s>" is not in tokenizer.json`,
		`{"bos_token":3}`:     "bos_token: 3: want a token",
		`{"chat_template":3}`: "chat_template: 3: want a text",
		`{"chat_template":[{"name":"tools","template":"x"}]}`: `none of the list is called "default"`,
		`[`: "tokenizer_config.json: it ends in the middle",
	} {
		if _, err := tokenizer.Parse([]byte(file("", "")), []byte(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestLoad(t *testing.T) {
	folder := t.TempDir()
	if _, err := tokenizer.Load(folder); err == nil || !strings.Contains(err.Error(), `tokenizer.json": there is no such file`) {
		t.Error(err)
	}
	if _, err := tokenizer.Load(filepath.Join(folder, "none")); err == nil || !strings.Contains(err.Error(), "there is no such file") {
		t.Error(err)
	}
	name := filepath.Join(folder, tokenizer.FileName)
	write(t, name, `{"version"`)
	if _, err := tokenizer.Load(name); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "cut off") {
		t.Error(err)
	}
	write(t, name, file("", ""))
	for _, path := range []string{folder, name} {
		tok, err := tokenizer.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tok.Chat(nil, true); err == nil || !strings.Contains(err.Error(), "no chat template") {
			t.Error(err)
		}
		if tok.Len() != 2 || tok.Token(1) != "a" || tok.Token(2) != "" || len(tok.Encode("a b", true)) != 2 {
			t.Errorf("%d tokens, %v", tok.Len(), tok.Encode("a b", true))
		}
		if tok.BOS() != "" {
			t.Errorf("nobody names a BOS: %q", tok.BOS())
		}
	}
	write(t, filepath.Join(folder, tokenizer.ConfigFileName), `{"bos_token": {"content": "a"}}`)
	if tok, err := tokenizer.Load(folder); err != nil || tok.BOS() != "a" {
		t.Errorf("%v, BOS %q", err, tok.BOS())
	}
}

// TestChatFaults: a template that cannot be rendered leaves a tokenizer that encodes.
func TestChatFaults(t *testing.T) {
	for template, want := range map[string]string{
		"{% if %}":                      "chat_template: it cannot be rendered here",
		"{{ raise_exception('no') }}":   "no",
		"{% include '/etc/passwd' %}":   "chat_template",
		"{{ messages[3].content.x() }}": "chat_template",
	} {
		tok, err := tokenizer.Parse([]byte(file("", "")), nil, []byte(template))
		if err != nil {
			t.Fatal(err)
		}
		if text, err := tok.Chat([]load.Message{{Role: "user", Content: "x"}}, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %q", template, text, err, want)
		}
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), fs.FileMode(0o600)); err != nil {
		t.Fatal(err)
	}
}
