package openai

import "encoding/json"

// ParseTokenize reads the body of vLLM's POST /tokenize, a prompt or a conversation, and
// returns its token ids. Every error is an *Error that names the field and what would do.
func ParseTokenize(body []byte, model Model) ([]uint32, error) {
	var b struct {
		Model    *string         `json:"model"`
		Prompt   json.RawMessage `json:"prompt"`
		Messages []messageBody   `json:"messages"`
		Special  *bool           `json:"add_special_tokens"` // nil: true
	}
	if err := ParseJSON(body, &b); err != nil {
		return nil, err
	}
	if err := model.served(b.Model); err != nil {
		return nil, err
	}
	switch {
	case b.Messages != nil:
		return parseMessages(b.Messages, model.Tokenizer())
	case string(b.Prompt) == `""`:
		return nil, nil // no tokens: only a generation needs one
	}
	return onePrompt("prompt", b.Prompt, model.Tokenizer().special(b.Special))
}

// ParseDetokenize reads the body of vLLM's POST /detokenize: token ids.
func ParseDetokenize(body []byte, model Model) ([]uint32, error) {
	var b struct {
		Model  *string         `json:"model"`
		Tokens json.RawMessage `json:"tokens"`
	}
	if err := ParseJSON(body, &b); err != nil {
		return nil, err
	}
	if err := model.served(b.Model); err != nil {
		return nil, err
	}
	switch {
	case string(b.Tokens) == "[]":
		return nil, nil
	case len(b.Tokens) == 0 || b.Tokens[0] != '[':
		return nil, BadField("tokens", "want a list of token ids")
	}
	return onePrompt("tokens", b.Tokens, model.Tokenizer())
}

// served refuses a request for another model.
func (m Model) served(name *string) error {
	_, _, err := m.resolve("model", name)
	return err
}

// onePrompt takes a prompt, or a list of one.
func onePrompt(field string, raw json.RawMessage, tok Tokenizer) ([]uint32, error) {
	prompts, _, err := ParsePrompts(field, raw, tok)
	switch {
	case err != nil:
		return nil, err
	case len(prompts) > 1:
		return nil, BadField(field, "a list of %d prompts: one is taken at a time; send %d requests", len(prompts), len(prompts))
	}
	return prompts[0], nil
}
