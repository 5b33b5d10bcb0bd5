package tokenizer

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"

	"kvferry/kvcache"
)

// kvferry has no model's weights, and no vocabulary of a model's either: one of its own, for
// any size. What its modelled GPUs generate are words of five letters behind a space,
// consonant-vowel-consonant-vowel-consonant (" bobad", " mifur"), each one token, so that a
// client which counts by the same tokenizer.json counts what was generated. Any other text can
// be encoded and comes back; English prose has about four characters a token.
//
// It is a byte-level BPE with Qwen's pattern and no normalizer. Its ids, of size n:
//
//	0        the 256 bytes
//	256      a space and a consonant: " b"
//	276      a vowel and a consonant: "ob"
//	376      English pieces, in the order in which they were trained: english.txt
//	376+e    heads: " bob", all 2,000
//	2376+e   words: " bobad", 200,000 at most, and behind them those with a vowel more: " bobada"
//	n-3      <|endoftext|>, <|im_start|>, <|im_end|>
//
// The merges that make heads and words come before the English ones, and apply at the
// beginning of a piece or between two letters that no other of them wants. So what they do to
// a piece is computed from its letters, and only the English ones are looked up: there is no
// table of 150,000 words in a daemon's memory.
type own struct {
	english, heads, words, marks kvcache.Token // where each begins; marks are the last three
	merges                       merges        // the English ones
	whole                        map[string]kvcache.Token
}

// Sizes that kvferry's own vocabulary may have, in tokens. The largest of a model that is
// common has 262,144 (Gemma).
const (
	MinOwn = 4096
	MaxOwn = 400_000
)

// Ids of what begins a piece, and the number of each kind.
const (
	initials   = 256
	syllables  = initials + consonants
	english    = syllables + vowels*consonants
	consonants = 20
	vowels     = 5
	heads      = consonants * vowels * consonants
	words5     = heads * vowels * consonants
)

// wordStride scatters neighbouring ids over the words, so that generated text does not read
// like a counter; it is odd and no multiple of 5, hence coprime to 200,000, and
// wordStrideInverse undoes it.
const (
	wordStride        = 77773
	wordStrideInverse = 48837
)

const (
	consonantLetters = "bcdfghjklmnpqrstvwxz"
	vowelLetters     = "aeiou"
)

// marks are the special tokens, from the last id but two.
var marks = [...]string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"}

// consonantOf and vowelOf map a byte to its place among the letters, or -1.
var consonantOf, vowelOf = placeAmong(consonantLetters), placeAmong(vowelLetters)

func placeAmong(letters string) (t [256]int8) {
	for i := range t {
		t[i] = none
	}
	for i := range len(letters) {
		t[letters[i]] = int8(i)
	}
	return t
}

// englishFile has a merge a line, two pieces with a tab between them; testdata/english.py
// trained them.
//
//go:embed english.txt
var englishFile string

