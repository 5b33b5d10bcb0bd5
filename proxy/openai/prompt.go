package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// A prompt is one of a request's.
type prompt struct {
	field string // for errors: prompt, prompt[2]
	ids   []uint32
	text  string // as it came, if it was text and is to be kept
}

// ParsePrompts takes what OpenAI's prompt may be: a string, a list of token ids, or a list of
// these. listed is whether it was a list of prompts, if only of one.
func ParsePrompts(field string, raw json.RawMessage, tok Tokenizer) (prompts [][]uint32, listed bool, err error) {
	all, listed, err := parsePrompts(field, raw, tok, false)
	for _, p := range all {
		prompts = append(prompts, p.ids)
	}
	return prompts, listed, err
}

// parsePrompts is ParsePrompts; keep is whether texts are wanted too.
func parsePrompts(field string, raw json.RawMessage, tok Tokenizer, keep bool) (prompts []prompt, listed bool, err error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, false, BadField(field, "missing: want a string or a list of token ids")
	}
	if raw[0] != '[' {
		p, err := parsePrompt(field, raw, tok, keep)
		return []prompt{p}, false, err
	}
	if ids, ok := parseTokenIDs(raw); ok {
		out, err := checkTokenIDs(field, ids, tok)
		return []prompt{{field: field, ids: out}}, false, err
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		return nil, false, BadField(field, "%v", err)
	}
	if len(items) > MaxChoices {
		return nil, true, BadField(field, "%d prompts: want at most %d in a request", len(items), MaxChoices)
	}
	first := items[0] // an empty list is a list of token ids
	if first[0] != '"' && first[0] != '[' {
		// Token ids, but for one of them: it is named.
		for i, item := range items {
			if c := item[0]; c != '-' && (c < '0' || c > '9') || bytes.ContainsAny(item, ".eE") || len(item) > 9 {
				return nil, false, BadField(fmt.Sprintf("%s[%d]", field, i), "%s: want a token id, 0 to %d", Abbreviate(string(item)), tok.Vocab()-1)
			}
		}
	}
	prompts = make([]prompt, len(items))
	for i, item := range items {
		if prompts[i], err = parsePrompt(fmt.Sprintf("%s[%d]", field, i), item, tok, keep); err != nil {
			return nil, true, err
		}
	}
	return prompts, true, nil
}

// parsePrompt takes one prompt, a string or a list of token ids.
func parsePrompt(field string, raw json.RawMessage, tok Tokenizer, keep bool) (prompt, error) {
	p := prompt{field: field}
	switch raw[0] {
	case '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return p, BadField(field, "%v", err)
		}
		if p.ids = tok.Encode(s); len(p.ids) == 0 {
			return p, BadField(field, "empty: want at least one token")
		}
		if keep {
			p.text = s
		}
		return p, nil
	case '[':
		ids, ok := parseTokenIDs(raw)
		if !ok {
			return p, BadField(field, "want a list of token ids")
		}
		var err error
		p.ids, err = checkTokenIDs(field, ids, tok)
		return p, err
	}
	return p, BadField(field, "%s: want a string or a list of token ids", Abbreviate(string(raw)))
}

// parseTokenIDs reads a JSON list of integers, without the reflection that
// would take a millisecond over 10,000 of them; false if it is anything else. raw is valid
// JSON, from bracket to bracket. A number of more than ten digits is something else too, so
// that v cannot overflow.
func parseTokenIDs(raw []byte) ([]int64, bool) {
	raw = raw[1 : len(raw)-1]
	ids := make([]int64, 0, len(raw)/6+1)
	for i, n := 0, len(raw); ; i++ {
		for i < n && isJSONSpace(raw[i]) {
			i++
		}
		if i == n {
			return ids, len(ids) == 0 // JSON has no comma before the bracket
		}
		neg := raw[i] == '-'
		if neg {
			i++
		}
		start, v := i, int64(0)
		for i < n && '0' <= raw[i] && raw[i] <= '9' && i-start < 10 {
			v = v*10 + int64(raw[i]-'0')
			i++
		}
		if i == start {
			return nil, false
		}
		if neg {
			v = -v
		}
		ids = append(ids, v)
		for i < n && isJSONSpace(raw[i]) {
			i++
		}
		if i == n {
			return ids, true
		}
		if raw[i] != ',' {
			return nil, false
		}
	}
}

func isJSONSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// checkTokenIDs refuses ids that the vocabulary does not have, by their place in the list.
func checkTokenIDs(field string, ids []int64, tok Tokenizer) ([]uint32, error) {
	if len(ids) == 0 {
		return nil, BadField(field, "empty: want at least one token")
	}
	out := make([]uint32, len(ids))
	for i, id := range ids {
		if id < 0 || id >= int64(tok.Vocab()) {
			return nil, BadField(fmt.Sprintf("%s[%d]", field, i), "%d: want a token id, 0 to %d", id, tok.Vocab()-1)
		}
		out[i] = uint32(id)
	}
	return out, nil
}

// parseMessages renders a conversation. Content is a string or, as vLLM's
// client sends it, a list of text parts.
func parseMessages(messages []messageBody, tok Tokenizer) ([]uint32, error) {
	if len(messages) == 0 {
		return nil, BadField("messages", "missing or empty: want at least one message")
	}
	chat := make([]ChatMessage, len(messages))
	for i, m := range messages {
		field := fmt.Sprintf("messages[%d]", i)
		if m.Role == "" {
			return nil, BadField(field+".role", "missing: want system, user or assistant")
		}
		chat[i].Role = m.Role
		content, err := parseContent(field+".content", m.Content)
		if err != nil {
			return nil, err
		}
		chat[i].Content = content
	}
	ids, err := tok.EncodeChat(chat)
	if err != nil {
		return nil, BadField("messages", "%v", err)
	}
	return ids, nil
}

// parseContent is the text of a message. Parts of a list are joined without anything between
// them.
func parseContent(field string, raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil // an assistant message that only called tools
	}
	if raw[0] == '"' {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return "", BadField(field, "%v", err)
		}
		return s, nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", BadField(field, "%s: want a string or a list of {\"type\":\"text\",\"text\":...}", Abbreviate(string(raw)))
	}
	var text strings.Builder
	for j, p := range parts {
		if p.Type != "text" {
			return "", BadField(fmt.Sprintf("%s[%d].type", field, j), "%q: only text parts are served", Abbreviate(p.Type))
		}
		text.WriteString(p.Text)
	}
	return text.String(), nil
}
