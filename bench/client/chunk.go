package client

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"

	"kvferry/kvcache"
)

// A chunk is the part of an answer's event that is read: of completions, chats and SGLang's
// /generate, streamed or whole. Texts are kept as they came, as JSON: a server may cut its
// text inside a rune, and package encoding/json would put U+FFFD for both halves.
type chunk struct {
	Choices   []choice        `json:"choices"`
	Usage     *usage          `json:"usage"`
	Breakdown *Breakdown      `json:"breakdown"`
	Error     json.RawMessage `json:"error"`
	Timings   *llamaTimings   `json:"timings"`

	// An error as vLLM before 0.9 has it, without an envelope.
	Object  string `json:"object"`
	Message string `json:"message"`

	// SGLang's /generate. The text is all of it so far.
	Text      json.RawMessage `json:"text"`
	OutputIDs []kvcache.Token `json:"output_ids"`
	Meta      *meta           `json:"meta_info"`
}

type choice struct {
	Index        int             `json:"index"`
	Text         json.RawMessage `json:"text"`
	Delta        *delta          `json:"delta"`
	Message      *delta          `json:"message"`
	FinishReason *string         `json:"finish_reason"`
	TokenIDs     []kvcache.Token `json:"token_ids"`
}

// A delta is what a chat's message has, or a part of it. What models think comes under
// either name.
type delta struct {
	Content          json.RawMessage `json:"content"`
	ReasoningContent json.RawMessage `json:"reasoning_content"`
	Reasoning        json.RawMessage `json:"reasoning"`
	ToolCalls        json.RawMessage `json:"tool_calls"`
	FunctionCall     json.RawMessage `json:"function_call"`
}

// calls reports whether a choice has a part of a call of a tool.
func (c choice) calls() bool {
	for _, d := range []*delta{c.Delta, c.Message} {
		if d != nil && (given(d.ToolCalls) || given(d.FunctionCall)) {
			return true
		}
	}
	return false
}

// given reports whether a field is there and neither null nor an empty list.
func given(field json.RawMessage) bool {
	return len(field) > 0 && string(field) != "null" && string(field) != "[]"
}

type usage struct {
	PromptTokens     tokenCount `json:"prompt_tokens"`
	CompletionTokens tokenCount `json:"completion_tokens"`
	CachedTokens     tokenCount `json:"cached_tokens"`
	Details          *struct {
		Cached tokenCount `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// counts are the usage with what a server says of its prefix cache.
func (u *usage) counts() *Usage {
	c := Usage{PromptTokens: int(u.PromptTokens), CompletionTokens: int(u.CompletionTokens), CachedTokens: int(u.CachedTokens)}
	if u.Details != nil {
		c.CachedTokens = int(u.Details.Cached)
	}
	return &c
}

// A meta is SGLang's account of a request, so far.
type meta struct {
	PromptTokens     tokenCount      `json:"prompt_tokens"`
	CompletionTokens tokenCount      `json:"completion_tokens"`
	CachedTokens     tokenCount      `json:"cached_tokens"`
	E2ELatency       float64         `json:"e2e_latency"`   // s
	FinishReason     json.RawMessage `json:"finish_reason"` // null, {"type":"length",...} or "length"
}

// reason is why the model ended, "" while it has not.
func (m *meta) reason() string {
	var object struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	var text string
	if json.Unmarshal(m.FinishReason, &object) == nil {
		return object.Type
	}
	_ = json.Unmarshal(m.FinishReason, &text) // whatever else it is, is no reason
	return text
}

// appendTo adds what a choice brought of the text; so many bytes of it, the first ones, are of the
// model's reasoning.
func (c *choice) appendTo(text []byte) (all []byte, thought int) {
	text = appendUnquoted(text, c.Text)
	for _, d := range []*delta{c.Delta, c.Message} {
		if d != nil {
			before := len(text)
			if text = appendUnquoted(text, d.ReasoningContent); len(text) == before { // some say the same under both names
				text = appendUnquoted(text, d.Reasoning)
			}
			thought += len(text) - before
			text = appendUnquoted(text, d.Content)
		}
	}
	return text, thought
}

// mostSeconds bounds the times that a server says of a request: thirty years.
const mostSeconds = 1e9

// impossible returns an error for a number in the chunk that no server can mean: places and times are
// used as they are, and figures are sums of them. Counts of tokens are checked with the whole answer.
func (c *chunk) impossible() error {
	for i := range c.Choices {
		if n := c.Choices[i].Index; n < 0 || n >= maxAnswers {
			return fmt.Errorf("choices: index is %d, want 0 to %d", n, maxAnswers-1)
		}
	}
	if b := c.Breakdown; b != nil && (b.Retries < 0 || b.Retries > 1e6) {
		return fmt.Errorf("breakdown: retries is %d, want 0 to 1000000", b.Retries)
	}
	if t := c.timings(); t != nil {
		for _, v := range []float64{t.E2E, t.Prefill, t.Decode} {
			if v < 0 || v > mostSeconds {
				return fmt.Errorf("a time of %g s in the server's account of the request, want 0 to %g", v, mostSeconds)
			}
		}
	}
	return nil
}

// fault is the error that a chunk says, "" for none.
func (c *chunk) fault() string {
	switch {
	case c.Object == "error":
		return c.Message
	case len(c.Error) == 0 || string(c.Error) == "null":
		return ""
	}
	var object apiError
	if json.Unmarshal(c.Error, &object) == nil && object.Message != "" {
		return object.Message
	}
	var text string
	if json.Unmarshal(c.Error, &text) == nil {
		return text
	}
	return string(c.Error)
}

// appendUnquoted adds a JSON string's value to b; null and what is no string add nothing.
// Bytes that are no UTF-8 stay as they are.
func appendUnquoted(b []byte, raw json.RawMessage) []byte {
	if len(raw) < 2 || raw[0] != '"' {
		return b
	}
	raw = raw[1 : len(raw)-1]
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(b, raw...)
		}
		b = append(b, raw[:i]...)
		raw = raw[i+1:] // the parser has seen that something follows
		c := raw[0]
		raw = raw[1:]
		switch c {
		case 'n':
			b = append(b, '\n')
		case 't':
			b = append(b, '\t')
		case 'r':
			b = append(b, '\r')
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'u':
			r := hex4(raw)
			raw = raw[4:]
			if utf16.IsSurrogate(r) && len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
				if both := utf16.DecodeRune(r, hex4(raw[2:])); both != utf8.RuneError {
					r, raw = both, raw[6:]
				}
			}
			b = utf8.AppendRune(b, r)
		default: // " \ /
			b = append(b, c)
		}
	}
}

// hex4 reads four hexadecimal digits, which the parser has seen.
func hex4(b []byte) (r rune) {
	for _, c := range b[:4] {
		r <<= 4
		switch {
		case c <= '9':
			r |= rune(c - '0')
		default:
			r |= rune(c|0x20-'a') + 10
		}
	}
	return r
}

// apiError is OpenAI's error object.
type apiError struct {
	Message string `json:"message"`
	Type    string `json:"type"`
}
