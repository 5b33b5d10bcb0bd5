package load_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"kvferry/kvcache"
	"kvferry/load"
)

// pieces is the tokenizer of testdata/datasets, for tests: a byte-level BPE that does not cut
// texts into words first, so that what is decoded and encoded again often has another length.
type pieces struct {
	ids    map[string]kvcache.Token
	bytes  map[kvcache.Token]string // of a token
	merges []merge                  // in the order in which they were learned
	added  []string
	letter [256]string // that stands for a byte
	bos    bool
	known  map[string][]kvcache.Token // of texts that were merged before
}

// A merge is what two tokens become.
type merge struct{ first, second, both kvcache.Token }

func newPieces(tb testing.TB, bos bool) *pieces {
	tb.Helper()
	text, err := os.ReadFile("testdata/datasets/tokenizer.json")
	if err != nil {
		tb.Fatal(err)
	}
	var file struct {
		Added []struct {
			ID      kvcache.Token
			Content string
		} `json:"added_tokens"`
		Model struct {
			Vocab  map[string]kvcache.Token
			Merges [][2]string
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		tb.Fatal(err)
	}
	p := &pieces{ids: file.Model.Vocab, bytes: map[kvcache.Token]string{}, bos: bos, known: map[string][]kvcache.Token{}}
	for _, m := range file.Model.Merges {
		p.merges = append(p.merges, merge{p.ids[m[0]], p.ids[m[1]], p.ids[m[0]+m[1]]})
	}
	// GPT-2's letters for bytes: those that can be printed are themselves.
	of, next := map[rune]byte{}, rune(256)
	for b := range 256 {
		r := rune(b)
		if !(r >= '!' && r <= '~' || r >= '¡' && r <= '¬' || r >= '®' && r <= 'ÿ') {
			r = next
			next++
		}
		of[r], p.letter[b] = byte(b), string(r)
	}
	for letters, id := range p.ids {
		var b []byte
		for _, r := range letters {
			b = append(b, of[r])
		}
		p.bytes[id] = string(b)
	}
	for _, a := range file.Added {
		p.ids[a.Content], p.bytes[a.ID] = a.ID, a.Content
		p.added = append(p.added, a.Content)
	}
	return p
}

func (p *pieces) Encode(text string, special bool) (ids []kvcache.Token) {
	if special && p.bos {
		ids = append(ids, p.ids["<|bos|>"])
	}
	for text != "" {
		end, found := len(text), ""
		for _, a := range p.added {
			if i := strings.Index(text, a); i >= 0 && i < end {
				end, found = i, a
			}
		}
		ids = append(ids, p.merged(text[:end])...)
		if found != "" {
			ids = append(ids, p.ids[found])
		}
		text = text[end+len(found):]
	}
	return ids
}

// merged joins pairs, those that were learned first before all others. No merge makes a pair
// that was learned before it, so once through them is enough.
func (p *pieces) merged(text string) (ids []kvcache.Token) {
	if ids, ok := p.known[text]; ok {
		return ids
	}
	for i := range len(text) {
		ids = append(ids, p.ids[p.letter[text[i]]])
	}
	for _, m := range p.merges {
		joined := ids[:0]
		for i := 0; i < len(ids); i++ {
			id := ids[i]
			if id == m.first && i+1 < len(ids) && ids[i+1] == m.second {
				id = m.both
				i++
			}
			joined = append(joined, id)
		}
		ids = joined
	}
	p.known[text] = ids
	return ids
}

func (p *pieces) Decode(tokens []kvcache.Token, skipSpecial bool) string {
	var b strings.Builder
	for _, id := range tokens {
		if text := p.bytes[id]; !skipSpecial || !slices.Contains(p.added, text) {
			b.WriteString(text)
		}
	}
	return replaced(b.String())
}

// replaced puts a replacement character where a beginning of a character does not go on, as
// Unicode recommends and Rust does; Go puts one for each byte.
func replaced(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && n == 1 {
			// The longest beginning that some text could complete.
			for k := 2; i+k <= len(text) && !utf8.FullRuneInString(text[i:i+k]); k++ {
				n = k
			}
		}
		b.WriteRune(r)
		i += n
	}
	return b.String()
}

func (p *pieces) BOS() string              { return "<|bos|>" }
func (p *pieces) Len() int                 { return 422 }
func (p *pieces) VocabSize() int           { return 420 }
func (p *pieces) Special() []kvcache.Token { return []kvcache.Token{0, 421} }

func (p *pieces) Chat(messages []load.Message, prompt bool) (string, error) {
	text := "<|bos|>"
	for _, m := range messages {
		text += fmt.Sprintf("<|im_start|>%s\n%s<|im_end|>\n", m.Role, m.Content)
	}
	if prompt {
		text += "<|im_start|>assistant\n"
	}
	return text, nil
}
