package upstream

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"kvferry/proto"
	"kvferry/proxy/health"
	"kvferry/proxy/openai"
)

// Bounds on what an engine says: bytes, unless they say otherwise.
const (
	maxAnswer     = 64 << 20 // of an answer that does not stream
	maxEvent      = 4 << 20
	maxPage       = 16 << 20 // of what it is asked about itself
	maxParams     = 1 << 20  // of kv_transfer_params
	maxErrorText  = 64 << 10
	maxKV         = 1 << 46         // of a request's KV
	maxSaid       = 1 << 31         // microseconds of a part, or blocks
	maxTokens     = uint32(1 << 24) // of a prompt or answer, where nothing is known of them
	maxRetryAfter = 3600            // s
	maxStatus     = 599
)

// offerLasts is how long KV that was offered may wait for a decode engine. It is a third of the 30 s for
// which vLLM's NixlConnector holds a prompt's blocks: afterwards they have other KV, and whoever takes it
// does not notice.
const offerLasts = 10 * time.Second

// Counts is who counts requests on their way.
type Counts interface {
	FirstToken(after time.Duration)
	NextToken(after time.Duration)
	Retried()
}

// A failure is a leg of a request that an engine failed.
type failure struct {
	request, engine, leg string
	with                 string // the prefill engine whose offer may be why; empty: none is suspected
	err                  error
	reached              bool   // the engine has the request, perhaps
	status               int    // of its answer, 400 or more; 0 for none
	after                int    // s, until it wants to be asked again; 0: it does not say
	body                 []byte // of that answer
}

func (f *failure) Error() string {
	at := f.engine
	if f.with != "" {
		at += ", with what " + f.with + " offers"
	}
	return fmt.Sprintf("request %s: %s leg on engine %s: %v", f.request, f.leg, at, f.err)
}

// ofTransfer reports whether the KV may have been at fault that a decode engine was to take: it has
// failed the request by an error of its own.
func (f *failure) ofTransfer() bool {
	return f.status == http.StatusInternalServerError || errors.Is(f.err, errAborted) || errors.As(f.err, new(*engineError))
}

func (f *failure) Unwrap() error { return f.err }

// api is the failure as a client sees it: the engine's own words, if it had any.
func (f *failure) api() *openai.Error {
	e := &openai.Error{Status: http.StatusBadGateway, Type: "server_error", Code: "engine_failed", Message: f.Error(), Err: f}
	if f.status > 0 {
		e.Status, e.Code = f.status, "engine_"+strconv.Itoa(f.status)
	}
	if f.status == http.StatusTooManyRequests || f.status == http.StatusServiceUnavailable {
		e.RetryAfter = max(f.after, 1)
	}
	if json.Valid(f.body) {
		e.Body = f.body
	}
	if own := (*ownFault)(nil); errors.As(f.err, &own) {
		e.Status, e.Code, e.RetryAfter = http.StatusServiceUnavailable, own.code, 1
	}
	return e
}

// Serve has engines answer a request, and returns when its answer is whole. started is called when the
// request waits no more: the first of its answer is there, or an engine has it that says nothing before the
// end. An error is an [openai.Error], or what ended ctx.
func (e *Engines) Serve(ctx context.Context, r *Request, counts Counts, started func()) error {
	r.asked.Choices[0].Prompt = nil // it has been counted, and the body has it
	defer func() { r.account(e.cfg.Clock.Now()) }()
	defer e.endReport(r)
	for {
		err := e.attempt(ctx, r, counts, started)
		if err == nil {
			r.awaitReport(ctx)
			return nil
		}
		if err = e.again(ctx, r, counts, err); err != nil {
			return err
		}
	}
}

// again returns nil if a request should be placed again after err, once there are engines for it, and
// else what it ends with. Of what the client has got a part, nothing is placed again.
func (e *Engines) again(ctx context.Context, r *Request, counts Counts, err error) error {
	var fail *failure
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &fail):
		switch {
		case r.events.Begun() || !fail.retryable() && fail != r.refused:
			return fail.api()
		case !fail.reached && r.free < len(e.all): // nothing was computed in vain
			r.free++
		case r.Retries >= e.cfg.MaxRetries:
			return fail.api()
		default:
			r.Retries++
			counts.Retried()
		}
		e.cfg.Logger.Warn("request placed again", "request", r.ID, "retry", r.Retries, "err", err)
	case !errors.Is(err, errNoEngine):
		return err
	}
	wait, cancel := context.WithTimeout(ctx, e.cfg.Wait)
	defer cancel()
	nobody := e.await(wait, func() (bool, error) { return e.serving(r) })
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case nobody != nil && fail != nil:
		return fmt.Errorf("%w (after: %w)", nobody, err)
	}
	return nobody
}

