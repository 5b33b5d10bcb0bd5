package proxy

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"kvferry/proto"
	"kvferry/proxy/metrics"
	"kvferry/proxy/openai"
	"kvferry/proxy/sglang"
	"kvferry/proxy/tracing"
	"kvferry/proxy/wire"
)

// An api is the wire format of an endpoint that generates.
type api struct {
	parse  func(body []byte, model openai.Model) (*openai.Request, error)
	events func(req *openai.Request, id string, created time.Time) eventStream
	answer func(b []byte, req *openai.Request, id string, created time.Time, results []openai.Result, u openai.Usage) []byte
	run    func(ctx context.Context, x *exchange) error // nil: by nodes
	held   func() int64                                 // bytes that a request keeps of its body until it has ended; nil: none
}

// eventStream is how an api streams; package openai's Events say what each of these does.
type eventStream interface {
	To(openai.Writer)
	Begun() bool
	End(openai.Usage) error
	Fail(*openai.Error)
}

// tokenStream is one that nodes' tokens are written to.
type tokenStream interface {
	eventStream
	Tokens(choice int, t openai.Tokens) error
}

var completions, chats = ofOpenAI(openai.Completion), ofOpenAI(openai.Chat)

func ofOpenAI(kind openai.Kind) api {
	return api{
		parse: kind.Parse,
		events: func(req *openai.Request, id string, created time.Time) eventStream {
			return openai.NewEvents(req, id, created)
		},
		answer: openai.AppendAnswer,
	}
}

// native is SGLang's own endpoint.
var native = api{
	parse:  sglang.Parse,
	events: func(req *openai.Request, id string, _ time.Time) eventStream { return sglang.NewEvents(req, id) },
	answer: func(b []byte, req *openai.Request, id string, _ time.Time, results []openai.Result, _ openai.Usage) []byte {
		return sglang.AppendAnswer(b, req, id, results)
	},
}

// An exchange is a client's request and the answer to it: one flight for each choice that it
// asks for, most often one. It lives from accept to finish, and belongs to the request's
// handler (a stream's, once that has taken the connection); its flights are on their way each
// by itself, and meet in the events.
type exchange struct {
	proxy     *Proxy
	api       api
	req       *openai.Request // stays as it is
	requestID string
	accepted  time.Duration // when the request's head was read; proxy's clock
	created   time.Time     // the wall clock's, for the answer
	body      *wire.Body    // that is kept; nil: none is
	early     int           // places in the queue from hold; guarded by proxy.mu
	events    eventStream   // nil: only collect
	metrics   *metrics.Model
	flights   []flight        // in order of the choices; one at least
	parent    *tracing.Parent // nil: it gets no spans
}

// prepare makes the flights of an exchange whose request is checked.
func (x *exchange) prepare() {
	x.flights = make([]flight, len(x.req.Choices))
	for i := range x.flights {
		f := &x.flights[i]
		c := &x.req.Choices[i]
		*f = flight{exchange: x, index: i, choice: c, want: int(c.MaxTokens)}
		if !c.IgnoreEOS {
			if n := max(x.proxy.cfg.EOS.Draw(c.Prompt, c.Variant), int(c.MinTokens)); n <= f.want {
				f.want, f.eos = n, true
			}
		}
		batch := f.want // nobody reads the tokens before the last
		if c.Stop != nil {
			f.cut = openai.NewCut(x.req.Tokenizer, c.Stop, c.MinTokens)
			batch = 1 // the next may stop it
		}
		if x.req.Stream {
			batch = 1
		}
		f.inbox = newInbox(batch)
	}
	if x.req.Stream {
		x.events = x.api.events(x.req, x.requestID, x.created)
	}
}

// run ends with every choice complete, or with the reason that one of them cannot be.
func (x *exchange) run(ctx context.Context) error {
	if x.api.run != nil {
		return x.api.run(ctx, x)
	}
	if len(x.flights) == 1 {
		return x.flights[0].run(ctx)
	}
	return x.runAll(ctx)
}

// runAll runs several flights. The first that fails ends the others.
func (x *exchange) runAll(ctx context.Context) (first error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	var once sync.Once
	fail := func(err error) {
		once.Do(func() { first = err })
		cancel(err)
	}
	for i := range x.flights {
		f := &x.flights[i]
		all.Go(func() {
			defer func() {
				if fault := recover(); fault != nil { // as net/http does it in a handler
					x.proxy.cfg.Logger.Error("panic serving a choice", "request", x.requestID, "choice", f.index, "err", fmt.Sprint(fault), "stack", string(debug.Stack()))
					fail(fmt.Errorf("choice %d: panic: %v", f.index, fault))
				}
			}()
			if err := f.run(ctx); err != nil {
				fail(fmt.Errorf("choice %d: %w", f.index, err))
			}
		})
	}
	all.Wait()
	return first
}

// results are the choices of an answer that is not streamed.
func (x *exchange) results() []openai.Result {
	all := make([]openai.Result, len(x.flights))
	for i := range all {
		f := &x.flights[i]
		all[i] = openai.Result{IDs: f.delivered, Cut: f.cut, End: f.end, Cached: f.cachedTokens(), E2E: f.e2e}
	}
	return all
}

// account is the request's usage as far as it came: each prompt once, the tokens of every
// choice. Which of a prompt the prefix cache had, its first choice says.
func (x *exchange) account() openai.Usage {
	u := openai.Usage{Prompt: x.req.PromptTokens()}
	if counted := x.flights[0].usage; counted != nil {
		u.Prompt = counted.Prompt
	}
	var d *proto.Breakdown
	if x.req.Breakdown {
		d = &proto.Breakdown{}
		u.Breakdown = &openai.Breakdown{Breakdown: d, PrefillNode: x.flights[0].prefillNode, DecodeNode: x.flights[0].decodeNode, Unknown: x.flights[0].unknown}
	}
	for i := range x.flights {
		f := &x.flights[i]
		_, output := f.counts()
		u.Completion += uint32(output)
		if i%x.req.N == 0 {
			u.Cached += f.cachedTokens()
		}
		if d != nil {
			d.Sum(&f.breakdown)
			u.Breakdown.Own += f.own
			u.Breakdown.Retries += f.retries
		}
	}
	return u
}
