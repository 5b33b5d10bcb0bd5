package load

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"time"

	"kvferry/kvcache"
)

// A Request is one completion to ask for. It belongs to who took it from the source;
// the source does not touch it again.
//
// What is asked is Prompt, Text or both. A source that draws token ids has Prompt alone;
// one that has texts has Text, and Prompt too if [Spec].Tokenizer says what they are in
// tokens. Where both are there they are the same prompt. One that knows who said what has
// Messages besides: an endpoint of chats is sent those instead.
type Request struct {
	ID        string          // what the server is told; the client gives it one if it is empty
	At        time.Duration   // due since the start of the run; not before that of an earlier request, if it follows none
	Prompt    []kvcache.Token // each below the model's vocabulary
	Text      string          // UTF-8
	Messages  []Message       // the same prompt as the turns of a conversation; may be nil
	MaxTokens int             // wanted, 1 or more
	MayStop   bool            // the model may end it earlier (ignore_eos false)
	Adapter   string          // the LoRA adapter that is asked for; empty is the model itself
	Group     string          // whose prefix or conversation it is, for reports and routing; may be empty
	Worker    int             // which server it goes to, from 0, where there are several (Spec.Workers)
	Routing   string          // what a router is told by a header to send requests together by; may be empty
	// Fields are those of an endpoint of chats that are the request's own, by name, as JSON:
	// its tools, its sampling, and its messages as they stand in a file. Others do not get them.
	Fields map[string]json.RawMessage

	// After are requests, by their place in the stream, which have to end before this one is
	// due. They come before it. Then it is due Delay after the last of them has ended, and not
	// before At, which may be 0 here. It is not sent if one of them fails.
	After []int
	Delay time.Duration
	// Continues says that this is the next turn of After[0]'s conversation: before Prompt,
	// Text and Messages stand that one's whole prompt and the answer that it got. It comes in the
	// stream before the next request without After, so that the answer is kept for it.
	Continues bool
}

// A Source is where requests come from. Next returns them in order of time, and false
// after the last. After that, and after an error, it returns the same for ever. A
// Source is for one goroutine. One that holds a file is an io.Closer too; [Close] is for
// any.
type Source interface {
	Next() (r Request, ok bool, err error)
}

// A Tokenizer is that of the model which is asked, for loads that have texts or lengths in
// its tokens. Package tokenizer has one.
type Tokenizer interface {
	// Encode turns a text into tokens. special is whether those that the tokenizer puts before
	// and after each text (BOS, EOS) come with it.
	Encode(text string, special bool) []kvcache.Token
	// Decode turns tokens into text, special ones too unless skipSpecial.
	Decode(tokens []kvcache.Token, skipSpecial bool) string
	// Len is how many tokens there are, the added ones too: Python's len(tokenizer).
	Len() int
	// VocabSize is how many the model's vocabulary has of itself, without the added ones:
	// Python's tokenizer.vocab_size. Random tokens are below it.
	VocabSize() int
	// Special are the ids of special tokens, in ascending order.
	Special() []kvcache.Token
	// BOS is the token that begins a text, "" if the model has none: Python's
	// tokenizer.bos_token. Whether Encode puts it there is another matter.
	BOS() string
	// Chat renders a conversation by the model's chat template. prompt is whether the mark
	// that the assistant's turn begins comes last.
	Chat(messages []Message, prompt bool) (string, error)
}

// A Message is one turn of a conversation.
type Message struct {
	Role    string // system, user or assistant
	Content string
}

// A Load is a source with the way its requests are let go.
type Load struct {
	Source
	// InFlight is how many requests may be under way at once, 0 for any number. One that
	// is due and finds no room is sent when another has ended.
	InFlight int
	// End is how long a run lasts at least. The client that made the published tables
	// slept one gap more after its last request.
	End time.Duration
	// Until is from when on nothing more is sent, 0 for no such time.
	Until time.Duration
	// Count is how many requests there are, 0 if that shows at the end only.
	Count int
	// Generators are those of the tool whose draws the requests are, as its dataset left
	// them: times and adapters are drawn from them next. Nil where the draws are our own.
	Generators *Generators
	// Notes are what a reader of the figures has to know of these requests, a sentence each:
	// that they are not quite what was asked for, and why.
	Notes []string

	rng *rand.Rand // of draws of our own, which arrivals of our own share; nil for another
}

// edit returns the requests of a source after change, which ends them by returning false or an error.
func edit(s Source, change func(r *Request) (more bool, err error)) Source {
	return &edited{Source: s, change: change}
}

type edited struct {
	Source
	change func(r *Request) (bool, error)
	over   bool
	err    error // the first
}

func (e *edited) Next() (Request, bool, error) {
	if e.over {
		return Request{}, false, e.err
	}
	r, ok, err := e.Source.Next()
	if ok && err == nil {
		ok, err = e.change(&r)
	}
	if !ok || err != nil {
		e.over, e.err = true, err
		return Request{}, false, err
	}
	return r, true, nil
}

// Close closes the source.
func (e *edited) Close() error { return Close(e.Source) }

// Close releases what the source holds. No Next may follow.
func (l Load) Close() error { return Close(l.Source) }

// Close closes the source if it is to be closed.
func Close(s Source) error {
	if c, ok := s.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