// retryable reports whether another engine may do better: this one is at fault, or full.
func (f *failure) retryable() bool {
	if errors.As(f.err, new(*ownFault)) {
		return false
	}
	return f.status == 0 || f.status >= http.StatusInternalServerError || f.status == http.StatusTooManyRequests
}

// attempt is one try: the prompt at a prefill engine, if its KV is not waiting to be taken, and the
// answer by another, or both by one.
func (e *Engines) attempt(ctx context.Context, r *Request, counts Counts, started func()) error {
	together, err := e.serving(r)
	if err != nil {
		return err
	}
	if !together || r.computed && e.cfg.Clock.Now()-r.offered > offerLasts {
		r.computed, r.params = false, nil
	}
	if !r.computed {
		r.name = e.unique(r.ID)
	}
	switch {
	case !together || !r.single || r.computed:
	case len(e.cfg.Bootstrap) > 0:
		return e.both(ctx, r, counts, started)
	default:
		if err := e.prefill(ctx, r); err != nil {
			return err
		}
	}
	if r.with = ""; r.params != nil {
		r.with = r.Prefill
	}
	v, err := e.place(answers(together), r)
	if err != nil {
		return err
	}
	r.Decode = v.id
	params := r.params
	if ofKvferry(params) {
		params = e.wantReport(r, v, params)
	}
	err = e.final(ctx, r, v, params, nil, counts, started)
	fail := asFailure(err)
	switch {
	case fail != nil && fail.status > 0 && !fail.retryable() && r.with != "" && r.refused == nil:
		fail.with, r.refused = r.with, fail
		r.avoid[e.all[slices.IndexFunc(e.all, func(en *engine) bool { return en.id == r.with })]] = true
	case err == nil && r.refused != nil && r.with != "" && r.with != r.refused.with: // another's offer was taken
		e.mu.Lock()
		e.failed(e.cfg.Clock.Now(), health.Subject{Node: r.refused.with}, r.refused)
		e.mu.Unlock()
	}
	if fail == nil || fail.reached {
		// What has the parameters may have taken the KV, or told its owner that it is not wanted: the
		// owner may have other KV there by now.
		r.computed, r.params = false, nil
	}
	e.end(ctx, r, v, fail, err == nil)
	return err
}

// answers is the role of the engines whose answers clients get.
func answers(together bool) proto.Role {
	if together {
		return proto.Role_ROLE_DECODE
	}
	return proto.Role_ROLE_NONDISAGG
}

// unique is a client's name for a request, or the proxy's, as engines get it. Two clients may have the same
// for theirs, and engines and connectors know a request by it. It has the proxy's mark, by which another request's answer
// shows (see foreign).
func (e *Engines) unique(id string) string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return id + "-" + e.mark + hex.EncodeToString(b[:])
}

// silent reports whether an engine has made no progress with anybody's request for patient while it had this one.
func (e *Engines) silent(v *visit) bool {
	return e.cfg.Clock.Now()-max(v.sent, time.Duration(v.spoke.Load())) >= e.silence
}

// end leaves an engine. What it could not help, the client's end or a request that no engine would
// take, is not held against it. A deadline is, if it said nothing to anybody in all that time: one that
// hangs may well say that it is in good health.
func (e *Engines) end(ctx context.Context, r *Request, v *visit, fail *failure, well bool) {
	switch {
	case ctx.Err() == nil && fail != nil && !fail.retryable():
		fail = nil
	case ctx.Err() != nil && fail != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && e.silent(v):
		fail.err = fmt.Errorf("it has said nothing for %v or more: %w", e.silence, fail.err)
	case ctx.Err() != nil:
		fail = nil
	}
	if fail != nil {
		r.avoid[v.engine] = true
	}
	e.leave(v, fail, well)
}

// prefill has an engine compute the prompt, and keeps how its KV is taken.
func (e *Engines) prefill(ctx context.Context, r *Request) error {
	v, err := e.place(proto.Role_ROLE_PREFILL, r)
	if err != nil {
		return err
	}
	r.Prefill = v.id
	said, err := e.compute(ctx, r, v, json.RawMessage(remotePrefill))
	r.computing += e.cfg.Clock.Now() - v.sent
	if err == nil {
		r.prefilled(said)
		r.computed, r.params, r.offered = true, nil, e.cfg.Clock.Now()
		if v.taken = given(said.Transfer); v.taken {
			r.params = said.Transfer
		}
	}
	e.end(ctx, r, v, asFailure(err), err == nil)
	return err
}

