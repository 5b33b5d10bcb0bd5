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
	model      model
	decode     decoder

	before, after []kvcache.Token // what the post-processor puts around a text

	tokens  []string // by id: as the file writes them; "" is no token
	exists  []bool   // by id
	special []bool   // by id: decoding may skip it
	len     int      // tokens that exist
	vocab   int      // of them, those of the model itself
	named   []kvcache.Token
	chat    *chat
}

// A model turns a piece of text into tokens.
type model interface {
	appendEncode(ids []kvcache.Token, piece string) []kvcache.Token
}

// A normalizer changes a text before it is cut. It is never given the empty text.
type normalizer func(text string) string

// A splitter cuts a text into the pieces that the model sees, and emits them in order. first
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
	texts := make([]string, 0, len(tokens))
	for _, id := range tokens {
		if int(id) < len(t.tokens) && t.exists[id] && !(skipSpecial && t.special[id]) {
			texts = append(texts, t.tokens[id])
		}
	}
	return t.decode(texts)
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

// Special are the ids of the special tokens, in ascending order. With a
// tokenizer_config.json they are those that it names, bos_token and so on: transformers'
// all_special_ids, which vLLM's client leaves out of its random prompts. Without one they
// are all added tokens that the file marks as special.
func (t *Tokenizer) Special() []kvcache.Token { return slices.Clone(t.named) }

// Token is a token as the vocabulary writes it, "" if there is none of that id. Python's
// id_to_token.
func (t *Tokenizer) Token(id kvcache.Token) string {
	if int(id) >= len(t.tokens) {
		return ""
	}
	return t.tokens[id]
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