// ownTemplate is Qwen's form of a chat without its default system message.
const ownTemplate = `{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// Own is kvferry's own tokenizer with so many tokens, [MinOwn] to [MaxOwn]. It is the one that
// a tokenizer.json with the text of [Tokenizer.WriteFile] gives, in a tenth of the memory.
// Those of one size are the same value; an error names no field.
func Own(size int) (*Tokenizer, error) {
	if size < MinOwn || size > MaxOwn {
		return nil, fmt.Errorf("%d tokens: kvferry's own tokenizer has %d to %d", size, MinOwn, MaxOwn)
	}
	if t, ok := owns.Load(size); ok {
		return t.(*Tokenizer), nil
	}
	t, _ := owns.LoadOrStore(size, newOwn(size))
	return t.(*Tokenizer), nil
}

// owns are the tokenizers that Own has made, by size: a process has one, tests some.
var owns sync.Map

func newOwn(size int) *Tokenizer {
	pairs := englishMerges((size - english - heads) / 8) // a small vocabulary is for words too
	n := kvcache.Token(len(pairs))
	o := &own{english: english, heads: english + n, words: english + n + heads, marks: kvcache.Token(size - len(marks)), merges: newMerges(len(pairs))}
	pattern := known[qwenPattern]
	t := &Tokenizer{
		own: o, model: o, split: pattern.splitter(), len: size, vocab: size,
		decode: decodeChain([]decodeStep{decodeByteLevel}), asBytes: true,
	}
	t.tokens = make([]string, o.words) // as a file writes them
	pieces := make(map[string]kvcache.Token, o.words)
	add := func(id kvcache.Token, text string) {
		pieces[text] = id
		t.tokens[id] = string(appendAlphabet(nil, text))
	}
	for b := range initials {
		add(kvcache.Token(b), string([]byte{byte(b)}))
	}
	for c := range consonants {
		add(kvcache.Token(initials+c), " "+consonantLetters[c:c+1])
	}
	for s := range vowels * consonants {
		add(kvcache.Token(syllables+s), syllable(s))
	}
	for h := range heads {
		add(o.heads+kvcache.Token(h), head(h))
	}
	for rank, p := range pairs {
		id := english + kvcache.Token(rank)
		add(id, p[0]+p[1])
		o.merges.set(pieces[p[0]], pieces[p[1]], merge(rank)<<32|merge(id))
	}
	// Most words of a text are one piece, and are found at once.
	o.whole = make(map[string]kvcache.Token, n)
	for i := o.english; i < o.heads; i++ {
		b, _ := appendBytes(nil, t.tokens[i])
		if ids := o.encode(nil, string(b)); len(ids) == 1 && ids[0] == i {
			o.whole[string(b)] = i
		}
	}
	var special []addedToken
	for i, mark := range marks {
		special = append(special, addedToken{ID: o.marks + kvcache.Token(i), Content: mark, Special: true})
		t.named = append(t.named, o.marks+kvcache.Token(i))
	}
	t.cutters(special)
	t.chat = &chat{tokens: map[string]any{"eos_token": marks[2], "pad_token": marks[0]}}
	t.chat.template, t.chat.fault = compile(ownTemplate)
	return t
}

// englishMerges are the first of them, at most.
func englishMerges(most int) [][2]string {
	var pairs [][2]string
	unescape := strings.NewReplacer(`\n`, "\n", `\r`, "\r")
	for line := range strings.Lines(englishFile) {
		left, right, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !ok || len(pairs) == most {
			break
		}
		pairs = append(pairs, [2]string{unescape.Replace(left), unescape.Replace(right)})
	}
	return pairs
}

// syllable and head are the texts of a vowel and consonant, and of the beginning of a word.
func syllable(s int) string {
	return vowelLetters[s/consonants:s/consonants+1] + consonantLetters[s%consonants:s%consonants+1]
}

func head(h int) string {
	return " " + consonantLetters[h/(vowels*consonants):h/(vowels*consonants)+1] + syllable(h%(vowels*consonants))
}

// place is which of all words of five letters the k-th is, and how many times all of them come
// before it: the vowel that it has more, counted from 1.
func place(k kvcache.Token) (w, vowel int) {
	return int(uint64(k) * wordStride % words5), int(k / words5)
}

// appendWord appends the text of the k-th word.
func appendWord(dst []byte, k kvcache.Token) []byte {
	w, vowel := place(k)
	c3 := consonantLetters[w%20]
	w /= 20
	v2 := vowelLetters[w%5]
	w /= 5
	c2 := consonantLetters[w%20]
	w /= 20
	dst = append(dst, ' ', consonantLetters[w/5], vowelLetters[w%5], c2, v2, c3)
	if vowel > 0 {
		dst = append(dst, vowelLetters[vowel-1])
	}
	return dst
}

// word is the one that stands for a head and a syllable, with a vowel more unless that is 0.
func (o *own) word(head, syllable, vowel int) (kvcache.Token, bool) {
	k := uint64(head*vowels*consonants+syllable)*wordStrideInverse%words5 + uint64(vowel)*words5
	return o.words + kvcache.Token(k), k < uint64(o.marks-o.words)
}

// syllableAt is which syllable stands at i, or -1.
func syllableAt(text string, i int) int {
	if i+1 >= len(text) || vowelOf[text[i]] < 0 || consonantOf[text[i+1]] < 0 {
		return none
	}
	return int(vowelOf[text[i]])*consonants + int(consonantOf[text[i+1]])
}

func (o *own) appendEncode(ids []kvcache.Token, piece string) []kvcache.Token {
	if id, ok := o.whole[piece]; ok {
		return append(ids, id)
	}
	return o.encode(ids, piece)
}

func (o *own) encode(ids []kvcache.Token, piece string) []kvcache.Token {
	start, i := len(ids), 0
	if len(piece) > 1 && piece[0] == ' ' && consonantOf[piece[1]] >= 0 {
		c := int(consonantOf[piece[1]])
		id := kvcache.Token(initials + c)
		i = 2
		if s := syllableAt(piece, 2); s >= 0 {
			h := c*vowels*consonants + s
			id = o.heads + kvcache.Token(h)
			i = 4
			if s := syllableAt(piece, 4); s >= 0 {
				if w, ok := o.word(h, s, 0); ok {
					id = w
					i = 6
					// A vowel before a consonant is a syllable sooner than the end of a word.
					if i < len(piece) && vowelOf[piece[i]] >= 0 && syllableAt(piece, i) < 0 {
						if w, ok := o.word(h, s, int(vowelOf[piece[i]])+1); ok {
							id = w
							i = 7
						}
					}
				}
			}
		}
		if ids = append(ids, id); i == len(piece) {
			return ids
		}
	}
	for i < len(piece) {
		if s := syllableAt(piece, i); s >= 0 {
			ids = append(ids, kvcache.Token(syllables+s))
			i += 2
		} else {
			ids = append(ids, kvcache.Token(piece[i]))
			i++
		}
	}
	return ids[:start+o.merges.apply(ids[start:])]
}

// Words are the tokens that a modelled GPU generates with kvferry's own tokenizer: n of them
// from first on. Any of them in any order survive decode and encode.
func (t *Tokenizer) Words() (first, n kvcache.Token) {
	return t.own.words, t.own.marks - t.own.words
}
