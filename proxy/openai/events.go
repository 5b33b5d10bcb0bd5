package openai

import (
	"net/http"
	"strconv"
	"sync"
	"time"
)

// eventsPerWrite bounds how many tokens that are already there share a write:
// 64 events are about 16 KiB.
const eventsPerWrite = 64

// eventBuffers are shared by all streams: a buffer is needed for the length of
// one write only, so a thousand streams need a handful.
var eventBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// A Writer is where an answer goes. What is written may stay there until it is flushed, or
// the answer is ended.
type Writer interface {
	http.ResponseWriter
	FlushError() error
	End() error
}

// Events writes a response as server-sent events, one a token, each
// flushed as soon as it is there. Everything in an event but the token's text
// is rendered once: an event costs two copies and, with its neighbours, one
// write; no memory is allocated for it. A token's text needs no escaping
// (Tokenizer.AppendToken). It is for one goroutine.
//
// Nothing is sent before the first token, so that a request that fails until
// then still gets its HTTP status.
type Events struct {
	w   Writer
	req *Request

	open  []byte // data: {"id":...,"choices":[ of every event
	usage Usage  // counted along for continuous_usage_stats
	sent  bool   // the header, or it was tried
}

// Parts of a chunk: choice is what follows open up to the token's text, and
// rest is what follows the text up to the finish reason. Fields are vLLM's, null ones too;
// golden answers in the tests hold every byte.
var (
	choicePart = [...]string{
		Completion: `{"index":0,"text":"`,
		Chat:       `{"index":0,"delta":{"content":"`,
	}
	restPart = [...]string{
		Completion: `","logprobs":null,"finish_reason":`,
		Chat:       `"},"logprobs":null,"finish_reason":`,
	}
	endPart = [...]string{
		Completion: `,"stop_reason":null}],"usage":`,
		Chat:       `}],"usage":`,
	}
	rolePart = `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":`
)

// NewEvents makes the events of an answer to req. Call To before anything else.
func NewEvents(req *Request, id string, created time.Time) *Events {
	s := &Events{req: req}
	s.usage.Prompt = uint32(len(req.Prompt))
	object := "text_completion"
	if req.Kind == Chat {
		object = "chat.completion.chunk"
	}
	s.open = appendEnvelope([]byte("data: "), req, id, object, created)
	return s
}

// To has the events written to w.
func (s *Events) To(w Writer) { s.w = w }

// Begun reports whether the first event, and with it the status, is out or was tried.
func (s *Events) Begun() bool { return s.sent }

// appendEnvelope appends an answer's fields up to and with "choices":[.
func appendEnvelope(b []byte, req *Request, id, object string, created time.Time) []byte {
	prefix := "cmpl-"
	if req.Kind == Chat {
		prefix = "chatcmpl-"
	}
	b = append(b, `{"id":`...)
	b = AppendString(b, prefix+id)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = strconv.AppendInt(b, created.Unix(), 10)
	b = append(b, `,"model":`...)
	b = AppendString(b, req.Model)
	return append(b, `,"choices":[`...)
}

// Tokens sends an event for each of ids, the last with the finish reason if
// there is one; without ids the reason gets an event of its own. ids may be used again once it
// returns. An error is the Writer's.
func (s *Events) Tokens(ids []uint32, finish string) error {
	for len(ids) > eventsPerWrite {
		if err := s.write(ids[:eventsPerWrite], ""); err != nil {
			return err
		}
		ids = ids[eventsPerWrite:]
	}
	return s.write(ids, finish)
}

// write sends the events of some ids as one write, after the status and, of a chat, the
// event that says whose turn it is, if these are the first.
func (s *Events) write(ids []uint32, finish string) error {
	p := eventBuffers.Get().(*[]byte)
	defer eventBuffers.Put(p)
	b := (*p)[:0]
	if !s.sent {
		s.start()
		if s.req.Kind == Chat {
			b = append(append(b, s.open...), rolePart...)
			b = s.appendUsage(b)
		}
	}
	var tok Tokenizer
	for i, id := range ids {
		s.usage.Completion++
		b = append(append(b, s.open...), choicePart[s.req.Kind]...)
		b = tok.AppendToken(b, id)
		b = append(b, restPart[s.req.Kind]...)
		if i < len(ids)-1 {
			b = appendReason(b, "")
		} else {
			b = appendReason(b, finish)
		}
		b = append(b, endPart[s.req.Kind]...)
		b = s.appendUsage(b)
	}
	if len(ids) == 0 && finish != "" {
		b = append(append(b, s.open...), choicePart[s.req.Kind]...)
		b = append(b, restPart[s.req.Kind]...)
		b = appendReason(b, finish)
		b = append(b, endPart[s.req.Kind]...)
		b = s.appendUsage(b)
	}
	*p = b
	return s.out(b)
}

func (s *Events) start() {
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	s.w.WriteHeader(http.StatusOK)
	s.sent = true
}

func appendReason(b []byte, finish string) []byte {
	if finish == "" {
		return append(b, "null"...)
	}
	b = append(b, '"')
	b = append(b, finish...)
	return append(b, '"')
}

// appendUsage ends a chunk.
func (s *Events) appendUsage(b []byte) []byte {
	if !s.req.ContinuousUsage {
		return append(b, "null}\n\n"...)
	}
	return append(s.usage.appendJSON(b), "}\n\n"...)
}

// End sends the usage chunk, if it was asked for (a chunk without choices
// breaks clients that did not), and the mark of a complete stream.
func (s *Events) End(u Usage) error {
	var b []byte
	if s.req.IncludeUsage || u.Breakdown != nil {
		b = append(append(b, s.open...), `],"usage":`...)
		b = u.appendJSON(b)
		if u.Breakdown != nil {
			b = append(b, `,"breakdown":`...)
			b = u.Breakdown.appendJSON(b)
		}
		b = append(b, "}\n\n"...)
	}
	if !s.sent {
		s.start() // no tokens at all: the model stopped at once
	}
	_, _ = s.w.Write(append(b, "data: [DONE]\n\n"...))
	return s.w.End()
}

// Fail tells the client, in mid-stream, why no more is coming. The caller then
// breaks the connection: the chunked body must not end as if it were whole.
func (s *Events) Fail(e *Error) {
	b := append(e.AppendJSON([]byte("data: ")), "\n\n"...)
	_ = s.out(b) // the connection is about to be broken either way
}

// out has b written now: tokens do not wait for others.
func (s *Events) out(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	_, _ = s.w.Write(b) // it only keeps them
	return s.w.FlushError()
}

// AppendAnswer appends the body of an answer that is not streamed: the text of all ids in one
// choice.
func AppendAnswer(b []byte, req *Request, id string, created time.Time, ids []uint32, finish string, u Usage) []byte {
	object, choice, rest := "text_completion", `{"index":0,"text":"`, `","logprobs":null,"finish_reason":`
	if req.Kind == Chat {
		object = "chat.completion"
		choice, rest = `{"index":0,"message":{"role":"assistant","content":"`, `"},"logprobs":null,"finish_reason":`
	}
	b = appendEnvelope(b, req, id, object, created)
	b = append(b, choice...)
	var tok Tokenizer
	for _, t := range ids {
		b = tok.AppendToken(b, t)
	}
	b = append(b, rest...)
	b = appendReason(b, finish)
	b = append(b, `,"stop_reason":null}],"usage":`...)
	b = u.appendJSON(b)
	if u.Breakdown != nil {
		b = append(b, `,"breakdown":`...)
		b = u.Breakdown.appendJSON(b)
	}
	return append(b, '}')
}
