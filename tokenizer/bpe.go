package tokenizer

import (
	"container/heap"
	"fmt"
	"math/bits"
	"sync/atomic"
	"unicode/utf8"

	"kvferry/kvcache"
)

// bpe is byte-pair encoding (Sennrich et al. 2016): a piece begins as single characters, or
// bytes; the pair of neighbours that stands first in the list of merges becomes one token,
// the leftmost if there are several, and so on until no pair is in the list.
type bpe struct {
	vocab  map[string]kvcache.Token // by text: bytes if byteLevel
	merges merges

	byteLevel bool
	bytes     [256]int64      // the token of a byte, or -1: what a piece begins as
	unknown   int64           // the token of what has none, or -1: it is left out
	fuse      bool            // unknowns in a row are one
	fallback  *[256]int64     // tokens, or -1, of the bytes of characters that have none
	ignore    bool            // a piece that is a token is that, whatever the merges say
	whole     []atomic.Uint64 // a bit for each token that its own text encodes to
}

// none is no token, in an int64.
const none = -1

// shortPiece is up to how many symbols the list is gone through for each merge; with more, a
// heap is faster. Words of Latin scripts have less; a sentence of Chinese may have more.
const shortPiece = 48

func (m *bpe) appendEncode(ids []kvcache.Token, piece string) []kvcache.Token {
	id, known := m.vocab[piece]
	if known && (m.ignore || m.whole[id/64].Load()>>(id%64)&1 == 1) {
		return append(ids, id)
	}
	start := len(ids)
	ids = m.symbols(ids, piece)
	ids = ids[:start+m.merges.apply(ids[start:])]
	if known && len(ids) == start+1 && ids[start] == id {
		m.whole[id/64].Or(1 << (id % 64)) // the next time it is found at once
	}
	return ids
}

// symbols appends what a piece begins as.
func (m *bpe) symbols(ids []kvcache.Token, piece string) []kvcache.Token {
	if m.byteLevel {
		for i := range len(piece) {
			if id := m.bytes[piece[i]]; id >= 0 {
				ids = append(ids, kvcache.Token(id))
			} else if m.unknown >= 0 {
				ids = append(ids, kvcache.Token(m.unknown))
			}
		}
		return ids
	}
	fused := false // the last of ids is an unknown that takes the next one in
	for i := 0; i < len(piece); {
		_, n := utf8.DecodeRuneInString(piece[i:])
		char := piece[i : i+n]
		i += n
		id, ok := m.vocab[char]
		switch {
		case ok:
			ids, fused = append(ids, id), false
		case m.fallsBack(char):
			for j := range len(char) {
				ids = append(ids, kvcache.Token(m.fallback[char[j]]))
			}
			fused = false
		case m.unknown >= 0 && !(m.fuse && fused):
			ids, fused = append(ids, kvcache.Token(m.unknown)), true
		}
	}
	return ids
}

// fallsBack reports whether there is a token for each byte of a character.
func (m *bpe) fallsBack(char string) bool {
	for i := range len(char) {
		if m.fallback == nil || m.fallback[char[i]] < 0 {
			return false
		}
	}
	return true
}

// apply merges in place what a piece begins as, and returns how many tokens are left.
func (t *merges) apply(ids []kvcache.Token) int {
	if len(ids) <= shortPiece {
		return t.applyShort(ids)
	}
	return t.applyLong(ids)
}

// applyShort looks at all pairs for each merge.
func (t *merges) applyShort(ids []kvcache.Token) int {
	var ranks [shortPiece]merge // of ids[i] and ids[i+1]
	n := len(ids)
	for i := 0; i+1 < n; i++ {
		ranks[i] = t.find(ids[i], ids[i+1])
	}
	for {
		at, best := none, noMerge
		for i := 0; i+1 < n; i++ {
			if ranks[i] < best {
				at, best = i, ranks[i]
			}
		}
		if at == none {
			return n
		}
		ids[at] = best.token()
		copy(ids[at+1:n-1], ids[at+2:n])
		copy(ranks[at+1:n-1], ranks[at+2:n])
		n--
		if at > 0 {
			ranks[at-1] = t.find(ids[at-1], ids[at])
		}
		if at+1 < n {
			ranks[at] = t.find(ids[at], ids[at+1])
		}
	}
}

// applyLong takes n log n steps: the pairs wait in a heap, the tokens are a list.
func (t *merges) applyLong(ids []kvcache.Token) int {
	n := len(ids)
	prev, next := make([]int, n), make([]int, n)
	pairs := make(pairHeap, 0, n)
	for i := range n {
		prev[i], next[i] = i-1, i+1
		if i+1 < n {
			if r := t.find(ids[i], ids[i+1]); r != noMerge {
				pairs = append(pairs, pair{r, i, ids[i], ids[i+1]})
			}
		}
	}
	heap.Init(&pairs)
	push := func(i, j int) {
		if r := t.find(ids[i], ids[j]); r != noMerge {
			heap.Push(&pairs, pair{r, i, ids[i], ids[j]})
		}
	}
	const gone = -2 // in next: merged into the one before
	for len(pairs) > 0 {
		p := heap.Pop(&pairs).(pair)
		i := p.at
		if next[i] == gone || next[i] == n || ids[i] != p.left || ids[next[i]] != p.right {
			continue // one of the two has been merged since
		}
		j := next[i]
		ids[i] = p.merge.token()
		next[i], next[j] = next[j], gone
		if next[i] < n {
			prev[next[i]] = i
			push(i, next[i])
		}
		if prev[i] >= 0 {
			push(prev[i], i)
		}
	}
	left := 0
	for i := 0; i < n; i = next[i] {
		ids[left] = ids[i]
		left++
	}
	return left
}

