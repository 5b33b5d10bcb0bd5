package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"kvferry/proxy/admission"
)

// A stream's connection is taken from net/http once its request was taken on, and given
// back for the next one. net/http's buffers for it, and the stack of a goroutine that runs
// a whole handler, were half of what an open stream took.

// streamWriter writes an answer to a connection that was taken from net/http. It is an
// http.ResponseWriter that an http.ResponseController can set a deadline of. What is written
// stays here until FlushError or End. One goroutine uses it. What HTTP/1.1 asks of an answer
// that is nothing but chunks (RFC 9112, 7.1) is all that it knows.
type streamWriter struct {
	conn   streamConn
	header http.Header
	plain  bool // HTTP/1.0: no chunks
	keep   bool // the client may send its next request over the connection

	begun   bool // the status is out, or about to be
	chunked bool
	buffer  *[]byte // not yet written; nil if nothing is
}

// streamConn is what a streamWriter needs of a connection.
type streamConn interface {
	io.Writer
	SetWriteDeadline(time.Time) error
}

// streamBuffers are shared by all streams, as package openai's are: a stream has one for as
// long as something waits to be written, which is the length of a write.
var streamBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// newStreamWriter answers r over conn.
func newStreamWriter(conn streamConn, r *http.Request) *streamWriter {
	return &streamWriter{conn: conn, header: make(http.Header, 4), plain: !r.ProtoAtLeast(1, 1), keep: r.ProtoAtLeast(1, 1) && !r.Close}
}

// Header implements [http.ResponseWriter].
func (s *streamWriter) Header() http.Header { return s.header }

// SetWriteDeadline is for an [http.ResponseController].
func (s *streamWriter) SetWriteDeadline(at time.Time) error { return s.conn.SetWriteDeadline(at) }

// WriteHeader implements [http.ResponseWriter]. Without a Content-Length the answer is in
// chunks, or in HTTP/1.0 as long as the connection lasts.
func (s *streamWriter) WriteHeader(status int) {
	if s.begun {
		return
	}
	s.begun = true
	s.chunked = s.header.Get("Content-Length") == "" && !s.plain
	if s.header.Get("Connection") == "close" {
		s.keep = false
	}
	waiting := s.waiting()
	b := append(strconv.AppendInt(append(*waiting, "HTTP/1.1 "...), int64(status), 10), ' ')
	b = append(append(b, http.StatusText(status)...), "\r\n"...)
	field := func(name, value string) { b = append(append(append(append(b, name...), ": "...), value...), "\r\n"...) }
	names := make([]string, 0, 4)
	for name := range s.header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		field(name, s.header.Get(name))
	}
	field("Date", time.Now().UTC().Format(http.TimeFormat))
	if s.chunked {
		field("Transfer-Encoding", "chunked")
	}
	if !s.keep && s.header.Get("Connection") == "" {
		field("Connection", "close")
	}
	*waiting = append(b, "\r\n"...)
}

// Write implements [io.Writer]: one chunk.
func (s *streamWriter) Write(p []byte) (int, error) {
	s.WriteHeader(http.StatusOK)
	if len(p) == 0 {
		return 0, nil
	}
	b := s.waiting()
	if s.chunked {
		*b = append(strconv.AppendInt(*b, int64(len(p)), 16), "\r\n"...)
	}
	*b = append(*b, p...)
	if s.chunked {
		*b = append(*b, "\r\n"...)
	}
	return len(p), nil
}

// waiting is what is not yet written.
func (s *streamWriter) waiting() *[]byte {
	if s.buffer == nil {
		s.buffer = streamBuffers.Get().(*[]byte)
		*s.buffer = (*s.buffer)[:0]
	}
	return s.buffer
}

// FlushError writes what waits.
func (s *streamWriter) FlushError() error {
	if s.buffer == nil {
		return nil
	}
	_, err := s.conn.Write(*s.buffer)
	streamBuffers.Put(s.buffer)
	s.buffer = nil
	return err
}

// End writes what waits and the end of the answer.
func (s *streamWriter) End() error {
	s.WriteHeader(http.StatusOK)
	if s.chunked {
		b := s.waiting()
		*b = append(*b, "0\r\n\r\n"...)
	}
	return s.FlushError()
}

// serveStream takes a request's connection from net/http and streams to it, in a goroutine
// of its own: that of the handler goes, and its stack with it. If it returns nil, the exchange
// and the connection are that goroutine's, which also calls leave; after an error they are
// still the caller's.
//
// A second goroutine, watch, reads. over tells it that the answer has ended, and whether the
// connection may be used again. With both goroutines and what it keeps of a request, 1,000
// open streams take 23.7 MB of the proxy, where net/http's handlers took 44.2.
func (p *Proxy) serveStream(w http.ResponseWriter, r *http.Request, x *exchange) error {
	raw, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("a stream needs a connection of HTTP/1: %w", err)
	}
	conn := raw.(*admission.Connection)
	ahead, _ := rw.Reader.Peek(rw.Reader.Buffered())
	conn.Ahead = slices.Clone(ahead) // not the whole buffer
	s := newStreamWriter(conn, r)
	s.header.Set("X-Request-Id", x.requestID)
	x.events.To(s)
	ctx, gone := context.WithCancelCause(p.ctx) // r's own context ends with the handler
	over := make(chan bool, 1)
	p.connections.Take(conn)
	p.connections.Streaming.Go(func() { p.watch(conn, gone, over) })
	p.connections.Streaming.Go(func() {
		whole := false
		defer func() {
			if fault := recover(); fault != nil { // as net/http does it
				p.cfg.Logger.Error("panic serving a stream", "request", x.requestID, "err", fmt.Sprint(fault), "stack", string(debug.Stack()))
			}
			gone(nil)
			p.leave(x)
			if whole {
				_ = conn.SetReadDeadline(time.Now().Add(p.timeouts.idle)) // ends watch's wait for a next request
				p.http.ConnState(conn, http.StateIdle)
			} else {
				_ = conn.Close()
			}
			over <- whole
		}()
		whole = p.stream(ctx, x, s)
	})
	return nil
}

// stream serves a stream and reports whether its connection is fit for another request.
func (p *Proxy) stream(ctx context.Context, x *exchange, s *streamWriter) (whole bool) {
	ctx, cancel := x.deadline(ctx, s)
	defer cancel()
	err := x.run(ctx)
	if err == nil {
		if err = x.events.End(x.account()); err != nil {
			err = fmt.Errorf("%w: %w", errClientGone, err)
		}
	}
	if p.finish(s, x, err) {
		return false
	}
	if err != nil && s.End() != nil { // the answer that says so
		return false
	}
	return s.keep
}

// watch reads the byte that says more of a client than its stream does: it has gone, or
// sends its next request. Once the answer is over, the connection goes back to net/http
// with the first byte of that.
func (p *Proxy) watch(c *admission.Connection, gone context.CancelCauseFunc, over <-chan bool) {
	if len(c.Ahead) == 0 {
		b := make([]byte, 1)
		n, err := c.TCPConn.Read(b)
		if err != nil {
			gone(fmt.Errorf("%w: %w", errClientGone, err))
		}
		c.Ahead = b[:n]
	}
	whole := <-over
	p.connections.Leave(c)
	if whole && len(c.Ahead) > 0 && p.connections.Back.Give(c) {
		return
	}
	_ = c.Close()
	p.http.ConnState(c, http.StateClosed)
}
