package load

import (
	"testing"

	"kvferry/kvcache"
)

// miscounts is a tokenizer that never comes back with as many tokens as it was given, as far
// as that is below or above wanted.
type miscounts struct {
	Tokenizer
	by, encoded int
}

func (m *miscounts) Decode(ids []kvcache.Token, _ bool) string { return string(make([]byte, len(ids))) }

func (m *miscounts) Encode(text string, _ bool) []kvcache.Token {
	m.encoded++
	return make([]kvcache.Token, max(len(text)+m.by, 0))
}

// TestExactly: a text that does not get the wanted length is tried ten times more, and then
// left as it is. The counts are those of vLLM 0.32's gen_prompt_decode_to_target_len with the
// same tokenizer.
func TestExactly(t *testing.T) {
	for _, c := range []struct{ by, encoded, drawn, length int }{
		{0, 1, 0, 20},
		{-1, 11, 10, 19},
		{+3, 11, 0, 23},
	} {
		m, drawn := &miscounts{by: c.by}, 0
		text, ids := exactly(m, make([]kvcache.Token, 20), 20, func() kvcache.Token { drawn++; return 1 })
		if m.encoded != c.encoded || drawn != c.drawn || len(ids) != c.length || len(text) != 20 {
			t.Errorf("%+d: encoded %d times, %d drawn, %d tokens of %d bytes; want %+v and 20 bytes", c.by, m.encoded, drawn, len(ids), len(text), c)
		}
	}
}
