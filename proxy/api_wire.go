package proxy

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"kvferry/attempt"
	"kvferry/proxy/admission"
	"kvferry/proxy/wire"
)

// This file is how requests and answers meet the connection: in bounded time, and
// bodies in bounded memory.

// timedHandler bounds how long a client may take to send a request and to read its
// answer, for every endpoint. Those that need longer say so: readBody for a body,
// answerSoon before an answer that was long in coming, flight.deadline for a stream.
type timedHandler struct {
	proxy *Proxy
	mux   *http.ServeMux
}

// ServeHTTP replaces the mux's, whose frame would come on top: see
// serveGeneration.
func (h timedHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Recorders of tests have no deadlines; a connection has. A body that no handler
	// reads is read by net/http when it has answered, so this is for every method.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(h.proxy.timeouts.answer))
	h.proxy.answerSoon(w)
	if h.proxy.cfg.CORS.Handle(w, r) {
		return
	}
	endpoint, _ := h.mux.Handler(r)
	endpoint.ServeHTTP(w, r)
	admission.Skip(w, r, h.proxy.timeouts.answer)
}

// answerSoon gives the client timeouts.answer from now to read what is written.
func (p *Proxy) answerSoon(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(p.timeouts.answer))
}

// A timedWriter gives a client timeouts.answer for each part of a long answer.
type timedWriter struct {
	p *Proxy
	http.ResponseWriter
}

func (t timedWriter) Write(b []byte) (int, error) {
	t.p.answerSoon(t.ResponseWriter)
	return t.ResponseWriter.Write(b)
}

// readBody reads a request's body to its end before anything is answered. The caller releases it.
func (p *Proxy) readBody(w http.ResponseWriter, r *http.Request) (*wire.Body, error) {
	body, err := wire.ReadBody(w, r, wire.Limits{
		All: p.bodies, Bytes: p.cfg.MaxBodyBytes, Arrival: p.timeouts.body, Wait: p.cfg.RequestTimeout, Late: attempt.Deadline,
	})
	p.answerSoon(w) // the body may have taken longer than the time to answer that was set before
	return body, err
}

// parse runs f, which parses a body, once few others do, or not at all once the client has gone. Ten thousand requests that
// come at once would otherwise all be runnable, and a node's heartbeat or another
// request's token would wait behind seconds of their parsing.
func (p *Proxy) parse(ctx context.Context, f func() error) error {
	select {
	case p.parsing <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", attempt.ClientGone, context.Cause(ctx))
	}
	defer func() { <-p.parsing }()
	return f()
}
