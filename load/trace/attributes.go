package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"kvferry/internal/config"
)

// attrs are a span's attributes.
type attrs map[string]any

// attributes reads an object, or OTLP's list of keys and values.
func attributes(text json.RawMessage) (attrs, error) {
	a := attrs{}
	if len(text) == 0 || string(text) == "null" {
		return a, nil
	}
	if text[0] != '[' {
		if err := config.Unmarshal(text, &a, false); err != nil {
			return nil, fmt.Errorf("attributes: %w", err)
		}
		return a, nil
	}
	var list []struct {
		Key   string    `json:"key"`
		Value otlpValue `json:"value"`
	}
	if err := config.Unmarshal(text, &list, false); err != nil {
		return nil, fmt.Errorf("attributes: %w", err)
	}
	for _, kv := range list {
		a[kv.Key] = kv.Value.plain()
	}
	return a, nil
}

// otlpValue is a value with its type's name.
type otlpValue struct {
	Text  *string  `json:"stringValue"`
	Int   any      `json:"intValue"` // JSON has 64 bits as a text
	Float *float64 `json:"doubleValue"`
	Bool  *bool    `json:"boolValue"`
	Array *struct {
		Values []otlpValue `json:"values"`
	} `json:"arrayValue"`
	List *struct {
		Values []struct {
			Key   string    `json:"key"`
			Value otlpValue `json:"value"`
		} `json:"values"`
	} `json:"kvlistValue"`
}

// plain is the value as JSON would have it without OTLP's types.
func (v *otlpValue) plain() any {
	switch {
	case v.Text != nil:
		return *v.Text
	case v.Int != nil:
		return v.Int
	case v.Float != nil:
		return *v.Float
	case v.Bool != nil:
		return *v.Bool
	case v.Array != nil:
		list := make([]any, len(v.Array.Values))
		for i := range list {
			list[i] = v.Array.Values[i].plain()
		}
		return list
	case v.List != nil:
		m := map[string]any{}
		for _, kv := range v.List.Values {
			m[kv.Key] = kv.Value.plain()
		}
		return m
	}
	return nil
}

// text is an attribute that is a text; others are empty.
func (a attrs) text(name string) string {
	s, _ := a[name].(string)
	return s
}

// number is the first of the attributes that is there, as a number of tokens; -1 for none.
func (a attrs) number(names ...string) (int, error) {
	for _, name := range names {
		v, ok := a[name]
		if !ok || v == nil {
			continue
		}
		f, ok := v.(float64)
		if text, is := v.(string); is {
			var err error
			f, err = strconv.ParseFloat(text, 64)
			ok = err == nil
		}
		if !ok {
			return 0, fmt.Errorf("%s: %v: want a number", name, v)
		}
		return tokens(name, &f)
	}
	return -1, nil
}

// Names of token counts: those of the conventions, then older ones.
var (
	inputTokens  = []string{"gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"}
	outputTokens = []string{"gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"}
	cachedTokens = []string{"gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens"}
)

// calls reports whether the span is a call to a model that makes text.
func (a attrs) calls() bool {
	switch a.text("gen_ai.operation.name") {
	case "chat", "generate", "generate_content", "text_completion":
		return true
	case "":
		for _, name := range outputTokens {
			if a[name] != nil {
				return true
			}
		}
	}
	return false
}

// call reads what was asked and answered. Counts come before texts: they are the model's own.
// Where only a text of the answer is there, its length is left to who has a tokenizer; the
// limit that the request had is not its length.
func (a attrs) call() (*Call, error) {
	c := &Call{}
	var err error
	if c.Input, err = a.number(inputTokens...); err != nil {
		return nil, err
	}
	if c.Output, err = a.number(outputTokens...); err != nil {
		return nil, err
	}
	limit, err := a.number("gen_ai.request.max_tokens")
	if err != nil {
		return nil, err
	}
	if c.Cached, err = a.number(cachedTokens...); err != nil {
		return nil, err
	}
	c.Cached = max(c.Cached, 0)
	if c.Messages, err = messages(a["gen_ai.input.messages"]); err != nil {
		return nil, fmt.Errorf("gen_ai.input.messages: %w", err)
	}
	system, err := messages(a["gen_ai.system_instructions"])
	if err != nil {
		return nil, fmt.Errorf("gen_ai.system_instructions: %w", err)
	}
	if len(c.Messages) > 0 && len(system) > 0 {
		c.Messages = append([]Message{{"system", contents(system)}}, c.Messages...)
	}
	answer, err := messages(a["gen_ai.output.messages"])
	if err != nil {
		return nil, fmt.Errorf("gen_ai.output.messages: %w", err)
	}
	if c.Answer = contents(answer); c.Answer == "" {
		c.Answer = a.text("gen_ai.output.text")
	}
	if c.Output < 0 {
		c.Output = 0
		if c.Answer == "" {
			c.Output = max(limit, 0)
		}
	}
	switch {
	case c.Output == 0 && c.Answer == "":
		return nil, errors.New("gen_ai.usage.output_tokens is missing: give it, or gen_ai.output.messages")
	case c.Input < 0 && len(c.Messages) == 0:
		return nil, errors.New("gen_ai.usage.input_tokens is missing: give it, or gen_ai.input.messages")
	}
	c.Input = max(c.Input, 1)
	return c, nil
}

// messages reads a list of them, as JSON or as a text of JSON: of {"role", "content"} or
// {"role", "parts"}. What is not text in them, such as a call of a tool, is its JSON.
func messages(v any) (list []Message, err error) {
	if text, ok := v.(string); ok {
		if text == "" {
			return nil, nil
		}
		var inner any
		if err := config.Unmarshal([]byte(text), &inner, false); err != nil {
			return nil, err
		}
		v = inner
	}
	if v == nil {
		return nil, nil
	}
	all, ok := v.([]any)
	if !ok {
		return nil, errors.New("want a list of messages")
	}
	for i, m := range all {
		fields, ok := m.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("[%d]: want an object with role and content", i)
		}
		role, _ := fields["role"].(string)
		config.Default(&role, "user")
		list = append(list, Message{role, said(fields)})
	}
	return list, nil
}

// said is what a message, or a part of one, says.
func said(fields map[string]any) string {
	for _, name := range []string{"content", "text"} {
		if text, ok := fields[name].(string); ok {
			return text
		}
	}
	if parts, ok := fields["parts"].([]any); ok {
		var all []string
		for _, p := range parts {
			if inner, ok := p.(map[string]any); ok {
				all = append(all, said(inner))
			}
		}
		return strings.Join(all, "\n")
	}
	text, err := json.Marshal(fields) // maps are written in order of their keys
	if err != nil {
		return "" // what came from JSON goes back into it
	}
	return string(text)
}

// contents is what all of them say.
func contents(list []Message) string {
	var all []string
	for _, m := range list {
		all = append(all, m.Content)
	}
	return strings.Join(all, "\n")
}
