package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"kvferry/internal/config"
	"kvferry/load/tooldraws"
	"kvferry/load/trace"
)

// openAIKind is SGLang's dataset of that name.
var openAIKind = Kind{
	Name:  "openai",
	About: "SGLang's openai: requests of chats as OpenAI's API has them (JSON lines)",
	Knobs: slices.Concat(Knobs{fileKnob, seedKnob}, shareGPTKnobs[:1]),
	Texts: true,
	Times: Arriving,
	Check: func(s Spec, bad *config.Faults) {
		bad.Refuse(s.File == "", "File", nil, "name the file of requests (--dataset-path)")
		bad.Refuse(s.Requests < 0, "Requests", s.Requests, "use 1 or more, 0 for all")
		config.Between(bad, "ShareGPT.OutputLen", s.ShareGPT.OutputLen, 0, maxLen)
	},
	Open: func(s Spec) (Load, error) {
		f, err := trace.Open(s.File)
		if err != nil {
			return Load{}, err
		}
		l := Load{Source: &chats{Spec: s, rows: trace.NewJSON(s.File, f, "")}}
		if !s.Chat {
			l.Notes = append(l.Notes, "prompts of the openai dataset are sent as text, and tools and sampling of its requests are not sent: only an endpoint of chats takes those (--backend openai-chat, vllm-chat or sglang-oai-chat)")
		}
		return l, nil
	},
}

// chats are the requests of a file, in its order, the first Spec.Requests lines of it:
//
//	{"messages": [{"role": "user", "content": "..."}], "max_tokens": 300, "tools": [...], "temperature": 0.6}
//
// Answers have max_tokens, 256 where a line does not say so, or ShareGPT.OutputLen. Messages are
// sent as they are, and so are the other fields, but for those that the client decides. A line
// without messages is passed over. SGLang passes over one that is no JSON, too; here that is an
// error.
type chats struct {
	Spec
	rows *trace.JSON
	n    int   // lines so far
	err  error // the first
}

// decided are fields of a line that the client does not send as they are: it asks for the model
// of --model, and for an answer of its length and form.
var decided = []string{"model", "max_tokens", "max_completion_tokens", "stream", "stream_options"}

// Next is the next line that has messages.
func (c *chats) Next() (Request, bool, error) {
	for c.err == nil && (c.Requests == 0 || c.n < c.Requests) {
		var line map[string]json.RawMessage
		ok, err := c.rows.Next(&line)
		if c.err = err; !ok {
			return Request{}, false, err
		}
		c.n++
		r, err := c.request(line)
		if err != nil {
			c.err = c.rows.Fault(err)
			return Request{}, false, c.err
		}
		if len(r.Messages) > 0 {
			return r, true, nil
		}
	}
	return Request{}, false, c.err
}

// A chatMessage is one as OpenAI has it: content is a text, parts of which some are text, or
// nothing where a tool is called.
type chatMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// text is the content as far as it is text.
func (m *chatMessage) text() (string, error) {
	var text *string
	if err := json.Unmarshal(m.Content, &text); err == nil || len(m.Content) == 0 {
		if text == nil {
			return "", nil
		}
		return *text, nil
	}
	var parts []struct{ Text string }
	if err := json.Unmarshal(m.Content, &parts); err != nil {
		return "", errors.New("content: give a text, or a list of parts")
	}
	var all []string
	for _, p := range parts {
		all = append(all, p.Text)
	}
	return strings.Join(all, ""), nil
}

// request is what a line asks for.
func (c *chats) request(line map[string]json.RawMessage) (r Request, err error) {
	var messages []chatMessage
	if err := field(line, "messages", &messages, false); err != nil || len(messages) == 0 {
		return r, err
	}
	for i := range messages {
		text, err := messages[i].text()
		if err == nil && messages[i].Role == "" {
			err = errors.New("role is missing: give it")
		}
		if err != nil {
			return r, fmt.Errorf("messages[%d].%w", i, err)
		}
		r.Messages = append(r.Messages, Message{Role: messages[i].Role, Content: text})
	}
	r.MaxTokens = c.ShareGPT.OutputLen
	if r.MaxTokens == 0 {
		wanted := 256.0 // SGLang's own
		if err := field(line, "max_tokens", &wanted, false); err != nil {
			return r, err
		}
		if r.MaxTokens, err = tokenCount("max_tokens", wanted); err != nil {
			return r, err
		}
	}
	r.Fields = maps.Clone(line)
	maps.DeleteFunc(r.Fields, func(name string, _ json.RawMessage) bool { return slices.Contains(decided, name) })
	var ignore *bool
	if err := field(line, "ignore_eos", &ignore, false); err != nil {
		return r, err
	}
	r.MayStop = ignore != nil && !*ignore
	return r, c.count(&r, line["tools"])
}

// count makes a text and tokens of the messages. SGLang counts tools as their JSON behind the
// conversation, which is near what a server's template makes of them; ours stand there too.
func (c *chats) count(r *Request, tools json.RawMessage) error {
	if c.Tokenizer == nil {
		r.Text = plainChat(r.Messages, false)
		return nil
	}
	text, err := c.Tokenizer.Chat(r.Messages, true)
	if err != nil {
		return err
	}
	r.Text, r.Prompt = text, c.Tokenizer.Encode(text, false)
	if tools != nil {
		listed, err := tooldraws.PythonJSON(tools)
		if err != nil {
			return fmt.Errorf("tools: %w", err)
		}
		r.Text += listed
		r.Prompt = append(r.Prompt, c.Tokenizer.Encode(listed, true)...)
	}
	return nil
}

// Close closes the file.
func (c *chats) Close() error { return c.rows.Close() }
