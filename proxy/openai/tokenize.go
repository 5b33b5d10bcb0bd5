package openai

import "encoding/json"

// ParseTokenize reads the body of vLLM's POST /tokenize, a prompt or a conversation, and
// returns its token ids. Every error is an *Error that names the field and what would do.
func ParseTokenize(body []byte, model Model) ([]uint32, error) {
	var b struct {
		Model    *string         `json:"model"`
		Prompt   json.RawMessage `json:"prompt"`
		Messages []messageBody   `json:"messages"`
	}
	if err := parseJSON(body, &b); err != nil {
		return nil, err
	}
	if err := model.check(b.Model); err != nil {
		return nil, err
	}
	switch {
	case b.Messages != nil:
		return parseMessages(b.Messages, model.Tokenizer())
	case string(b.Prompt) == `""`:
		return nil, nil // no tokens: only a generation needs one
	}
	return parsePrompt("prompt", b.Prompt, model.Tokenizer())
}

// ParseDetokenize reads the body of vLLM's POST /detokenize: token ids.
func ParseDetokenize(body []byte, model Model) ([]uint32, error) {
	var b struct {
		Model  *string         `json:"model"`
		Tokens json.RawMessage `json:"tokens"`
	}
	if err := parseJSON(body, &b); err != nil {
		return nil, err
	}
	if err := model.check(b.Model); err != nil {
		return nil, err
	}
	switch {
	case string(b.Tokens) == "[]":
		return nil, nil
	case len(b.Tokens) == 0 || b.Tokens[0] != '[':
		return nil, BadField("tokens", "want a list of token ids")
	}
	return parsePrompt("tokens", b.Tokens, model.Tokenizer())
}