// A pair is two neighbours that may be merged.
type pair struct {
	merge       merge
	at          int // where the left one stands
	left, right kvcache.Token
}

type pairHeap []pair

func (h pairHeap) Len() int { return len(h) }
func (h pairHeap) Less(i, j int) bool {
	return h[i].merge < h[j].merge || h[i].merge == h[j].merge && h[i].at < h[j].at
}
func (h pairHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *pairHeap) Push(x any)   { *h = append(*h, x.(pair)) }
func (h *pairHeap) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	*h = (*h)[:last]
	return p
}

// A merge is its place in the list, the lower the sooner, in the upper 32 bits, and the
// token that it makes in the lower.
type merge uint64

const noMerge merge = 1<<64 - 1

func (m merge) token() kvcache.Token { return kvcache.Token(m) }

// merges is a hash table with open addressing: most of the time of encoding is spent in it,
// and Go's map takes twice as long.
type merges struct {
	slots []struct {
		pair  uint64 // left<<32 | right; the empty slot has noPair
		merge merge
	}
	shift int
}

const noPair = 1<<64 - 1

func newMerges(n int) merges {
	size := 1 << bits.Len(uint(n+n/2)) // at most two thirds full
	t := merges{shift: 64 - bits.TrailingZeros(uint(size))}
	t.slots = make([]struct {
		pair  uint64
		merge merge
	}, size)
	for i := range t.slots {
		t.slots[i].pair = noPair
	}
	return t
}

func (t *merges) slot(pair uint64) int {
	i := int(pair * 0x9e3779b97f4a7c15 >> t.shift) // Fibonacci hashing (Knuth 6.4)
	for t.slots[i].pair != pair && t.slots[i].pair != noPair {
		i = (i + 1) & (len(t.slots) - 1)
	}
	return i
}

// set adds a merge; of two of the same pair the later one counts.
func (t *merges) set(left, right kvcache.Token, m merge) {
	pair := uint64(left)<<32 | uint64(right)
	s := &t.slots[t.slot(pair)]
	s.pair, s.merge = pair, m
}

func (t *merges) find(left, right kvcache.Token) merge {
	pair := uint64(left)<<32 | uint64(right)
	if s := &t.slots[t.slot(pair)]; s.pair == pair {
		return s.merge
	}
	return noMerge
}

// newBPE makes the model of a file's vocabulary and merges, which are in the order of their
// ranks.
func newBPE(vocab map[string]kvcache.Token, pairs [][2]string, byteLevel bool) (*bpe, error) {
	m := &bpe{merges: newMerges(len(pairs)), byteLevel: byteLevel, unknown: none}
	for rank, p := range pairs {
		left, ok := vocab[p[0]]
		if !ok {
			return nil, fmt.Errorf("model.merges[%d]: %q is not in model.vocab", rank, p[0])
		}
		right, ok := vocab[p[1]]
		if !ok {
			return nil, fmt.Errorf("model.merges[%d]: %q is not in model.vocab", rank, p[1])
		}
		both, ok := vocab[p[0]+p[1]]
		if !ok {
			return nil, fmt.Errorf("model.merges[%d]: %q, what it makes of %q and %q, is not in model.vocab", rank, p[0]+p[1], p[0], p[1])
		}
		m.merges.set(left, right, merge(rank)<<32|merge(both))
	}
	top := kvcache.Token(0)
	m.vocab = vocab
	if byteLevel {
		m.vocab = make(map[string]kvcache.Token, len(vocab))
	}
	for text, id := range vocab {
		top = max(top, id)
		if byteLevel {
			if b, ok := appendBytes(nil, text); ok {
				m.vocab[string(b)] = id
			}
		}
	}
	m.whole = make([]atomic.Uint64, top/64+1)
	for b := range m.bytes {
		m.bytes[b] = none
		if id, ok := m.vocab[string([]byte{byte(b)})]; ok {
			m.bytes[b] = int64(id)
		}
	}
	return m, nil
}

// alphabet is GPT-2's way to write bytes as characters that can be seen: the printable ones
// of Latin-1 stand for themselves, U+0100 and on for the other 68, in their order.
// alphabetBytes is the way back; -1 is no byte.
var alphabet, alphabetBytes = func() (chars [256]rune, back [0x144]int16) {
	for i := range back {
		back[i] = none
	}
	extra := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if !('!' <= r && r <= '~' || 0xa1 <= r && r <= 0xac || 0xae <= r && r <= 0xff) {
			r = extra
			extra++
		}
		chars[b], back[r] = r, int16(b)
	}
	return chars, back
}()

// appendAlphabet writes bytes in the alphabet.
func appendAlphabet(dst []byte, text string) []byte {
	for i := range len(text) {
		dst = utf8.AppendRune(dst, alphabet[text[i]])
	}
	return dst
}

// appendBytes appends the bytes that a token stands for, and reports whether each character
// of it stands for one; if not it appends nothing.
func appendBytes(dst []byte, token string) ([]byte, bool) {
	before := len(dst)
	for _, r := range token {
		if int(r) >= len(alphabetBytes) || alphabetBytes[r] < 0 {
			return dst[:before], false
		}
		dst = append(dst, byte(alphabetBytes[r]))
	}
	return dst, true
}

// wordLevel is the model in which each piece is a token, or unknown.
type wordLevel struct {
	vocab   map[string]kvcache.Token
	unknown kvcache.Token
}

func (m *wordLevel) appendEncode(ids []kvcache.Token, piece string) []kvcache.Token {
	if id, ok := m.vocab[piece]; ok {
		return append(ids, id)
	}
	return append(ids, m.unknown)
}
