package tokenizer

import (
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"

	"kvferry/kvcache"
)

// A Tokenizer turns text into tokens and back. It does not change after [Load]; any number
// of goroutines may use it at once. It implements load.Tokenizer.
type Tokenizer struct {
	raw        *cutter // added tokens that are looked for in the text as it is
	normalize  normalizer
	normalized *cutter // those that are looked for in the normalised text
	split      splitter
	model      segmenter
	decode     decoder
	asBytes    bool // decode is ByteLevel alone

	before, after []kvcache.Token // what the post-processor puts around a text

	tokens  []string // by id: as the file writes them; "" is no token
	exists  []bool   // by id
	special []bool   // by id: decoding may skip it
	len     int      // tokens that exist
	vocab   int      // of them, those of the model itself
	named   []kvcache.Token
	chat    *chat
	own     *own // of kvferry's own, which has no tables of its words
}

// A segmenter (a "model" in tokenizer.json) turns a piece of text into tokens.
type segmenter interface {
	appendEncode(ids []kvcache.Token, piece string) []kvcache.Token
}

// A normalizer changes a text before it is cut. It is never given the empty text.
type normalizer func(text string) string

// A splitter cuts a text into the pieces that the segmenter sees, and emits them in order. first
// says that the text, or the piece, begins where the whole text begins.
type splitter func(text string, first bool, emit func(piece string, first bool))

// Encode turns a text into tokens: tokenizers' encode(text, add_special_tokens=special).
// special is whether those that the tokenizer puts before and after each text (BOS, EOS)
// come with it. Special tokens that are written out in the text become tokens either way.
func (t *Tokenizer) Encode(text string, special bool) []kvcache.Token {
	return t.AppendEncode(make([]kvcache.Token, 0, len(text)/4+2), text, special)
}

// AppendEncode appends the tokens of a text to ids; see [Tokenizer.Encode].
func (t *Tokenizer) AppendEncode(ids []kvcache.Token, text string, special bool) []kvcache.Token {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if special {
		ids = append(ids, t.before...)
	}
	add := func(id kvcache.Token) { ids = append(ids, id) }
	encode := func(piece string, _ bool) { ids = t.model.appendEncode(ids, piece) }
	t.raw.cut(text, true, func(text string, first bool) {
		if t.normalize != nil {
			text = t.normalize(text)
		}
		t.normalized.cut(text, first, func(text string, first bool) {
			if t.split == nil {
				encode(text, first)
				return
			}
			t.split(text, first, encode)
		}, add)
	}, add)
	if special {
		ids = append(ids, t.after...)
	}
	return ids
}

// Decode turns tokens into text: transformers' decode(tokens, skip_special_tokens=skipSpecial).
// Ids that are no tokens are left out, as there.
func (t *Tokenizer) Decode(tokens []kvcache.Token, skipSpecial bool) string {
	if t.asBytes {
		b := make([]byte, 0, 5*len(tokens))
		for _, id := range tokens {
			if !skipSpecial || !t.isSpecial(id) {
				b = t.AppendBytes(b, id)
			}
		}
		return ValidUTF8(b)
	}
	texts := make([]string, 0, len(tokens))
	for _, id := range tokens {
		if t.Has(id) && !(skipSpecial && t.isSpecial(id)) {
			texts = append(texts, t.tokens[id])
		}
	}
	return t.decode(texts)
}

// AppendBytes appends what one token of a byte-level tokenizer stands for, which need not be
// whole characters; nothing if it is no token. Of another tokenizer it is the token as the
// vocabulary writes it.
func (t *Tokenizer) AppendBytes(dst []byte, id kvcache.Token) []byte {
	if o := t.own; o != nil && o.words <= id && id < o.marks {
		return appendWord(dst, id-o.words)
	}
	text := t.Token(id)
	if t.asBytes {
		if b, ok := appendBytes(dst, text); ok {
			return b
		}
	}
	return append(dst, text...)
}

// Has reports whether there is a token of this id.
func (t *Tokenizer) Has(id kvcache.Token) bool {
	return t.own != nil && int(id) < t.len || int(id) < len(t.tokens) && t.exists[id]
}

func (t *Tokenizer) isSpecial(id kvcache.Token) bool {
	if t.own != nil {
		return id >= t.own.marks
	}
	return int(id) < len(t.special) && t.special[id]
}

// Len is how many tokens there are, the added ones too: Python's len(tokenizer).
func (t *Tokenizer) Len() int { return t.len }

// VocabSize is how many tokens the model itself has, without those that were added to it:
// Python's tokenizer.vocab_size. vLLM's and SGLang's clients draw random tokens below it.
func (t *Tokenizer) VocabSize() int { return t.vocab }

// BOS is the token that begins a text, as tokenizer_config.json names it, "" if it names none:
// Python's tokenizer.bos_token. SGLang's client takes it out of what a chat template renders.
func (t *Tokenizer) BOS() string {
	bos, _ := t.chat.tokens["bos_token"].(string)
	return bos
}

// Bound is one more than the greatest id.
func (t *Tokenizer) Bound() int {
	if t.own != nil {
		return t.len
	}
	return len(t.tokens)
}

// Special are the ids of the special tokens, in ascending order. With a
// tokenizer_config.json they are those that it names, bos_token and so on: transformers'
// all_special_ids, which vLLM's client leaves out of its random prompts. Without one they
// are all added tokens that the file marks as special.
func (t *Tokenizer) Special() []kvcache.Token { return slices.Clone(t.named) }

// Token is a token as the vocabulary writes it, "" if there is none of that id. Python's
// id_to_token.
func (t *Tokenizer) Token(id kvcache.Token) string {
	switch o := t.own; {
	case int(id) < len(t.tokens):
		return t.tokens[id]
	case o == nil || int(id) >= t.len:
		return ""
	case id >= o.marks:
		return marks[id-o.marks]
	default:
		return string(appendAlphabet(nil, string(appendWord(nil, id-o.words))))
	}
}

// form is a Unicode normal form as a normalizer. Most texts are in theirs already.
func form(f norm.Form) normalizer {
	return func(text string) string {
		if f.IsNormalString(text) {
			return text
		}
		return f.String(text)
	}
}
