// Package chunks writes an HTTP/1.1 answer to a connection that was taken from net/http: a
// stream needs no more than its chunks, and net/http's own buffers were half of what an open
// one took.
//
// The connection stays its taker's: a Writer never closes it, and reads nothing. When an answer
// has ended and [Writer.Keep] says so, the taker may serve the next request on it; after an error,
// or an answer without End, it has to be closed, so that no client takes it for whole.
package chunks

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// A Writer writes an answer to a connection that was taken from net/http. It is an
// http.ResponseWriter that an http.ResponseController can set a deadline of. What is written
// stays here until FlushError or End. One goroutine uses it. What HTTP/1.1 asks of an answer
// that is nothing but chunks (RFC 9112, 7.1) is all that it knows.
type Writer struct {
	conn   Conn
	header http.Header
	plain  bool // HTTP/1.0: no chunks
	keep   bool // the client may send its next request over the connection

	begun   bool // the status is out, or about to be
	chunked bool
	buffer  *[]byte // not yet written; nil if nothing is
}

// A Conn is what a Writer needs of a connection.
type Conn interface {
	io.Writer
	SetWriteDeadline(time.Time) error
}

// buffers are shared by all Writers: a stream has one for as
// long as something waits to be written, which is the length of a write.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// NewWriter answers r over conn, with that header so far.
func NewWriter(conn Conn, r *http.Request, header http.Header) *Writer {
	return &Writer{conn: conn, header: header, plain: !r.ProtoAtLeast(1, 1), keep: r.ProtoAtLeast(1, 1) && !r.Close}
}

// Header implements [http.ResponseWriter].
func (s *Writer) Header() http.Header { return s.header }

// SetWriteDeadline is for an [http.ResponseController].
func (s *Writer) SetWriteDeadline(at time.Time) error { return s.conn.SetWriteDeadline(at) }

// WriteHeader implements [http.ResponseWriter]. Without a Content-Length the answer is in
// chunks, or in HTTP/1.0 as long as the connection lasts.
func (s *Writer) WriteHeader(status int) {
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
	for _, name := range slices.Sorted(maps.Keys(s.header)) {
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

// Write implements [io.Writer]: one chunk. It only keeps p's bytes, and never fails; a connection
// that is broken is the error of FlushError.
func (s *Writer) Write(p []byte) (int, error) {
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

// Keep reports whether the client may send its next request over the connection, once this
// answer has ended well.
func (s *Writer) Keep() bool { return s.keep }

// waiting is what is not yet written.
func (s *Writer) waiting() *[]byte {
	if s.buffer == nil {
		s.buffer = buffers.Get().(*[]byte)
		*s.buffer = (*s.buffer)[:0]
	}
	return s.buffer
}

// FlushError writes what waits, as one write to the connection, and gives the buffer back: between
// two tokens a stream holds none.
func (s *Writer) FlushError() error {
	if s.buffer == nil {
		return nil
	}
	_, err := s.conn.Write(*s.buffer)
	buffers.Put(s.buffer)
	s.buffer = nil
	return err
}

// End writes what waits and the end of the answer: the chunk of length 0, without trailers.
func (s *Writer) End() error {
	s.WriteHeader(http.StatusOK)
	if s.chunked {
		b := s.waiting()
		*b = append(*b, "0\r\n\r\n"...)
	}
	return s.FlushError()
}
