// Package openai is the wire format that clients of OpenAI's HTTP API, and of vLLM's beside
// it, rely on: requests are checked field by field, answers are rendered token by token,
// errors have OpenAI's form, and texts become token ids. It knows no nodes and no clock.
//
// Token ids are in [0, Vocab) of a Model; lengths are tokens. Slices that are returned are
// the caller's, and hold nothing of the body that was parsed: its memory may be given back.
//
// What is accepted beyond OpenAI's API follows vLLM's server, so that its clients and
// benchmarks run unchanged.
package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"strings"
	"time"
)

// Kind tells the two endpoints that generate apart.
type Kind int

// The endpoints.
const (
	Completion Kind = iota // /v1/completions
	Chat                   // /v1/chat/completions
)

// Model is what a request is checked against.
type Model struct {
	Name        string
	MaxModelLen uint32 // tokens, prompt and output together
	Vocab       uint32 // token ids are in [0, Vocab)
}

// Tokenizer is that of the model's vocabulary.
func (m Model) Tokenizer() Tokenizer { return Tokenizer{Vocab: m.Vocab} }

// Tokens a completion gets when its request does not say: OpenAI's default.
// A chat gets what is left of the context.
const defaultCompletionTokens = 16

// Request is a checked request for tokens. Prompt and MaxTokens fit into the model's length
// together.
type Request struct {
	Kind            Kind
	Model           string
	Prompt          []uint32 // one id at least
	MaxTokens       uint32   // 1 at least
	Stream          bool
	IncludeUsage    bool          // an event with the account at the end of a stream
	ContinuousUsage bool          // the account so far in every event
	IgnoreEOS       bool          // go on to MaxTokens
	Breakdown       bool          // say where the time went
	Timeout         time.Duration // 0: the proxy's
}

// generationBody is the JSON of /v1/completions and /v1/chat/completions
// together. Fields that are not here, sampling parameters above all, are
// accepted and have no effect: the tokens are a function of the prompt. null
// is the same as absent everywhere.
type generationBody struct {
	Model               *string         `json:"model"`
	Prompt              json.RawMessage `json:"prompt"`
	Messages            []messageBody   `json:"messages"`
	MaxTokens           *int64          `json:"max_tokens"`
	MaxCompletionTokens *int64          `json:"max_completion_tokens"`
	N                   *int64          `json:"n"`
	Echo                bool            `json:"echo"`
	Logprobs            json.RawMessage `json:"logprobs"`
	Stream              bool            `json:"stream"`
	StreamOptions       struct {
		IncludeUsage         bool `json:"include_usage"`
		ContinuousUsageStats bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	IgnoreEOS       bool     `json:"ignore_eos"`
	Timeout         *float64 `json:"timeout"` // s
	ReturnBreakdown bool     `json:"return_breakdown"`
}

// messageBody is a turn of a conversation; see parseContent for its content.
type messageBody struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// Parse checks a request's body against what the cluster serves.
// Every error is an *Error that names the field and what would do.
func Parse(kind Kind, body []byte, model Model) (*Request, error) {
	var b generationBody
	if err := parseJSON(body, &b); err != nil {
		return nil, err
	}
	if err := model.check(b.Model); err != nil {
		return nil, err
	}
	if b.N != nil && *b.N != 1 {
		return nil, BadField("n", "%d: one completion a request is served; send it %d times", *b.N, max(*b.N, 0))
	}
	if b.Echo {
		return nil, BadField("echo", "true: the prompt is not echoed; leave it out")
	}
	if s := string(b.Logprobs); s != "" && s != "null" && s != "false" && s != "0" {
		return nil, BadField("logprobs", "%s: there are no probabilities to report; leave it out", Abbreviate(s))
	}
	g := &Request{
		Kind:            kind,
		Model:           model.Name,
		Stream:          b.Stream,
		IncludeUsage:    b.StreamOptions.IncludeUsage,
		ContinuousUsage: b.StreamOptions.IncludeUsage && b.StreamOptions.ContinuousUsageStats,
		IgnoreEOS:       b.IgnoreEOS,
		Breakdown:       b.ReturnBreakdown,
	}
	if b.Timeout != nil {
		// Beyond what a Duration holds there is no timeout to speak of.
		if *b.Timeout <= 0 {
			return nil, BadField("timeout", "%v: want seconds, more than 0", *b.Timeout)
		}
		g.Timeout = time.Duration(math.Min(math.Ceil(*b.Timeout*1e9), math.MaxInt64/2))
	}
	var err error
	if kind == Chat {
		g.Prompt, err = parseMessages(b.Messages, model.Tokenizer())
	} else {
		g.Prompt, err = parsePrompt("prompt", b.Prompt, model.Tokenizer())
	}
	if err != nil {
		return nil, err
	}
	g.MaxTokens, err = tokenLimit(&b, kind, len(g.Prompt), int(model.MaxModelLen))
	if err != nil {
		return nil, err
	}
	return g, nil
}

// tokenLimit is how many tokens to generate. max_completion_tokens is the
// newer name and wins, as it does in vLLM.
func tokenLimit(b *generationBody, kind Kind, prompt, window int) (uint32, error) {
	promptField := "prompt"
	if kind == Chat {
		promptField = "messages"
	}
	if prompt >= window {
		return 0, BadField(promptField, "%d tokens: the model takes prompt and output of %d together (max_model_len); shorten it to at most %d", prompt, window, window-1)
	}
	field, asked := "max_tokens", b.MaxTokens
	if b.MaxCompletionTokens != nil {
		field, asked = "max_completion_tokens", b.MaxCompletionTokens
	}
	switch {
	case asked == nil && kind == Chat:
		return uint32(window - prompt), nil
	case asked == nil:
		return uint32(min(defaultCompletionTokens, window-prompt)), nil
	case *asked < 1:
		return 0, BadField(field, "%d: want at least 1", *asked)
	case *asked > int64(window-prompt):
		return 0, BadField(field, "%d: with a prompt of %d tokens that exceeds the model's %d (max_model_len); ask for at most %d", *asked, prompt, window, window-prompt)
	}
	return uint32(*asked), nil
}

// check refuses a request for another model.
func (m Model) check(name *string) error {
	if name == nil || *name == m.Name {
		return nil
	}
	return &Error{
		Status: http.StatusNotFound, Type: "invalid_request_error", Param: "model", Code: "model_not_found",
		Message: fmt.Sprintf("model: %q is not served here; ask for %q", Abbreviate(*name), m.Name),
	}
}

// parsePrompt takes what OpenAI's prompt may be: a string, a list of token
// ids, or a list of one of these.
func parsePrompt(field string, raw json.RawMessage, tok Tokenizer) ([]uint32, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, BadField(field, "missing: want a string or a list of token ids")
	}
	switch raw[0] {
	case '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, BadField(field, "%v", err)
		}
		ids := tok.Encode(s)
		if len(ids) == 0 {
			return nil, BadField(field, "empty: want at least one token")
		}
		return ids, nil
	case '[':
		if ids, ok := parseTokenIDs(raw); ok {
			return checkTokenIDs(field, ids, tok)
		}
		return parsePromptList(field, raw, tok)
	}
	return nil, BadField(field, "%s: want a string or a list of token ids", Abbreviate(string(raw)))
}

