package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"time"

	"kvferry/proxy/admission"
	"kvferry/proxy/openai"
	"kvferry/proxy/unpack"
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

// requestBody is a request's, read whole, and its part of the memory for that: of a budget
// that all bodies share (package admission), counted at several times their length, since
// parsing makes more of them.
type requestBody struct {
	bytes []byte
	hold  *admission.Hold
}

// release gives the memory back, once the body has been parsed.
func (b *requestBody) release() {
	b.bytes = nil
	b.hold.Release()
}

// readBody reads a request's body to its end before anything is answered.
// Streaming an answer while the body is still coming in makes net/http cut
// off one or the other: 1 to 3 % of the streams came up short where a proxy
// did that (golang/go#40747). The caller releases it.
func (p *Proxy) readBody(w http.ResponseWriter, r *http.Request) (*requestBody, error) {
	unpack, err := unpack.Of(r.Header)
	if err != nil {
		w.Header().Set("Accept-Encoding", "gzip, deflate")
		w.Header().Set("Connection", "close")
		return nil, &openai.Error{Status: http.StatusUnsupportedMediaType, Type: "invalid_request_error", Code: "unsupported_encoding", Message: err.Error(), Err: err}
	}
	length := r.ContentLength
	if length < 0 || unpack != nil && length <= p.cfg.MaxBodyBytes {
		length = p.cfg.MaxBodyBytes // it does not say, or not what it is unpacked: as much as it may become
	}
	if length > p.cfg.MaxBodyBytes {
		admission.Decline(w, r)
		return nil, bodyTooLarge(p.cfg.MaxBodyBytes, nil)
	}
	conn := http.NewResponseController(w)
	addr := netip.Addr{}
	if c := admission.ConnectionOf(r); c != nil {
		addr = c.Addr
	}
	// Memory is taken before the first byte is read. Who is to make room for somebody else has
	// its read ended by a deadline in the past.
	hold, err := p.bodies.Take(r.Context(), p.cfg.RequestTimeout, errDeadline, addr, length, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	if err != nil {
		return nil, err
	}
	_ = conn.SetReadDeadline(time.Now().Add(p.timeouts.body))
	var buffer bytes.Buffer
	buffer.Grow(int(min(length, admission.SmallBody)) + bytes.MinRead) // what it declares may never come
	if unpack == nil {
		_, err = buffer.ReadFrom(http.MaxBytesReader(w, r.Body, p.cfg.MaxBodyBytes))
	} else if err = unpack(&buffer, http.MaxBytesReader(w, r.Body, p.cfg.MaxBodyBytes), p.cfg.MaxBodyBytes+1); err == nil && int64(buffer.Len()) > p.cfg.MaxBodyBytes {
		err = &http.MaxBytesError{Limit: p.cfg.MaxBodyBytes}
	}
	slow := hold.Arrived()
	p.answerSoon(w) // the body may have taken longer than the time to answer that was set before
	if err == nil {
		_ = conn.SetReadDeadline(time.Time{})
		return &requestBody{buffer.Bytes(), hold}, nil
	}
	hold.Release()
	w.Header().Set("Connection", "close")
	var tooLarge *http.MaxBytesError
	e := &openai.Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Message: fmt.Sprintf("the body could not be read: %v", err), Err: err}
	switch {
	case errors.As(err, &tooLarge):
		admission.Decline(w, r)
		return nil, bodyTooLarge(tooLarge.Limit, err)
	case slow:
		e.Status, e.Code, e.Message = http.StatusRequestTimeout, "body_too_slow", admission.ErrSlow.Error()+": send it again"
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.Status, e.Code, e.Message = http.StatusRequestTimeout, "body_too_slow", fmt.Sprintf("the body did not come within %v", p.timeouts.body)
	case errors.Is(err, io.ErrUnexpectedEOF):
		e.Message = fmt.Sprintf("the body ended after %d of %d bytes", buffer.Len(), r.ContentLength)
		if unpack != nil {
			e.Message = fmt.Sprintf("the body ended within its %s data, unpacked to %d bytes so far", r.Header.Get("Content-Encoding"), buffer.Len())
		}
	}
	return nil, e
}

// parse runs f, which parses a body, once few others do. Ten thousand requests that
// come at once would otherwise all be runnable, and a node's heartbeat or another
// request's token would wait behind seconds of their parsing.
func (p *Proxy) parse(f func() error) error {
	p.parsing <- struct{}{}
	defer func() { <-p.parsing }()
	return f()
}

// bodyTooLarge is a 413 that names the limit and the flag for it.
func bodyTooLarge(limit int64, err error) *openai.Error {
	return &openai.Error{
		Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: "body_too_large",
		Message: fmt.Sprintf("the body is longer than %d bytes (--max-body)", limit), Err: err,
	}
}

// writeError answers in OpenAI's form, whole: it sets the length, so that a connection can
// be kept.
func writeError(w http.ResponseWriter, e *openai.Error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	b := e.AppendJSON(nil)
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(e.Status)
	_, _ = w.Write(b) // a client that is gone needs no error
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the values are ours and always encode
}
