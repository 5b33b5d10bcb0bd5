package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"kvferry/bench/client/wire"
	"kvferry/bench/stats"
	"kvferry/load"
	"kvferry/load/dispatch"
)

// routingHeader tells SGLang's gateway which requests to send to one worker (load.Request.Routing).
const routingHeader = "X-SMG-Routing-Key"

var errTimeout = errors.New("the client's timeout (--request-timeout)")

// buffers are what net/http's answers are read into.
var buffers = sync.Pool{New: func() any { b := make([]byte, 16<<10); return &b }}

// complete sends one request and fills in its record. The answer is for those that
// continue it.
func (c *Client) complete(ctx context.Context, e *encoder, start time.Duration, r *Record, s *dispatch.Sending, body []byte) (dispatch.Answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.Timeout, fmt.Errorf("not over within %v, %w", c.cfg.Timeout, errTimeout))
	defer cancel()
	a := &answer{
		record: r, kind: c.backend.kind, start: start, mayStop: s.MayStop || !e.accepts.IgnoreEOS,
		keepText: c.cfg.KeepText || s.Continued || c.cfg.Tokenizer != nil && (c.cfg.Retokenize || !e.accepts.Usage), keepIDs: s.Continued,
	}
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	var patience *time.Timer
	a.limit = func(most time.Duration, why error) { patience = time.AfterFunc(most, func() { cut(why) }) }
	t := c.targets[0]
	if n := len(c.targets); n > 1 {
		i := s.Index % n
		if c.cfg.Assign != nil {
			i = c.cfg.Assign(s.Index, &s.Request)
		}
		if i < 0 || i >= n {
			return dispatch.Answer{}, faulty(FaultRequest, fmt.Errorf("worker %d of %d", i, n))
		}
		t = c.targets[i]
		r.Worker = t.base
	}
	err := a.end(because(ctx, c.exchange(ctx, t, start, r, s.Routing, body, a)))
	if patience != nil {
		patience.Stop()
	}
	r.Finish = stats.Seconds(c.clock.Now() - start)
	c.count(e, r, &s.Request, a)
	return dispatch.Answer{Tokens: a.ids, Text: string(a.text)}, err
}

// exchange sends a request and has a take the answer. An error is of the connection, or a's.
func (c *Client) exchange(ctx context.Context, t *target, start time.Duration, r *Record, routing string, body []byte, a *answer) error {
	if !headerValue(r.RequestID) {
		return faulty(FaultRequest, fmt.Errorf("request id %q: a header has no control characters", r.RequestID))
	}
	r.Sent = stats.Seconds(c.clock.Now() - start)
	trace := ""
	if c.cfg.Trace != nil {
		trace = c.cfg.Trace(r)
		r.TraceID = traceID(trace)
	}
	if c.wire == nil || t.endpoint.Scheme != "http" {
		return c.exchangeHTTP(ctx, t, r.RequestID, trace, routing, body, a)
	}
	b := make([]byte, 0, len(t.head)+len(body)+len(r.RequestID)+len(trace)+80)
	b = append(append(append(b, t.head...), "X-Request-Id: "...), r.RequestID...)
	if trace != "" {
		b = append(append(b, "\r\nTraceparent: "...), trace...)
	}
	if routing != "" {
		b = append(append(b, "\r\n"+routingHeader+": "...), routing...)
	}
	b = strconv.AppendInt(append(b, "\r\nContent-Length: "...), int64(len(body)), 10)
	b = append(append(b, "\r\n\r\n"...), body...)
	return c.wire.Do(ctx, t.address, b, a)
}

// exchangeHTTP is exchange by net/http: for https, and where there is no package wire.
func (c *Client) exchangeHTTP(ctx context.Context, t *target, id, trace, routing string, body []byte, a *answer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.endpoint.String(), bytes.NewReader(body))
	if err != nil {
		return faulty(FaultRequest, err)
	}
	req.GetBody = nil // nothing is sent twice
	req.Header = withHeader(c.cfg.header(), id, trace)
	if routing != "" {
		req.Header.Set(routingHeader, routing)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := a.Head(resp, c.clock.Now()); err != nil {
		return err
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		n, err := resp.Body.Read(*buf)
		if err := a.Body((*buf)[:n], c.clock.Now(), 0); err != nil {
			return err
		}
		switch {
		case errors.Is(err, io.EOF):
			// A server may end its answer well when it sees that it is given up.
			return ctx.Err()
		case err != nil:
			return err
		}
	}
}

// because names the reason a context was cut short instead of the failed call, and the kind
// of a failure that came before any answer.
func because(ctx context.Context, err error) error {
	var fault *faultError
	var dial *net.OpError
	switch {
	case err == nil || errors.As(err, &fault):
		return err
	case ctx.Err() != nil:
		if cause := context.Cause(ctx); errors.Is(cause, errTimeout) {
			return faulty(FaultTimeout, cause)
		} else if errors.Is(cause, errAfterDone) || errors.Is(cause, errErrorText) {
			return cause
		}
		return errInterrupted
	case errors.Is(err, wire.ErrConnect) || errors.As(err, &dial) && dial.Op == "dial":
		return faulty(FaultConnect, err)
	case errors.Is(err, wire.ErrHeadTooLong):
		return faulty(FaultEndless, err)
	case errors.Is(err, wire.ErrMalformed) || strings.Contains(err.Error(), "malformed HTTP"):
		return faulty(FaultGarbage, err)
	}
	return err
}

// count says how many tokens there were, and who says so.
func (c *Client) count(e *encoder, r *Record, asked *load.Request, a *answer) {
	switch {
	case len(r.TokenTimes) == 0:
		return
	case r.Usage != nil:
		r.CountedBy, r.OutputTokens = CountUsage, r.Usage.CompletionTokens
	case c.cfg.Tokenizer != nil:
		r.CountedBy, r.OutputTokens = CountTokenizer, c.textTokens(a)
	default:
		r.CountedBy, r.OutputTokens = CountChunks, len(r.TokenTimes)
	}
	switch {
	case r.Usage != nil && r.Usage.PromptTokens > 0:
		r.InputTokens = r.Usage.PromptTokens
	case len(asked.Prompt) > 0:
		r.InputTokens = len(asked.Prompt)
		r.Unconfirmed = e.accepts.Unconfirmed
	case c.cfg.Tokenizer != nil:
		r.InputTokens = len(c.cfg.Tokenizer.Encode(asked.Text, true))
	default:
		r.InputTokens, r.Unconfirmed = len(strings.Fields(asked.Text)), true
	}
	if c.cfg.Retokenize && c.cfg.Tokenizer != nil {
		r.Retokenized = c.textTokens(a)
	}
	if c.cfg.KeepText {
		r.Text = string(a.text)
		if a.thinks {
			content := string(a.said)
			r.Content = &content
		}
	}
}

// textTokens is how many tokens the answers' texts are to the client's tokenizer.
func (c *Client) textTokens(a *answer) int {
	n := len(c.cfg.Tokenizer.Encode(string(a.text), false))
	for _, text := range a.others.texts {
		n += len(c.cfg.Tokenizer.Encode(string(text), false))
	}
	return n
}
