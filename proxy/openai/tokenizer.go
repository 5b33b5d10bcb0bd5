package openai

import (
	"unicode/utf8"
)

// Qwen2.5's ids for the marks of its chat template; see Tokenizer.marks.
const (
	tokenNewline = 198
	tokenIMStart = 151644
	tokenIMEnd   = 151645
)

// Words are five letters, consonant-vowel-consonant-vowel-consonant, behind a
// space: 20*5*20*5*20 = 200,000 of them, and as many with a capital for the ids
// above. Of these the model's vocabulary is in use; Gemma's 262,144 is the largest
// that is common. wordStride scatters neighbouring ids over the words (" bobad",
// " mifur") so that generated text does not read like a counter; it is odd and no
// multiple of 5, hence coprime to 200,000, and wordStrideInverse undoes it.
const (
	consonants        = "bcdfghjklmnpqrstvwxz"
	capitals          = "BCDFGHJKLMNPQRSTVWXZ"
	vowels            = "aeiou"
	wordLetters       = 5
	tokenBytes        = 1 + wordLetters
	wordCount         = 20 * 5 * 20 * 5 * 20
	MaxVocab          = 2 * wordCount // has a word for each id
	wordStride        = 77773
	wordStrideInverse = 48837
)

// maxChunk bounds the bytes of text one token stands for: words up to this
// length are one token with the space before them, which gives English prose
// about four characters a token (4.1 measured), as Qwen's own vocabulary does.
const maxChunk = 6

// letterIndex maps a byte to its position among some letters, or -1.
var consonantIndex, vowelIndex, initialIndex = letterIndex(consonants), letterIndex(vowels), letterIndex(consonants + capitals)

func letterIndex(letters string) (t [256]int8) {
	for i := range t {
		t[i] = -1
	}
	for i := range len(letters) {
		t[letters[i]] = int8(i)
	}
	return t
}

// Tokenizer turns text into token ids and back without a downloaded
// vocabulary. Every id decodes to a pronounceable word of its own, so that
// Encode(Decode(ids)) == ids; any other text is cut into words and hashed, so
// that its length in tokens is realistic and equal text gives equal tokens
// (and equal prefixes equal KV blocks), but it does not survive the way back.
//
// A token's text is the same in every vocabulary, so the zero value decodes; to
// encode, Vocab must be set.
type Tokenizer struct {
	Vocab uint32 // ids are in [0, Vocab); 1 to 400,000
}

// AppendToken appends a token's text, always a space and five letters: safe inside a
// JSON string as it is. An id beyond the words wraps around.
func (Tokenizer) AppendToken(dst []byte, id uint32) []byte {
	const initials = consonants + capitals
	w := uint64(id) * wordStride % wordCount // below 2^49: no overflow
	c3 := consonants[w%20]
	w /= 20
	v2 := vowels[w%5]
	w /= 5
	c2 := consonants[w%20]
	w /= 20
	v1 := vowels[w%5]
	return append(dst, ' ', initials[w/5+20*(uint64(id)/wordCount%2)], v1, c2, v2, c3)
}

// Decode is the text of ids.
func (t Tokenizer) Decode(ids []uint32) string {
	b := make([]byte, 0, tokenBytes*len(ids))
	for _, id := range ids {
		b = t.AppendToken(b, id)
	}
	return string(b)
}

// Encode cuts text into tokens. It is total and deterministic: any bytes,
// valid UTF-8 or not, give the same ids every time, none for the empty text. Ids must not
// change from version to version, or results would no longer compare: tests pin some.
func (t Tokenizer) Encode(text string) []uint32 {
	return t.appendEncode(make([]uint32, 0, len(text)/4+1), text)
}

func (t Tokenizer) appendEncode(ids []uint32, text string) []uint32 {
	for i := 0; i < len(text); {
		start := i
		if text[i] == ' ' {
			i++ // a space belongs to the word after it
		}
		word := i
		for i < len(text) && isWordByte(text[i]) {
			i++
		}
		switch {
		case i == word && i < len(text) && text[i] == ' ':
			for i < len(text) && text[i] == ' ' && i-start < maxChunk { // a run of spaces
				i++
			}
			ids = append(ids, t.hash(text[start:i]))
		case i == word && i < len(text): // a mark, a control, or one rune of another script
			_, n := utf8.DecodeRuneInString(text[i:])
			i += n
			ids = append(ids, t.hash(text[start:i]))
		case i == word: // a space at the end
			ids = append(ids, t.hash(text[start:i]))
		default:
			if id, ok := t.word(text[start:i]); ok {
				ids = append(ids, id)
				continue
			}
			for end := i; word < end; start = word {
				word = min(word+maxChunk, end)
				ids = append(ids, t.hash(text[start:word]))
			}
		}
	}
	return ids
}

// isWordByte is an ASCII letter or digit.
func isWordByte(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9'
}

// word is the id whose text is exactly piece, if the vocabulary has it: AppendToken backwards,
// its digits of mixed base multiplied by the inverse of the stride.
func (t Tokenizer) word(piece string) (uint32, bool) {
	if len(piece) != tokenBytes || piece[0] != ' ' {
		return 0, false
	}
	c1, v1 := initialIndex[piece[1]], vowelIndex[piece[2]]
	c2, v2 := consonantIndex[piece[3]], vowelIndex[piece[4]]
	c3 := consonantIndex[piece[5]]
	if c1 < 0 || v1 < 0 || c2 < 0 || v2 < 0 || c3 < 0 {
		return 0, false
	}
	w := (((uint64(c1%20)*5+uint64(v1))*20+uint64(c2))*5+uint64(v2))*20 + uint64(c3)
	id := w*wordStrideInverse%wordCount + uint64(c1/20)*wordCount
	return uint32(id), id < uint64(t.Vocab)
}

// hash maps a piece of text to an id: FNV-1a with a final mix, because
// pieces are short and the modulus would see little but the last byte.
func (t Tokenizer) hash(piece string) uint32 {
	h := uint64(14695981039346656037)
	for i := range len(piece) {
		h = (h ^ uint64(piece[i])) * 1099511628211
	}
	return uint32((h ^ h>>29) % uint64(t.Vocab))
}

// ChatMessage is one message of a conversation.
type ChatMessage struct{ Role, Content string }

// marks are the ids of the chat template's marks: Qwen2.5's, or in a vocabulary
// without them the last three, where most models have theirs. In one of less than
// three tokens some fall together.
func (t Tokenizer) marks() (start, end, newline uint32) {
	if t.Vocab > tokenIMEnd {
		return tokenIMStart, tokenIMEnd, tokenNewline
	}
	last := t.Vocab - 1
	return last - min(last, 1), last, last - min(last, 2)
}

// EncodeChat renders messages as Qwen2.5's chat template does,
// <|im_start|>role\ncontent<|im_end|>\n for each and then the opening of the
// assistant's answer. A role is one token, as the usual ones are there.
func (t Tokenizer) EncodeChat(messages []ChatMessage) []uint32 {
	start, end, newline := t.marks()
	var ids []uint32
	for _, m := range messages {
		ids = append(ids, start, t.hash(m.Role), newline)
		ids = t.appendEncode(ids, m.Content)
		ids = append(ids, end, newline)
	}
	return append(ids, start, t.hash("assistant"), newline)
}