// compute has a prefill engine compute the prompt, and is its answer: how the KV is taken, or nothing of
// that, as of a prompt that is shorter than a block. It leaves r as it is.
func (e *Engines) compute(ctx context.Context, r *Request, v *visit, params json.RawMessage) (*said, error) {
	body, err := r.prefillBody(params)
	if err != nil {
		return nil, err
	}
	ctx, over := e.watch(ctx, v)
	defer over()
	answer, err := e.post(ctx, r, v, "prefill", body)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := whole(answer.Body, maxAnswer, r.More)
	if err != nil {
		return nil, r.fail(v, "prefill", plain(ctx, err))
	}
	said, err := e.read(r, v, text)
	if err == nil {
		err = e.checkParams(r, said.Transfer)
	}
	if err != nil {
		return nil, r.fail(v, "prefill", err)
	}
	return said, nil
}

// prefilled takes what a prefill engine says of the prompt.
func (r *Request) prefilled(s *said) {
	if u := s.Usage; u != nil {
		r.Usage.Prompt, r.Usage.Cached = u.Prompt, 0
		if u.Details != nil {
			r.Usage.Cached = u.Details.Cached
		}
	}
	r.gave.report(s.Transfer)
}

// post sends a leg's request. The answer is 200, and its body the caller's to close.
func (e *Engines) post(ctx context.Context, r *Request, v *visit, leg string, body []byte) (*http.Response, error) {
	f := r.fail(v, leg, nil)
	header := r.header.Clone()
	header.Set("X-Request-Id", r.name) // one for both legs: there are connectors that find the KV by it
	v.sent = e.cfg.Clock.Now()
	answer := e.send(ctx, f, v.engine, http.MethodPost, r.path, header, body, r.More)
	if f.err != nil {
		return nil, f
	}
	return answer, nil
}

// send sends a request to an engine, with a body if it is not empty. Either the answer is 200, and its body the caller's
// to close, or f says why not: with the status and body of an answer that says an error.
func (e *Engines) send(ctx context.Context, f *failure, en *engine, method, path string, header http.Header, body []byte, more func(bytes int64) bool) *http.Response {
	q, err := http.NewRequestWithContext(ctx, method, en.url+path, bytes.NewReader(body))
	if f.err = err; err != nil {
		return nil
	}
	q.Header = header
	if len(body) > 0 {
		header.Set("Content-Type", "application/json")
	}
	q.Close = !en.echoes.Load() // what comes late on a connection would be taken for the next answer
	answer, err := e.client.Do(q)
	if err != nil {
		f.err = plain(ctx, err)
		dial := (*net.OpError)(nil)
		f.reached = !errors.As(err, &dial) || dial.Op != "dial"
		return nil
	}
	if answer.StatusCode == http.StatusOK {
		return answer
	}
	defer answer.Body.Close()
	f.err = &statusError{q.URL.Path, answer.StatusCode}
	if answer.StatusCode < http.StatusBadRequest || answer.StatusCode > maxStatus {
		return answer // it does not do what was asked, and says no error: a redirect, say
	}
	f.status = answer.StatusCode
	f.after, _ = strconv.Atoi(answer.Header.Get("Retry-After")) // a date is not read
	f.after = min(f.after, maxRetryAfter)
	late := time.AfterFunc(min(e.patience, time.Second), func() { _ = answer.Body.Close() })
	defer late.Stop()
	f.body, _ = whole(answer.Body, maxErrorText, more) // the status says enough
	return answer
}

// fail is a failure of a leg whose engine has the request.
func (r *Request) fail(v *visit, leg string, err error) *failure {
	return &failure{request: r.ID, engine: v.id, leg: leg, err: err, reached: true}
}

var errNoMemory = &ownFault{"no_memory", "the proxy has no memory left for its answer, beside others' and bodies: ask again"}

// answerFactor is the memory that a byte of an answer can take: itself, and a copy as the buffer grows or with a
// breakdown.
const answerFactor = 2

// readMore reads what comes next of a body behind text, and returns both. more takes memory before it is there.
func readMore(body io.Reader, text []byte, more func(bytes int64) bool) ([]byte, error) {
	if len(text) == cap(text) {
		larger := max(2*cap(text), 4<<10)
		if !more(answerFactor * int64(larger-cap(text))) {
			return nil, errNoMemory
		}
		text = append(make([]byte, 0, larger), text...)
	}
	n, err := body.Read(text[len(text):cap(text)])
	return text[:len(text)+n], err
}

// whole reads an answer of most bytes at most that does not stream. more takes memory for it before it is there.
func whole(body io.Reader, most int, more func(bytes int64) bool) (text []byte, err error) {
	for {
		text, err = readMore(body, text, more)
		switch {
		case len(text) > most:
			return nil, fmt.Errorf("an answer of more than %d bytes", most)
		case errors.Is(err, io.EOF):
			return text, nil
		case err != nil:
			return nil, err
		}
	}
}
