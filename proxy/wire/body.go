// Package wire is how the requests of an HTTP API and its answers meet the connection, whatever the
// endpoint: bodies in bounded time and memory, errors in OpenAI's form, names of requests.
package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"time"

	"kvferry/proxy/admission"
	"kvferry/proxy/openai"
	"kvferry/proxy/unpack"
)

// A Body is a request's, read whole, and its part of the memory for that: of a budget
// that all bodies share (package admission), counted at several times their length, since
// parsing makes more of them.
type Body struct {
	Bytes []byte
	*admission.Hold
}

// Release gives the memory back, once the body has been parsed.
func (b *Body) Release() {
	b.Bytes = nil
	b.Hold.Release()
}

// Limits bound a body.
type Limits struct {
	All     *admission.Bodies
	Bytes   int64         // of the longest, as it came and unpacked
	Arrival time.Duration // once there is memory for it
	Wait    time.Duration // until there is
	Late    error         // why it ends then
}

// ReadBody reads a request's body to its end before anything is answered.
// Streaming an answer while the body is still coming in makes net/http cut
// off one or the other: 1 to 3 % of the streams came up short where a proxy
// did that (golang/go#40747). The caller releases it.
func ReadBody(w http.ResponseWriter, r *http.Request, limits Limits) (*Body, error) {
	unpack, err := unpack.Of(r.Header)
	if err != nil {
		w.Header().Set("Accept-Encoding", "gzip, deflate")
		w.Header().Set("Connection", "close")
		return nil, &openai.Error{Status: http.StatusUnsupportedMediaType, Type: "invalid_request_error", Code: "unsupported_encoding", Message: err.Error(), Err: err}
	}
	length := r.ContentLength
	if length < 0 || unpack != nil && length <= limits.Bytes {
		length = limits.Bytes // it does not say, or not what it is unpacked: as much as it may become
	}
	if length > limits.Bytes {
		admission.Decline(w, r)
		return nil, tooLong(limits.Bytes, nil)
	}
	conn := http.NewResponseController(w)
	addr := netip.Addr{}
	if c := admission.ConnectionOf(r); c != nil {
		addr = c.Addr
	}
	// Memory is taken before the first byte is read. Who is to make room for somebody else has
	// its read ended by a deadline in the past.
	hold, err := limits.All.Take(r.Context(), limits.Wait, limits.Late, addr, length, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	if err != nil {
		return nil, err
	}
	_ = conn.SetReadDeadline(time.Now().Add(limits.Arrival))
	var buffer bytes.Buffer
	buffer.Grow(int(min(length, admission.SmallBody)) + bytes.MinRead) // what it declares may never come
	if unpack == nil {
		_, err = buffer.ReadFrom(http.MaxBytesReader(w, r.Body, limits.Bytes))
	} else if err = unpack(&buffer, http.MaxBytesReader(w, r.Body, limits.Bytes), limits.Bytes+1); err == nil && int64(buffer.Len()) > limits.Bytes {
		err = &http.MaxBytesError{Limit: limits.Bytes}
	}
	slow := hold.Arrived()
	if err == nil {
		_ = conn.SetReadDeadline(time.Time{})
		return &Body{buffer.Bytes(), hold}, nil
	}
	hold.Release()
	w.Header().Set("Connection", "close")
	e := &openai.Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Message: fmt.Sprintf("the body could not be read: %v", err), Err: err}
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		admission.Decline(w, r)
		return nil, tooLong(limits.Bytes, err)
	case slow:
		e.Status, e.Code, e.Message = http.StatusRequestTimeout, "body_too_slow", admission.ErrSlow.Error()+": send it again"
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.Status, e.Code, e.Message = http.StatusRequestTimeout, "body_too_slow", fmt.Sprintf("the body did not come within %v", limits.Arrival)
	case errors.Is(err, io.ErrUnexpectedEOF):
		e.Message = fmt.Sprintf("the body ended after %d of %d bytes", buffer.Len(), r.ContentLength)
		if unpack != nil {
			e.Message = fmt.Sprintf("the body ended within its %s data, unpacked to %d bytes so far", r.Header.Get("Content-Encoding"), buffer.Len())
		}
	}
	return nil, e
}

// tooLong is a 413 that names the limit and the flag for it.
func tooLong(limit int64, err error) *openai.Error {
	return &openai.Error{
		Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: "body_too_large",
		Message: fmt.Sprintf("the body is longer than %d bytes (--max-body)", limit), Err: err,
	}
}
