package nullserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A question is what is asked for.
type question struct {
	model  string
	tokens int
	prompt int // tokens: ids, or words
	stream bool
	usage  bool // to be told at the end
}

// An api says how one kind of answer is written: the data of its events.
type api struct {
	fields []string // that a strict server knows
	chat   bool
	native bool // SGLang's /generate
}

var apis = map[string]*api{
	"/v1/completions": {fields: strings.Fields("model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream stream_options suffix temperature top_p user")},
	"/v1/chat/completions": {chat: true, fields: strings.Fields("model messages frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens metadata n " +
		"presence_penalty reasoning_effort response_format seed stop stream stream_options temperature tool_choice tools top_p user")},
	"/generate": {native: true, fields: strings.Fields("text input_ids sampling_params stream return_logprob logprob_start_len lora_path rid")},
}

// read reads a request, or says what of it is refused.
func (cfg *Config) read(a *api, body []byte) (*question, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, err
	}
	if cfg.Strict {
		for name := range fields {
			if !slices.Contains(a.fields, name) {
				return nil, fmt.Errorf("unrecognized request argument supplied: %s", name)
			}
		}
	}
	if cfg.NoUsage && fields["stream_options"] != nil {
		return nil, fmt.Errorf("stream_options is not supported")
	}
	q := &question{model: cfg.Model, tokens: 16, usage: a.native && !cfg.NoUsage}
	type limits struct {
		Max           *int `json:"max_tokens"`
		MaxCompletion *int `json:"max_completion_tokens"`
		MaxNew        *int `json:"max_new_tokens"`
	}
	var asked struct {
		limits
		Stream        bool            `json:"stream"`
		Prompt        json.RawMessage `json:"prompt"`
		Text          json.RawMessage `json:"text"`
		InputIDs      json.RawMessage `json:"input_ids"`
		Messages      json.RawMessage `json:"messages"`
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
		Sampling limits `json:"sampling_params"`
	}
	if err := json.Unmarshal(body, &asked); err != nil {
		return nil, err
	}
	for _, max := range []*int{asked.Max, asked.MaxCompletion, asked.Sampling.MaxNew} {
		if max != nil {
			q.tokens = *max
		}
	}
	if cfg.Tokens > 0 {
		q.tokens = cfg.Tokens
	}
	q.tokens = min(max(q.tokens, 1), 1<<20)
	q.stream, q.usage = asked.Stream, q.usage || asked.StreamOptions.IncludeUsage && !cfg.NoUsage
	for _, text := range []json.RawMessage{asked.Prompt, asked.Text, asked.InputIDs, asked.Messages} {
		if ids := bytes.HasPrefix(text, []byte("[")) && !a.chat; ids && cfg.TextOnly {
			return nil, fmt.Errorf("prompt must be a string")
		} else if ids {
			q.prompt += bytes.Count(text, []byte(",")) + 1
		} else if len(text) > 0 {
			var words string
			if json.Unmarshal(text, &words) != nil {
				words = string(text) // messages: their quotes and keys count too
			}
			q.prompt += len(strings.Fields(words))
		}
	}
	return q, nil
}

const word = " tok"

// event is one choice of a completion, with what it says of its end.
func (a *api) event(q *question, text, finish string) string {
	if a.chat {
		return fmt.Sprintf(`{"id":"chatcmpl-0","object":"chat.completion.chunk","created":0,"model":%q,"choices":[{"index":0,"delta":{"content":%q},"logprobs":null,"finish_reason":%s}]}`, q.model, text, finish)
	}
	return fmt.Sprintf(`{"id":"cmpl-0","object":"text_completion","created":0,"model":%q,"choices":[{"index":0,"text":%q,"logprobs":null,"finish_reason":%s}]}`, q.model, text, finish)
}

// each makes the events of SGLang's own stream, which have all of the text so far; nil for
// the others, whose events are alike.
func (a *api) each(q *question) func(int) []byte {
	if !a.native {
		return nil
	}
	return func(n int) []byte {
		finish := "null"
		if n == q.tokens {
			finish = fmt.Sprintf(`{"type":"length","length":%d}`, n)
		}
		return []byte(chunks(data(fmt.Sprintf(`{"text":%q,"meta_info":{"id":"0","finish_reason":%s,"prompt_tokens":%d,"completion_tokens":%d,"cached_tokens":0}}`,
			strings.Repeat(word, n), finish, q.prompt, n))))
	}
}

// token, last and end are the events of the other streams.
func (a *api) token(q *question) string { return data(a.event(q, word, "null")) }

func (a *api) last(q *question) string { return data(a.event(q, word, `"length"`)) }

func (a *api) end(q *question) string {
	usage := ""
	if q.usage && !a.native {
		usage = data(fmt.Sprintf(`{"id":"cmpl-0","model":%q,"choices":[],"usage":%s}`, q.model, q.counts()))
	}
	return usage + data("[DONE]")
}

func (q *question) counts() string {
	return fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, q.prompt, q.tokens, q.prompt+q.tokens)
}

// whole is an answer that does not stream.
func (a *api) whole(q *question, silent bool) string {
	text, usage := strings.Repeat(word, q.tokens), ""
	if !silent {
		usage = `,"usage":` + q.counts()
	}
	switch {
	case a.native:
		return fmt.Sprintf(`{"text":%q,"meta_info":{"prompt_tokens":%d,"completion_tokens":%d,"finish_reason":{"type":"length","length":%[3]d}}}`, text, q.prompt, q.tokens)
	case a.chat:
		return fmt.Sprintf(`{"id":"chatcmpl-0","object":"chat.completion","model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"length"}]%s}`, q.model, text, usage)
	}
	return fmt.Sprintf(`{"id":"cmpl-0","object":"text_completion","model":%q,"choices":[{"index":0,"text":%q,"finish_reason":"length"}]%s}`, q.model, text, usage)
}

func data(event string) string { return "data: " + event + "\n\n" }

// chunks is one chunk of the chunked encoding, none of nothing.
func chunks(text string) string {
	if text == "" {
		return ""
	}
	return fmt.Sprintf("%x\r\n%s\r\n", len(text), text)
}
