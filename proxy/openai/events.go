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

// An EventStream sends server-sent events, in any of the APIs. Nothing is sent before the first,
// so that a request that fails until then still gets its HTTP status. The Mutex is for those whose
// events several goroutines write.
type EventStream struct {
	sync.Mutex
	W    Writer
	sent bool // the header, or it was tried
}

// To has the events written to w. Call it before anything else.
func (s *EventStream) To(w Writer) { s.W = w }

// Begun reports whether the first event, and with it the status, is out or was tried.
func (s *EventStream) Begun() bool {
	s.Lock()
	defer s.Unlock()
	return s.sent
}

// Event writes b, after the status and header if it is the first. W may keep it until it is flushed.
func (s *EventStream) Event(b []byte) {
	if !s.sent {
		s.W.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		s.W.Header().Set("Cache-Control", "no-cache")
		s.W.WriteHeader(http.StatusOK)
		s.sent = true
	}
	_, _ = s.W.Write(b) // it only keeps them
}

// Fail tells the client, in mid-stream, why no more is coming. The caller then
// breaks the connection: the chunked body must not end as if it were whole.
func (s *EventStream) Fail(e *Error) {
	s.Lock()
	defer s.Unlock()
	s.Event(append(e.AppendJSON([]byte("data: ")), "\n\n"...))
	_ = s.W.FlushError() // the connection is about to be broken either way
}

// An End is why an answer has no more tokens; the zero value is that it has.
type End struct {
	Finish  string // length or stop
	Matched string // JSON of the stop string or token id that ended it, if one did
}

// Tokens are the next ones of a choice.
type Tokens struct {
	IDs    []uint32      // may be used again once they are written
	Cut    *Cut          // if not nil, it has been given the ids and has their text
	End    End           // set with the last ones, or after them
	Cached uint32        // prompt tokens found in a prefix cache, as far as the nodes have said so
	E2E    time.Duration // since the request was accepted; set with End
}

// Events writes a response as server-sent events, one a token, each
// flushed as soon as it is there. Everything in an event but the token's text
// is rendered once: an event costs two copies and, with its neighbours, one
// write; no memory is allocated for it. A token's text needs no escaping
// (Tokenizer.AppendToken). The choices of a request may each be written by a goroutine of
// their own; the rest is for one.
type Events struct {
	EventStream
	req     *Request
	envelop int // length of what every head begins with
	choices []choiceEvents
}

// choiceEvents is what events of one choice have in common.
type choiceEvents struct {
	head  []byte // up to the token's text
	usage Usage  // counted along for continuous_usage_stats
	begun bool   // its first event is out, or about to be
}

// Parts of a chunk: choice is what follows its index up to the token's text, and
// rest is what follows the text up to the finish reason. Fields are vLLM's, null ones too;
// golden answers in the tests hold every byte.
var (
	choicePart = [...]string{
		Completion: `,"text":"`,
		Chat:       `,"delta":{"content":"`,
	}
	restPart = [...]string{
		Completion: `","logprobs":null,"finish_reason":`,
		Chat:       `"},"logprobs":null,"finish_reason":`,
	}
	rolePart = `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":`
)

// NewEvents makes the events of an answer to req. Call To before anything else.
func NewEvents(req *Request, id string, created time.Time) *Events {
	s := &Events{req: req, choices: make([]choiceEvents, len(req.Choices))}
	object := "text_completion"
	if req.Kind == Chat {
		object = "chat.completion.chunk"
	}
	head := appendEnvelope([]byte("data: "), req, id, object, created)
	s.envelop = len(head)
	for i := range s.choices {
		c := &s.choices[i]
		c.usage.Prompt = uint32(len(req.Choices[i].Prompt))
		c.head = append(appendIndex(head[:s.envelop:s.envelop], i), choicePart[req.Kind]...)
	}
	return s
}

func appendIndex(b []byte, i int) []byte {
	return strconv.AppendInt(append(b, `{"index":`...), int64(i), 10)
}

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

// Tokens sends an event for each of a choice's ids, the last with why it ends if it does;
// without ids the end gets an event of its own. An error is the Writer's.
func (s *Events) Tokens(choice int, t Tokens) error {
	s.Lock()
	defer s.Unlock()
	from := 0
	for ; len(t.IDs)-from > eventsPerWrite; from += eventsPerWrite {
		if err := s.write(choice, t.IDs, from, from+eventsPerWrite, t.Cut, End{}); err != nil {
			return err
		}
	}
	return s.write(choice, t.IDs, from, len(t.IDs), t.Cut, t.End)
}

