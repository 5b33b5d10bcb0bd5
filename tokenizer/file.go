package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"kvferry/internal/config"
	"kvferry/internal/model"
	"kvferry/kvcache"
)

// maxID bounds what a file makes us allocate: tables are indexed by id. The largest
// vocabularies have a quarter of a million tokens.
const maxID = 1 << 20

// Find is the path that the name of a tokenizer means: a folder or a file, or else what the cache of the
// Hugging Face hub has of a model. The error of a name that is neither says where was looked, and which
// command downloads it.
func Find(name string) (path string, err error) {
	return model.FindFiles(name, FileName, ConfigFileName)
}

// Load reads a tokenizer: a folder with a tokenizer.json and what belongs to it, or such a
// file, whose folder then is not looked at further, or what [Find] finds by a model's name.
// Errors name the file and the field.
func Load(name string) (*Tokenizer, error) {
	path, err := Find(name)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, config.FileError(path, err)
	}
	if !info.IsDir() {
		text, err := config.ReadFile(path)
		if err != nil {
			return nil, err
		}
		t, err := Parse(text, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", path, err)
		}
		return t, nil
	}
	var files [3][]byte
	for i, name := range []string{FileName, ConfigFileName, TemplateFileName} {
		name = filepath.Join(path, name)
		files[i], err = config.ReadFile(name)
		if err != nil && (i == 0 || !errors.Is(err, fs.ErrNotExist)) {
			return nil, err
		}
	}
	t, err := Parse(files[0], files[1], files[2])
	if err != nil {
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	return t, nil
}

// Parse makes a tokenizer of the texts of a tokenizer.json and, if they are there, of the
// tokenizer_config.json and chat_template.jinja beside it. They are not kept.
func Parse(file, settings, template []byte) (*Tokenizer, error) {
	t := &Tokenizer{}
	if err := t.parse(file); err != nil {
		return nil, fmt.Errorf("%s: %w", FileName, err)
	}
	if err := t.configure(settings, template); err != nil {
		return nil, fmt.Errorf("%s: %w", ConfigFileName, err)
	}
	return t, nil
}

// tokenizerFile is a tokenizer.json. Fields of Hugging Face's format that are not here are
// an error.
type tokenizerFile struct {
	Version       string          `json:"version"`
	Truncation    json.RawMessage `json:"truncation"` // not followed; see the package
	Padding       json.RawMessage `json:"padding"`
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         json.RawMessage `json:"model"`
}

func (t *Tokenizer) parse(text []byte) error {
	var f tokenizerFile
	if err := config.Unmarshal(text, &f, true); err != nil {
		return err
	}
	bytesFirst := false
	if err := anyPart(f.PreTokenizer, "pre_tokenizer", func(p part) error {
		split, asBytes, err := p.splitter()
		t.split, bytesFirst = split, asBytes
		return err
	}); err != nil {
		return err
	}
	vocab, err := t.parseModel(f.Model, bytesFirst)
	if err != nil {
		return err
	}
	if err := t.index(vocab, f.AddedTokens); err != nil {
		return err
	}
	if err := anyPart(f.Normalizer, "normalizer", func(p part) (err error) {
		t.normalize, err = p.normalizer()
		return err
	}); err != nil {
		return err
	}
	t.cutters(f.AddedTokens)
	if err := anyPart(f.PostProcessor, "post_processor", func(p part) error { return p.around(t) }); err != nil {
		return err
	}
	t.decode = func(tokens []string) string { return strings.Join(tokens, " ") }
	return anyPart(f.Decoder, "decoder", func(p part) error {
		steps, err := p.decoders()
		t.decode, t.asBytes = decodeChain(steps), p.kind == "ByteLevel"
		return err
	})
}

// vocabulary is a model.vocab. An id that two tokens have would make decoding a matter of
// luck.
type vocabulary map[string]kvcache.Token

// pairText is a merge: "a b", or ["a", "b"] since tokens may have spaces.
type pairText [2]string

// UnmarshalJSON reads either form.
func (p *pairText) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '"' {
		var s string
		if err := json.Unmarshal(text, &s); err != nil {
			return err
		}
		left, right, ok := strings.Cut(s, " ")
		if !ok || strings.Contains(right, " ") {
			return fmt.Errorf("model.merges: %q: want two tokens with a space between them", s)
		}
		*p = pairText{left, right}
		return nil
	}
	var both []string
	if err := json.Unmarshal(text, &both); err != nil || len(both) != 2 {
		return fmt.Errorf("model.merges: %.60s: want two tokens", text)
	}
	*p = pairText{both[0], both[1]}
	return nil
}

func (t *Tokenizer) parseModel(raw json.RawMessage, asBytes bool) (vocabulary, error) {
	p, err := newPart(raw, "model")
	if err != nil {
		return nil, err
	}
	if p.kind == "" && bytes.Contains(raw, []byte(`"merges"`)) {
		p.kind = "BPE" // files before 2021 do not say
	}
	switch p.kind {
	case "BPE":
		return t.parseBPE(p, asBytes)
	case "WordLevel":
		var m struct {
			Type  string
			Vocab vocabulary `json:"vocab"`
			Unk   *string    `json:"unk_token"`
		}
		if err := p.into(&m); err != nil {
			return nil, err
		}
		if asBytes {
			return nil, errors.New("model.type: WordLevel after a pre_tokenizer ByteLevel is not read here: use BPE")
		}
		if m.Unk == nil {
			return nil, errors.New("model.unk_token: none given: name the token of words that are not in model.vocab")
		}
		id, ok := m.Vocab[*m.Unk]
		if !ok {
			return nil, fmt.Errorf("model.unk_token: %q is not in model.vocab", *m.Unk)
		}
		t.model = &wordLevel{m.Vocab, id}
		return m.Vocab, nil
	}
	return nil, p.refuse("BPE", "WordLevel")
}

