package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// Bounds on stop strings, which are looked for at every token.
const (
	maxStops     = 64
	maxStopBytes = 1 << 10 // of one
)

// A Stop says what ends an answer besides its length and the model.
type Stop struct {
	Strings []string // none of them empty
	Tokens  []uint32
	Include bool // what stopped it stays in its text; it always counts as generated
}

// ParseStop reads a field of stop strings, a string or a list, and one of token ids. It
// returns nil where both name nothing. vocab bounds ids.
func ParseStop(field string, raw json.RawMessage, idField string, ids []int64, include bool, vocab uint32) (*Stop, error) {
	s := &Stop{Include: include}
	switch {
	case len(raw) == 0 || string(raw) == "null":
	case raw[0] == '"':
		s.Strings = make([]string, 1)
		if err := json.Unmarshal(raw, &s.Strings[0]); err != nil {
			return nil, BadField(field, "%v", err)
		}
	default:
		if err := json.Unmarshal(raw, &s.Strings); err != nil {
			return nil, BadField(field, "%s: want a string or a list of strings", Abbreviate(string(raw)))
		}
	}
	if len(s.Strings)+len(ids) > maxStops {
		return nil, BadField(field, "%d strings and ids: want at most %d", len(s.Strings)+len(ids), maxStops)
	}
	for i, text := range s.Strings {
		switch {
		case text == "":
			return nil, BadField(field, "[%d] is empty: want a text, or leave it out", i)
		case len(text) > maxStopBytes:
			return nil, BadField(field, "[%d] has %d bytes: want at most %d", i, len(text), maxStopBytes)
		}
	}
	for i, id := range ids {
		if id < 0 || id >= int64(vocab) {
			return nil, BadField(fmt.Sprintf("%s[%d]", idField, i), "%d: want a token id, 0 to %d", id, vocab-1)
		}
		s.Tokens = append(s.Tokens, uint32(id))
	}
	if len(s.Strings)+len(s.Tokens) == 0 {
		return nil, nil
	}
	return s, nil
}

// A Cut follows the text of one answer and ends it where a Stop says. Text that may yet turn
// out to be the beginning of a stop string is held back, and no more than that: a client
// waits for nothing else. It is for one goroutine.
//
// Invariant: text[:released] has gone out or is about to; no stop string ends in text.
type Cut struct {
	tok      Tokenizer
	stop     *Stop
	min      int    // tokens before which nothing stops it
	tokens   int    // so far
	text     []byte // of all of them, unescaped
	released int    // bytes of text that may go out
	ends     []int  // released after each token of the last Add
	begun    int    // released before them
}

// NewCut returns the cut of an answer that has min tokens at least.
func NewCut(tok Tokenizer, stop *Stop, min uint32) *Cut {
	return &Cut{tok: tok, stop: stop, min: int(min)}
}

// Add takes the next tokens; last is whether none can follow, so that nothing need be held
// back. It returns how many of them the answer has: all, or up to the one that stops it, and
// then by what, as JSON.
func (c *Cut) Add(ids []uint32, last bool) (n int, matched string, stopped bool) {
	c.begun, c.ends = c.released, c.ends[:0]
	for i, id := range ids {
		before := len(c.text)
		c.tokens++
		c.text = c.tok.AppendToken(c.text, id)
		if c.tokens > c.min {
			if end, by, ok := c.match(before, id); ok {
				c.text = c.text[:end]
				c.released = end
				c.ends = append(c.ends, end)
				return i + 1, by, true
			}
		}
		c.released = max(c.released, len(c.text)-c.held())
		if last && i == len(ids)-1 {
			c.released = len(c.text)
		}
		c.ends = append(c.ends, c.released)
	}
	if last && len(ids) == 0 {
		c.released = len(c.text)
	}
	return len(ids), "", false
}

// match looks for what stops the answer with the token id, whose text begins at before. end is
// where the answer's text ends then. Of several stop strings the one that begins first counts.
func (c *Cut) match(before int, id uint32) (end int, by string, ok bool) {
	if slices.Contains(c.stop.Tokens, id) {
		end = before
		if c.stop.Include {
			end = len(c.text)
		}
		return max(end, c.released), strconv.FormatUint(uint64(id), 10), true
	}
	first := len(c.text)
	for _, s := range c.stop.Strings {
		from := max(before-len(s)+1, 0)
		if i := bytes.Index(c.text[from:], []byte(s)); i >= 0 && from+i < first {
			first = from + i
			end, by, ok = first, s, true
			if c.stop.Include {
				end += len(s)
			}
		}
	}
	if !ok {
		return 0, "", false
	}
	return max(end, c.released), string(AppendString(nil, by)), true
}

// held is how many bytes at the end of the text may be the beginning of a stop string.
func (c *Cut) held() (n int) {
	for _, s := range c.stop.Strings {
		for k := min(len(s)-1, len(c.text)-c.released); k > n; k-- {
			if s[:k] == string(c.text[len(c.text)-k:]) {
				n = k
			}
		}
	}
	return n
}

// piece is the text that goes out with the i-th token of the last Add.
func (c *Cut) piece(i int) []byte {
	from := c.begun
	if i > 0 {
		from = c.ends[i-1]
	}
	return c.text[from:c.ends[i]]
}

// rest is what goes out where the last Add had no token.
func (c *Cut) rest() []byte { return c.text[c.begun:c.released] }

// Text is all that has gone out: what the answer is, once it has ended.
func (c *Cut) Text() []byte { return c.text[:c.released] }