// parsePromptList takes a list that is not one of token ids only: of one prompt, a string or
// a list of ids. More of them are refused, as an answer would have as many choices.
func parsePromptList(field string, raw json.RawMessage, tok Tokenizer) ([]uint32, error) {
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		return nil, BadField(field, "%v", err)
	}
	first := items[0] // an empty list is a list of token ids
	if first[0] != '"' && first[0] != '[' {
		// Token ids, but for one of them: it is named.
		for i, item := range items {
			if c := item[0]; c != '-' && (c < '0' || c > '9') || bytes.ContainsAny(item, ".eE") || len(item) > 9 {
				return nil, BadField(fmt.Sprintf("%s[%d]", field, i), "%s: want a token id, 0 to %d", Abbreviate(string(item)), tok.Vocab-1)
			}
		}
	}
	if len(items) > 1 {
		return nil, BadField(field, "a list of %d prompts: one prompt a request is served; send %d requests", len(items), len(items))
	}
	if first[0] == '[' {
		if ids, ok := parseTokenIDs(first); ok {
			return checkTokenIDs(field+"[0]", ids, tok)
		}
		return nil, BadField(field+"[0]", "want a list of token ids")
	}
	return parsePrompt(field+"[0]", first, tok)
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
		if id < 0 || id >= int64(tok.Vocab) {
			return nil, BadField(fmt.Sprintf("%s[%d]", field, i), "%d: want a token id, 0 to %d", id, tok.Vocab-1)
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
	return tok.EncodeChat(chat), nil
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

// parseJSON unmarshals a body that must be one JSON object. Errors say where in the text,
// or which field, and what a field takes in JSON's words instead of Go's.
func parseJSON(body []byte, v any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return &Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Message: "the body is empty: want a JSON object"}
	}
	err := json.Unmarshal(body, v)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil && bytes.TrimSpace(body)[0] == '{':
		return nil
	case err == nil, errors.As(err, &kind) && kind.Field == "":
		return &Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Message: "the body is no JSON object: want {\"model\":...}"}
	case errors.As(err, &syntax):
		before := body[:min(max(int(syntax.Offset)-1, 0), len(body))]
		line := 1 + bytes.Count(before, []byte{'\n'})
		column := len(before) - bytes.LastIndexByte(before, '\n')
		return &Error{
			Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "invalid_json",
			Message: fmt.Sprintf("the body is malformed JSON at line %d, column %d (byte %d): %v", line, column, syntax.Offset, err), Err: err,
		}
	case kind != nil:
		return BadField(kind.Field, "%s: want %s", Abbreviate(kind.Value), jsonKind(kind.Type))
	}
	return &Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "invalid_json", Message: "the body is malformed JSON: " + err.Error(), Err: err}
}

// jsonKind is what a Go type of a body's field takes.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int64, reflect.Uint32:
		return "an integer"
	case reflect.Float64:
		return "a number"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}

// Abbreviate keeps what a client sent from filling the log and the answer: its first 60
// bytes, cut between runes.
func Abbreviate(s string) string {
	const limit = 60
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "..."
}
