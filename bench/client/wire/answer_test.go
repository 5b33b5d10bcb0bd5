package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A taken is what a handler was told.
type taken struct {
	status int
	header http.Header
	body   []byte
	fail   error // of Body
}

func (t *taken) Head(r *http.Response, _ time.Duration) error {
	t.status, t.header = r.StatusCode, r.Header
	return nil
}

func (t *taken) Body(p []byte, _, _ time.Duration) error {
	t.body = append(t.body, p...)
	return t.fail
}

// feed has an answer read from pieces; the last is followed by the connection's end.
func feed(pieces ...[]byte) (t taken, over bool, err error) {
	var a answer
	for _, p := range pieces {
		if over, err = a.feed(p, 0, 0, &t); err != nil || over {
			return t, over, err
		}
	}
	return t, over, a.closed()
}

const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

func TestAnswer(t *testing.T) {
	for _, c := range []struct {
		name, text, body string
		status           int
		err              error
	}{
		{"of a length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, nil},
		{"of none", "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "", 404, nil},
		{"without a body", "HTTP/1.1 204 No Content\r\n\r\n", "", 204, nil},
		{"to the end of the connection", "HTTP/1.0 200 OK\r\n\r\nall of it", "all of it", 200, nil},
		{"lines of LF", "HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", "hi", 200, nil},
		{"in chunks", chunked + "5\r\nhello\r\n1;x=y\r\n!\r\n0\r\n\r\n", "hello!", 200, nil},
		{"in chunks with a trailer", chunked + "A\r\n0123456789\r\n00\r\nX: y\r\n\r\n", "0123456789", 200, nil},
		{"after early hints", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n.", ".", 200, nil},
		{"after 100", "HTTP/1.1 100 Continue\r\n\r\n" + chunked + "0\r\n\r\n", "", 200, nil},
		{"cut in the head", "HTTP/1.1 200 OK\r\nContent-", "", 0, io.ErrUnexpectedEOF},
		{"cut in the body", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", "hel", 200, io.ErrUnexpectedEOF},
		{"cut in a chunk", chunked + "5\r\nhel", "hel", 200, io.ErrUnexpectedEOF},
		{"cut before the last chunk", chunked + "5\r\nhello\r\n", "hello", 200, io.ErrUnexpectedEOF},
		{"no HTTP", "SSH-2.0-OpenSSH_9.2\r\n\r\n", "", 0, ErrMalformed},
		{"no size", chunked + "\r\nhello", "", 200, ErrMalformed},
		{"a size that is none", chunked + "5g\r\nhello", "", 200, ErrMalformed},
		{"a size of sixteen digits", chunked + "8000000000000000\r\n", "", 200, ErrMalformed},
		{"more than the chunk", chunked + "2\r\nhello\r\n", "he", 200, ErrMalformed},
		{"a header that does not end", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxHead), "", 0, ErrHeadTooLong},
		{"a chunk's line that does not end", chunked + "5;" + strings.Repeat("x", maxHead+1), "", 200, ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			whole, _, err := feed([]byte(c.text))
			if !errors.Is(err, c.err) || string(whole.body) != c.body || whole.status != c.status {
				t.Errorf("whole: %d %q, %v, want %d %q, %v", whole.status, whole.body, err, c.status, c.body, c.err)
			}
			single, _, err := feed(bytes.SplitAfter([]byte(c.text), nil)...)
			if !errors.Is(err, c.err) || string(single.body) != c.body || single.status != c.status {
				t.Errorf("byte by byte: %d %q, %v", single.status, single.body, err)
			}
		})
	}
}

// FuzzAnswer: however an answer is cut it is the same, and where net/http can read one to
// its end this can, and reads the same.
func FuzzAnswer(f *testing.F) {
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", chunked + "5\r\nhello\r\n1;x=y\r\n!\r\n0\r\nX: y\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 No\r\nConnection: close\r\n\r\nrest", "HTTP/1.1 200 OK\n\n", chunked + "fffffffffffffff\r\n",
	} {
		f.Add([]byte(text), 30)
	}
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		if cut < 0 || cut > len(text) {
			cut = len(text) / 2
		}
		whole, over, err := feed(text)
		parts, over2, err2 := feed(text[:cut], text[cut:])
		if whole.status != parts.status || !bytes.Equal(whole.body, parts.body) || over != over2 || fmt.Sprint(err) != fmt.Sprint(err2) {
			t.Fatalf("cut at %d: %+v, %t, %v; whole: %+v, %t, %v", cut, parts, over2, err2, whole, over, err)
		}
		if err != nil {
			return
		}
		in := bufio.NewReader(bytes.NewReader(text))
		r, err := http.ReadResponse(in, &http.Request{Method: http.MethodPost})
		if err != nil || r.StatusCode/100 == 1 {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err == nil && (r.StatusCode != whole.status || !bytes.Equal(body, whole.body)) {
			t.Fatalf("%d %q, net/http has %d %q", whole.status, whole.body, r.StatusCode, body)
		}
	})
}