// write sends the events of ids[from:to] as one write, after the status and, of a chat, the
// event that says whose turn it is, if these are the first.
func (s *Events) write(choice int, ids []uint32, from, to int, cut *Cut, end End) error {
	p := eventBuffers.Get().(*[]byte)
	defer eventBuffers.Put(p)
	b := (*p)[:0]
	c := &s.choices[choice]
	echo := ""
	if !c.begun {
		c.begun = true
		echo = s.req.Choices[choice].Echo
		if s.req.Kind == Chat {
			b = append(appendIndex(append(b, c.head[:s.envelop]...), choice), rolePart...)
			b = s.appendUsage(b, c)
		}
	}
	for i := from; i < to; i++ {
		c.usage.Completion++
		b = append(b, c.head...)
		if echo != "" {
			b, echo = appendEscaped(b, echo), ""
		}
		if cut != nil {
			b = append(b, cut.piece(i)...)
		} else {
			b = s.req.Tokenizer.AppendToken(b, ids[i])
		}
		if i < to-1 {
			b = s.appendRest(b, c, End{})
		} else {
			b = s.appendRest(b, c, end)
		}
	}
	if from == to && end.Finish != "" {
		b = appendEscaped(append(b, c.head...), echo)
		if cut != nil {
			b = append(b, cut.rest()...)
		}
		b = s.appendRest(b, c, end)
	}
	*p = b
	s.Event(b)
	return s.W.FlushError() // tokens do not wait for others
}

// appendRest appends what follows an event's text.
func (s *Events) appendRest(b []byte, c *choiceEvents, end End) []byte {
	b = appendFinish(append(b, restPart[s.req.Kind]...), end, s.req.Kind == Completion)
	return s.appendUsage(append(b, `],"usage":`...), c)
}

// appendFinish appends a finish reason and, if something matched or always is set, what it
// was, and the end of the choice.
func appendFinish(b []byte, end End, always bool) []byte {
	if end.Finish == "" {
		b = append(b, "null"...)
	} else {
		b = append(append(append(b, '"'), end.Finish...), '"')
	}
	switch {
	case end.Matched != "":
		b = append(append(b, `,"stop_reason":`...), end.Matched...)
	case always:
		b = append(b, `,"stop_reason":null`...)
	}
	return append(b, '}')
}

// appendUsage ends a chunk.
func (s *Events) appendUsage(b []byte, c *choiceEvents) []byte {
	if !s.req.ContinuousUsage {
		return append(b, "null}\n\n"...)
	}
	return append(c.usage.appendJSON(b), "}\n\n"...)
}

// End sends the usage chunk, if it was asked for (a chunk without choices
// breaks clients that did not), and the mark of a complete stream.
func (s *Events) End(u Usage) error {
	s.Lock()
	defer s.Unlock()
	var b []byte
	if s.req.IncludeUsage || u.Breakdown != nil {
		b = append(append(b, s.choices[0].head[:s.envelop]...), `],"usage":`...)
		b = u.appendJSON(b)
		if u.Breakdown != nil {
			b = append(b, `,"breakdown":`...)
			b = u.Breakdown.AppendJSON(b)
		}
		b = append(b, "}\n\n"...)
	}
	s.Event(append(b, "data: [DONE]\n\n"...)) // the first if the model stopped at once
	return s.W.End()
}

// A Result is one choice of an answer that is not streamed, complete.
type Result struct {
	IDs []uint32
	Cut *Cut // nil: the text is that of all ids
	End End

	Cached uint32        // prompt tokens found in a prefix cache
	E2E    time.Duration // since the request was accepted
}

// AppendText appends a result's text, as it may stand in a JSON string.
func (r *Result) AppendText(b []byte, tok Tokenizer) []byte {
	if r.Cut != nil {
		return append(b, r.Cut.Text()...)
	}
	for _, t := range r.IDs {
		b = tok.AppendToken(b, t)
	}
	return b
}

// AppendAnswer appends the body of an answer that is not streamed.
func AppendAnswer(b []byte, req *Request, id string, created time.Time, results []Result, u Usage) []byte {
	object, choice, rest := "text_completion", `,"text":"`, `","logprobs":null,"finish_reason":`
	if req.Kind == Chat {
		object = "chat.completion"
		choice, rest = `,"message":{"role":"assistant","content":"`, `"},"logprobs":null,"finish_reason":`
	}
	b = appendEnvelope(b, req, id, object, created)
	for i := range results {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendIndex(b, i), choice...)
		b = appendEscaped(b, req.Choices[i].Echo)
		b = results[i].AppendText(b, req.Tokenizer)
		b = appendFinish(append(b, rest...), results[i].End, true)
	}
	b = append(b, `],"usage":`...)
	b = u.appendJSON(b)
	if u.Breakdown != nil {
		b = append(b, `,"breakdown":`...)
		b = u.Breakdown.AppendJSON(b)
	}
	return append(b, '}')
}
