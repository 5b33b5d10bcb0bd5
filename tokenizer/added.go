package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"kvferry/kvcache"
)

// addedToken is an element of the file's added_tokens.
type addedToken struct {
	ID      kvcache.Token `json:"id"`
	Content string        `json:"content"`
	// SingleWord: not inside of a word. LStrip and RStrip: white space before and after it
	// belongs to it.
	SingleWord bool `json:"single_word"`
	LStrip     bool `json:"lstrip"`
	RStrip     bool `json:"rstrip"`
	Normalized bool `json:"normalized"` // looked for in the normalised text
	Special    bool `json:"special"`
}

// A cutter finds added tokens in a text, the longest of those that begin first, by a trie
// over their bytes. Nil finds none.
type cutter struct {
	tokens []addedToken
	nodes  []node
	begins [256]bool // bytes with which some token begins: most positions are passed over
}

// node is a state of the trie: what follows on which byte, and the token that ends here.
type node struct {
	next  []edge
	token int // in tokens; -1 for none
}

type edge struct {
	on byte
	to int
}

// newCutter makes a cutter; content is what to look for, for each of tokens, never empty.
func newCutter(tokens []addedToken, content []string) *cutter {
	if len(tokens) == 0 {
		return nil
	}
	c := &cutter{tokens: tokens, nodes: []node{{token: -1}}}
	for i, text := range content {
		c.begins[text[0]] = true
		at := 0
		for j := range len(text) {
			to := c.step(at, text[j])
			if to < 0 {
				to = len(c.nodes)
				c.nodes = append(c.nodes, node{token: -1})
				c.nodes[at].next = append(c.nodes[at].next, edge{text[j], to})
			}
			at = to
		}
		c.nodes[at].token = i
	}
	return c
}

func (c *cutter) step(at int, b byte) int {
	for _, e := range c.nodes[at].next {
		if e.on == b {
			return e.to
		}
	}
	return -1
}

// longest is the longest token that begins at text's first byte, and its length in bytes.
func (c *cutter) longest(text string) (token, n int) {
	token = -1
	for at, i := 0, 0; i < len(text); {
		if at = c.step(at, text[i]); at < 0 {
			break
		}
		i++
		if t := c.nodes[at].token; t >= 0 {
			token, n = t, i
		}
	}
	return token, n
}

// cut emits what stands between tokens, where there is something, and the tokens.
func (c *cutter) cut(text string, first bool, emit func(text string, first bool), add func(kvcache.Token)) {
	if c == nil {
		if text != "" {
			emit(text, first)
		}
		return
	}
	done := 0 // text up to here is emitted
	for i := 0; i < len(text); {
		if !c.begins[text[i]] {
			i++
			continue
		}
		which, n := c.longest(text[i:])
		if which < 0 {
			i++
			continue
		}
		t, start, end := &c.tokens[which], i, i+n
		i = end
		if t.SingleWord && (endsWithWord(text[:start]) || beginsWithWord(text[end:])) {
			continue
		}
		if t.LStrip {
			start = max(done, len(strings.TrimRightFunc(text[:start], unicode.IsSpace)))
		}
		if t.RStrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
		}
		if start = max(start, done); start > done {
			emit(text[done:start], first && done == 0)
		}
		add(t.ID)
		done = max(end, done)
	}
	if done < len(text) {
		emit(text[done:], first && done == 0)
	}
}

func beginsWithWord(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && isWord(r)
}

func endsWithWord(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && isWord(r)
}
