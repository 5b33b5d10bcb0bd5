package openai

import (
	"fmt"
	"unicode/utf8"

	"kvferry/load"
	"kvferry/tokenizer"
)

// Vocabularies that kvferry's own tokenizer can have, in token ids.
const (
	MinVocab = tokenizer.MinOwn
	MaxVocab = tokenizer.MaxOwn
)

// A Tokenizer is that of the model which is served: kvferry's own of the vocabulary's size,
// or a model's of a [ModelFile]. Clients count by the same one, which the proxy hands out as a
// tokenizer.json. Ids in this package are the tokenizer's.
type Tokenizer struct {
	*tokenizer.Tokenizer
	vocab uint32
	file  *ModelFile // nil: kvferry's own
	bare  bool       // leave out what is put around each text
}

// NewTokenizer is kvferry's own tokenizer of a vocabulary, which has MinVocab to MaxVocab ids:
// no node of another is let in.
func NewTokenizer(vocab uint32) Tokenizer {
	own, err := tokenizer.Own(int(vocab))
	if err != nil {
		panic(err)
	}
	return Tokenizer{Tokenizer: own, vocab: vocab}
}

// Vocab is how many token ids there are, those included that are no tokens: models have more
// than their tokenizers.
func (t Tokenizer) Vocab() uint32 { return t.vocab }

// Words are what nodes are to generate: n ids from first on, as nodes count them (see
// ToNode). Each is a word, a space and letters, that a client's tokenizer makes the same
// one token of.
func (t Tokenizer) Words() (first, n uint32) {
	if t.file != nil {
		return 0, uint32(len(t.file.words))
	}
	return t.Tokenizer.Words()
}

// ToNode is the id by which nodes know a token, and FromNode the way back. Nodes draw what
// they generate from one range of ids; a model's words lie scattered, so that its ids
// are renumbered for nodes, words first. It makes no difference to a node, for which an
// id is a number: equal prompts stay equal.
func (t Tokenizer) ToNode(id uint32) uint32 {
	if t.file == nil || int(id) >= len(t.file.toNode) {
		return id
	}
	return t.file.toNode[id]
}

// FromNode is the token that a node knows by id; see ToNode.
func (t Tokenizer) FromNode(id uint32) uint32 {
	if t.file == nil || int(id) >= len(t.file.fromNode) {
		return id
	}
	return t.file.fromNode[id]
}

// AppendToken appends a token's text as it may stand in a JSON string. Of words, which are all
// that is generated, it is the text as it is. Tokens that are no whole characters are
// U+FFFD each; an [Unbroken] joins them.
func (t Tokenizer) AppendToken(dst []byte, id uint32) []byte {
	before := len(dst)
	dst = t.AppendBytes(dst, id)
	for _, c := range dst[before:] {
		if c != ' ' && (c|0x20 < 'a' || c|0x20 > 'z') {
			text := string(dst[before:])
			return appendEscaped(dst[:before], text)
		}
	}
	return dst
}

// Decode is the text of ids, special tokens too.
func (t Tokenizer) Decode(ids []uint32) string { return t.Tokenizer.Decode(ids, false) }

// Encode cuts text into tokens, with those that the tokenizer puts around each (BOS), unless
// it is bare. Any bytes, valid UTF-8 or not, give the same ids every time.
func (t Tokenizer) Encode(text string) []uint32 { return t.Tokenizer.Encode(text, !t.bare) }

// special is t with or without what is put around each text, as a request's
// add_special_tokens says; nil is with it, as in vLLM.
func (t Tokenizer) special(add *bool) Tokenizer {
	t.bare = add != nil && !*add
	return t
}

// ChatMessage is one message of a conversation.
type ChatMessage = load.Message

// EncodeChat renders messages by the model's chat template, with the opening of the
// assistant's answer, and encodes that. The error says that there is no template, or what it
// does not accept.
func (t Tokenizer) EncodeChat(messages []ChatMessage) ([]uint32, error) {
	text, err := t.Chat(messages, true)
	if err != nil {
		return nil, err
	}
	return t.Tokenizer.Encode(text, false), nil
}

// An Unbroken writes tokens' text where characters may be made of several tokens.
type Unbroken struct {
	Tokenizer
	begun []byte // of a character whose rest is to come
}

// AppendToken appends the text that is complete with a token; last is whether none follows.
func (u *Unbroken) AppendToken(dst []byte, id uint32, last bool) []byte {
	u.begun = u.AppendBytes(u.begun, id)
	whole := len(u.begun)
	if !last {
		// A character has up to four bytes; its first says how many.
		for n := 1; n < min(utf8.UTFMax, len(u.begun)+1); n++ {
			if b := u.begun[len(u.begun)-n:]; utf8.RuneStart(b[0]) {
				if !utf8.FullRune(b) {
					whole -= n
				}
				break
			}
		}
	}
	dst = appendEscaped(dst, tokenizer.ValidUTF8(u.begun[:whole]))
	u.begun = append(u.begun[:0], u.begun[whole:]...)
	return dst
}

// A ModelFile is the tokenizer of a real model, that kvferry's modelled one stands in for.
type ModelFile struct {
	tokenizer.Files
	tokens           *tokenizer.Tokenizer
	words            []uint32 // what is generated, by the nodes' ids
	toNode, fromNode []uint32
}

// LoadModelFile reads a folder with a tokenizer.json, or such a file, or what the cache of the
// Hugging Face hub has by a model's name, and finds the words to generate. The error says why
// there are none.
func LoadModelFile(name string) (*ModelFile, error) {
	path, err := tokenizer.Find(name)
	if err != nil {
		return nil, err
	}
	t, err := tokenizer.Load(path)
	if err != nil {
		return nil, err
	}
	words, err := t.WholeWords()
	if err != nil {
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	f := &ModelFile{Files: tokenizer.FilesAt(path), tokens: t, words: words}
	isWord := make(map[uint32]bool, len(words))
	for _, id := range words {
		isWord[id] = true
	}
	f.fromNode = append(f.fromNode, words...)
	for id := range uint32(t.Bound()) {
		if !isWord[id] {
			f.fromNode = append(f.fromNode, id)
		}
	}
	f.toNode = make([]uint32, len(f.fromNode))
	for i, id := range f.fromNode {
		f.toNode[id] = uint32(i)
	}
	return f, nil
}

// Size is how many ids a model's vocabulary has at least.
func (f *ModelFile) Size() uint32 { return uint32(len(f.toNode)) }

// Tokenizer is the file's for a vocabulary of so many ids.
func (f *ModelFile) Tokenizer(vocab uint32) Tokenizer {
	return Tokenizer{Tokenizer: f.tokens, vocab: vocab, file: f}
}
