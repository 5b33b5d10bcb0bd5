package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// A Handler takes the answer to one request, in the order in which it arrives. Its methods
// are called by a poller and must not wait. An error ends the request: it is what Do
// returns, and the connection is closed.
type Handler interface {
	// Head is told of the status and the header, once. The answer's Body is not to be read.
	Head(answer *http.Response, at time.Duration) error
	// Body is told of a piece of the body, without the marks of chunked encoding. at is when
	// it was read, by Config.Now, and late how long the kernel had had it then; 0 if that is
	// not known.
	Body(piece []byte, at time.Duration, late time.Duration) error
}

// maxHead bounds the status line and the header of an answer, as net/http's server does
// that of a request, by a sixteenth of it: nobody has 64 KB of header to say.
const maxHead = 64 << 10

// maxEarly bounds the answers of status 1xx before the answer itself. net/http's client takes five.
const maxEarly = 64

var (
	// ErrHeadTooLong is of an answer whose header does not end.
	ErrHeadTooLong = fmt.Errorf("header of more than %d bytes", maxHead)
	// ErrMalformed is of an answer that is not HTTP/1.1.
	ErrMalformed = errors.New("malformed HTTP")

	errChunk = fmt.Errorf("%w: chunked encoding", ErrMalformed)
	errExtra = errors.New("the server sent more than its answer")
)

// The states of an answer: what comes next.
const (
	atHead = iota
	atBody // of a known length
	atRest // up to the connection's end
	atSize // of a chunk, its line
	atChunk
	atChunkEnd // the line's end behind a chunk
	atTrailer
	atEnd
)

// An answer reads one HTTP/1.1 response from pieces of any size.
type answer struct {
	state int
	line  []byte // of a head, or of a line, that has not ended
	left  int64  // of the body, or of the chunk
	last  bool   // the connection is not to be used again
	early int    // answers of status 1xx so far
}

// feed takes what was read. over says that the answer ends with it.
func (a *answer) feed(p []byte, at time.Duration, late time.Duration, h Handler) (over bool, err error) {
	for len(p) > 0 {
		switch a.state {
		case atHead:
			p, err = a.head(p, at, h)
		case atBody, atChunk:
			n := min(int64(len(p)), a.left)
			if a.left -= n; a.left == 0 && a.state == atBody {
				a.state = atEnd
			} else if a.left == 0 {
				a.state = atChunkEnd
			}
			err = h.Body(p[:n], at, late)
			p = p[n:]
		case atRest:
			err = h.Body(p, at, late)
			p = nil
		case atSize, atChunkEnd, atTrailer:
			p, err = a.chunkLine(p)
		case atEnd: // more than its answer: whatever it is, it is no answer to what comes next
			a.last = true
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	return a.state == atEnd, nil
}

// head takes bytes up to the empty line, and reads the head when it is whole.
func (a *answer) head(p []byte, at time.Duration, h Handler) (rest []byte, err error) {
	// The empty line may begin in what was there before.
	from := max(len(a.line)-3, 0)
	had := len(a.line)
	a.line = append(a.line, p[:min(len(p), maxHead+1-had)]...)
	end := headEnd(a.line[from:])
	if end < 0 {
		if len(a.line) > maxHead {
			return nil, ErrHeadTooLong
		}
		return nil, nil
	}
	end += from
	rest = p[end-had:]
	r, err := http.ReadResponse(bufio.NewReaderSize(bytes.NewReader(a.line[:end]), 512), &http.Request{Method: http.MethodPost})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	a.line = a.line[:0]
	if r.StatusCode/100 == 1 && r.StatusCode != http.StatusSwitchingProtocols {
		if a.early++; a.early > maxEarly {
			return nil, fmt.Errorf("%w: more than %d answers of status 1xx, and not the answer itself", ErrMalformed, maxEarly)
		}
		return rest, nil // 100 Continue, 103 Early Hints: the answer is still to come
	}
	a.last = r.Close
	switch {
	case len(r.TransferEncoding) > 0:
		a.state = atSize
	case r.ContentLength > 0:
		a.state, a.left = atBody, r.ContentLength
	case r.ContentLength == 0:
		a.state = atEnd
	default:
		a.state, a.last = atRest, true
	}
	return rest, h.Head(r, at)
}

// headEnd is where what follows an empty line begins, -1 if there is none. Lines may end in
// LF alone.
func headEnd(b []byte) int {
	for from := 0; ; {
		i := bytes.IndexByte(b[from:], '\n')
		if i < 0 {
			return -1
		}
		from += i + 1
		if next := bytes.TrimPrefix(b[from:], []byte("\r")); len(next) > 0 && next[0] == '\n' {
			return len(b) - len(next) + 1
		}
	}
}

// chunkLine takes a line of the chunked encoding: a chunk's size, the end of one, or a
// trailer, which is ignored.
func (a *answer) chunkLine(p []byte) (rest []byte, err error) {
	end := bytes.IndexByte(p, '\n')
	if end < 0 {
		a.line = append(a.line, p...)
		if len(a.line) > maxHead {
			return nil, fmt.Errorf("%w: a line of more than %d bytes", errChunk, maxHead)
		}
		return nil, nil
	}
	line := p[:end]
	if len(a.line) > 0 {
		a.line = append(a.line, line...)
		line = a.line
		a.line = a.line[:0]
	}
	line = bytes.TrimSuffix(line, []byte("\r"))
	switch a.state {
	case atChunkEnd:
		if len(line) > 0 {
			return nil, fmt.Errorf("%w: %.20q behind a chunk", errChunk, line)
		}
		a.state = atSize
	case atSize:
		if a.left, err = chunkSize(line); err != nil {
			return nil, err
		}
		if a.state = atChunk; a.left == 0 {
			a.state = atTrailer
		}
	case atTrailer:
		if len(line) == 0 {
			a.state = atEnd
		}
	}
	return p[end+1:], nil
}

// chunkSize reads the hexadecimal size, up to an extension.
func chunkSize(line []byte) (n int64, err error) {
	digits := 0
	for _, c := range line {
		var d byte
		switch {
		case '0' <= c && c <= '9':
			d = c - '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			d = c | 0x20 - 'a' + 10
		case digits > 0 && strings.ContainsRune("; \t", rune(c)):
			return n, nil
		default:
			return 0, fmt.Errorf("%w: a size of %.20q", errChunk, line)
		}
		n = n<<4 | int64(d)
		if digits++; digits > 15 {
			return 0, fmt.Errorf("%w: a size of %.20q", errChunk, line)
		}
	}
	if digits == 0 {
		return 0, fmt.Errorf("%w: no size", errChunk)
	}
	return n, nil
}

// closed says what the connection's end means: the answer's, or io.ErrUnexpectedEOF.
func (a *answer) closed() error {
	if a.state == atRest || a.state == atEnd {
		return nil
	}
	return io.ErrUnexpectedEOF
}

// reset makes room for the next answer of a connection.
func (a *answer) reset() { a.state, a.left, a.last, a.line, a.early = atHead, 0, false, a.line[:0], 0 }
