package tokenizer

import (
	"fmt"
	"slices"

	"kvferry/kvcache"
)

// minWords is the least number of words that are worth generating from.
const minWords = 1000

// WholeWords are the tokens of a model's tokenizer that are a whole word, a space and ASCII
// letters, in ascending order: what kvferry's modelled GPUs generate when they stand in for
// that model. Any of them in any order survive decode and encode, so that a client which
// counts by the same file counts what was generated; that is tried here over all of them. An
// error says why a tokenizer has no such words: those that put a mark before each text
// (Llama 2's, SentencePiece's) have none.
func (t *Tokenizer) WholeWords() ([]kvcache.Token, error) {
	if !t.asBytes {
		return nil, fmt.Errorf("its words do not survive decode and encode: want a byte-level tokenizer (decoder ByteLevel), as Qwen, Llama 3 and gpt-oss have it")
	}
	var all []kvcache.Token
	for id := range kvcache.Token(t.Bound()) {
		if word(t.AppendBytes(nil, id)) && !t.isSpecial(id) {
			all = append(all, id)
		}
	}
	all = slices.DeleteFunc(all, func(id kvcache.Token) bool {
		ids := t.Encode(string(t.AppendBytes(nil, id)), false)
		return len(ids) != 1 || ids[0] != id
	})
	if len(all) < minWords {
		return nil, fmt.Errorf("it has %d tokens that are a space and letters and are encoded as that one token: want %d or more", len(all), minWords)
	}
	// Each alone is itself. Among others it is, if the tokenizer cuts before each space: in
	// this order, and in another in which each has other neighbours.
	other := slices.Clone(all)
	for i := range other {
		other[i] = all[i*wordStride%len(all)]
	}
	for _, order := range [][]kvcache.Token{all, other} {
		if !slices.Equal(t.Encode(t.Decode(order, false), false), order) {
			return nil, fmt.Errorf("its words do not survive decode and encode among others: its pre_tokenizer does not cut before each space")
		}
	}
	return all, nil
}

// word reports whether a text is a space and ASCII letters.
func word(text []byte) bool {
	for i, c := range text {
		if i == 0 && c != ' ' || i > 0 && (c|0x20 < 'a' || c|0x20 > 'z') {
			return false
		}
	}
	return len(text) > 1
}