func (t *Tokenizer) parseBPE(p part, asBytes bool) (vocabulary, error) {
	var m struct {
		Type    string
		Dropout *float64   `json:"dropout"`
		Unk     *string    `json:"unk_token"`
		Prefix  *string    `json:"continuing_subword_prefix"`
		Suffix  *string    `json:"end_of_word_suffix"`
		Fuse    bool       `json:"fuse_unk"`
		Bytes   bool       `json:"byte_fallback"`
		Ignore  bool       `json:"ignore_merges"`
		Vocab   vocabulary `json:"vocab"`
		Merges  []pairText `json:"merges"`
	}
	if err := p.into(&m); err != nil {
		return nil, err
	}
	switch {
	case m.Dropout != nil && *m.Dropout != 0:
		return nil, fmt.Errorf("model.dropout: %v: tokens that are drawn at random are for training only: use null", *m.Dropout)
	case m.Prefix != nil && *m.Prefix != "":
		return nil, fmt.Errorf("model.continuing_subword_prefix: %q: it is not read here: use none", *m.Prefix)
	case m.Suffix != nil && *m.Suffix != "":
		return nil, fmt.Errorf("model.end_of_word_suffix: %q: it is not read here: use none", *m.Suffix)
	}
	for _, id := range m.Vocab {
		if id > maxID {
			return nil, fmt.Errorf("model.vocab: id %d: use up to %d", id, maxID)
		}
	}
	pairs := make([][2]string, len(m.Merges))
	for i, p := range m.Merges {
		pairs[i] = p
	}
	b, err := newBPE(m.Vocab, pairs, asBytes)
	if err != nil {
		return nil, err
	}
	b.fuse, b.ignore = m.Fuse, m.Ignore
	if m.Unk != nil && *m.Unk != "" {
		id, ok := m.Vocab[*m.Unk]
		if !ok {
			return nil, fmt.Errorf("model.unk_token: %q is not in model.vocab", *m.Unk)
		}
		b.unknown = int64(id)
		if asBytes && slices.Contains(b.bytes[:], none) {
			return nil, fmt.Errorf("model.unk_token: %q: not all 256 bytes are in model.vocab, and unknown ones are not read here: add them", *m.Unk)
		}
	}
	if m.Bytes {
		b.fallback = new([256]int64)
		for i := range b.fallback {
			b.fallback[i] = none
			if id, ok := m.Vocab[fmt.Sprintf("<0x%02X>", i)]; ok {
				b.fallback[i] = int64(id)
			}
		}
	}
	t.model = b
	return m.Vocab, nil
}

// index makes the tables by id.
func (t *Tokenizer) index(vocab vocabulary, added []addedToken) error {
	top := kvcache.Token(0)
	for _, id := range vocab {
		top = max(top, id)
	}
	for i, a := range added {
		if a.ID > maxID {
			return fmt.Errorf("added_tokens[%d].id: %d: use up to %d", i, a.ID, maxID)
		}
		top = max(top, a.ID)
	}
	if top > maxID {
		return fmt.Errorf("model.vocab: id %d: use up to %d", top, maxID)
	}
	t.tokens, t.exists, t.special = make([]string, top+1), make([]bool, top+1), make([]bool, top+1)
	for text, id := range vocab {
		if t.exists[id] {
			return fmt.Errorf("model.vocab: id %d is both %q and %q: give each its own", id, min(text, t.tokens[id]), max(text, t.tokens[id]))
		}
		t.tokens[id], t.exists[id] = text, true
	}
	t.vocab, t.len = len(vocab), len(vocab)
	for i, a := range added {
		if id, ok := vocab[a.Content]; ok && id != a.ID {
			return fmt.Errorf("added_tokens[%d].id: %d: %q is %d in model.vocab", i, a.ID, a.Content, id)
		}
		switch {
		case !t.exists[a.ID]:
			t.len++
		case t.tokens[a.ID] != a.Content:
			return fmt.Errorf("added_tokens[%d].id: %d is %q already", i, a.ID, t.tokens[a.ID])
		}
		t.tokens[a.ID], t.exists[a.ID], t.special[a.ID] = a.Content, true, a.Special
		if a.Special {
			t.named = append(t.named, a.ID)
		}
	}
	slices.Sort(t.named)
	t.named = slices.Compact(t.named)
	return nil
}

// cutters has added tokens looked for, each in the text as it is or in the normalised one.
func (t *Tokenizer) cutters(added []addedToken) {
	var tokens [2][]addedToken
	var contents [2][]string
	for _, a := range added {
		which, content := 0, a.Content
		if a.Normalized {
			which = 1
			if t.normalize != nil && content != "" {
				content = t.normalize(content)
			}
		}
		if content != "" {
			tokens[which], contents[which] = append(tokens[which], a), append(contents[which], content)
		}
	}
	t.raw, t.normalized = newCutter(tokens[0], contents[0]), newCutter(tokens[1], contents[1])
}
