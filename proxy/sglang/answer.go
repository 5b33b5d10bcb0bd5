package sglang

import (
	"strconv"
	"time"

	"kvferry/proxy/openai"
)

// Events streams an answer as SGLang does: an event has all of the text and ids so far, and
// how many tokens they are. Tokens that are there together share an event. It is O(n^2) bytes
// for an answer of n tokens, as it is there; what an event needs is kept rendered, so that
// nothing is allocated for one but what the answer grows by. Choices may each be written by a
// goroutine of their own; the rest is for one.
type Events struct {
	openai.EventStream
	req     *openai.Request
	choices []choiceEvents
	buffer  []byte // an event
}

// choiceEvents is what has come of one choice, rendered.
type choiceEvents struct {
	text, ids []byte
	id        string
	tokens    int
}

// NewEvents makes the events of an answer to req. Call To before anything else.
func NewEvents(req *openai.Request, requestID string) *Events {
	s := &Events{req: req, choices: make([]choiceEvents, len(req.Choices))}
	for i := range s.choices {
		s.choices[i].id = id(req, requestID, i)
	}
	return s
}

// Tokens sends an event with a choice's next tokens. An error is the Writer's.
func (s *Events) Tokens(choice int, t openai.Tokens) error {
	s.Lock()
	defer s.Unlock()
	c := &s.choices[choice]
	c.tokens += len(t.IDs)
	for _, id := range t.IDs {
		if len(c.ids) > 0 {
			c.ids = append(c.ids, ',')
		}
		c.ids = strconv.AppendUint(c.ids, uint64(id), 10)
		if t.Cut == nil {
			c.text = s.req.Tokenizer.AppendToken(c.text, id)
		}
	}
	text := c.text
	if t.Cut != nil {
		text = t.Cut.Text()
	}
	b := append(s.buffer[:0], "data: "...)
	b = append(appendHead(b), text...)
	b = append(append(append(b, `","output_ids":[`...), c.ids...), `],"meta_info":`...)
	last := uint32(0)
	if len(t.IDs) > 0 {
		last = t.IDs[len(t.IDs)-1]
	}
	b = appendMeta(b, c.id, &s.req.Choices[choice], c.tokens, last, t.End, t.Cached, t.E2E)
	if len(s.choices) > 1 || s.req.Listed {
		b = openai.AppendField(append(b, ','), "index", uint64(choice))
	}
	b = append(b, "}\n\n"...)
	s.buffer = b
	s.Event(b)
	return s.W.FlushError()
}

// End sends the mark of a complete stream. The account was in the events.
func (s *Events) End(openai.Usage) error {
	s.Lock()
	defer s.Unlock()
	s.Event([]byte("data: [DONE]\n\n"))
	return s.W.End()
}

func appendHead(b []byte) []byte { return append(b, `{"text":"`...) }

// appendMeta appends meta_info. End.Finish is empty of an answer that goes on; what the model
// ended by itself matched its last token.
func appendMeta(b []byte, id string, c *openai.Choice, tokens int, last uint32, end openai.End, cached uint32, e2e time.Duration) []byte {
	b = append(b, `{"id":`...)
	b = openai.AppendString(b, id)
	b = append(b, `,"finish_reason":`...)
	switch {
	case end.Finish == "":
		b = append(b, "null"...)
	case end.Finish == "length":
		b = append(openai.AppendField(append(b, `{"type":"length",`...), "length", uint64(c.MaxTokens)), '}')
	case end.Matched != "":
		b = append(append(append(b, `{"type":"stop","matched":`...), end.Matched...), '}')
	default:
		b = append(openai.AppendField(append(b, `{"type":"stop",`...), "matched", uint64(last)), '}')
	}
	b = openai.AppendField(append(b, ','), "prompt_tokens", uint64(len(c.Prompt)))
	b = append(b, `,"weight_version":"default",`...)
	b = openai.AppendField(b, "completion_tokens", uint64(tokens))
	b = openai.AppendField(append(b, ','), "cached_tokens", uint64(cached))
	if end.Finish != "" {
		b = append(b, `,"e2e_latency":`...)
		b = strconv.AppendFloat(b, e2e.Seconds(), 'f', 6, 64)
	}
	return append(b, '}')
}

// AppendAnswer appends the body of an answer that is not streamed: one object, or a list of
// them where several were asked for.
func AppendAnswer(b []byte, req *openai.Request, requestID string, results []openai.Result) []byte {
	if req.Listed {
		b = append(b, '[')
	}
	for i := range results {
		r := &results[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(r.AppendText(appendHead(b), req.Tokenizer), `","output_ids":[`...)
		last := uint32(0)
		for j, t := range r.IDs {
			if j > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendUint(b, uint64(t), 10)
			last = t
		}
		b = append(b, `],"meta_info":`...)
		b = append(appendMeta(b, id(req, requestID, i), &req.Choices[i], len(r.IDs), last, r.End, r.Cached, r.E2E), '}')
	}
	if req.Listed {
		b = append(b, ']')
	}
	return b
}
