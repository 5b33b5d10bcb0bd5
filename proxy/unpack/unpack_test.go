package unpack

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

func packed(t *testing.T, encoding, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&b)
	if encoding == "deflate" {
		w = zlib.NewWriter(&b)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestUnpack(t *testing.T) {
	text := strings.Repeat("a long prompt, ", 1000)
	for _, encoding := range []string{"gzip", "x-gzip", "GZIP", "deflate"} {
		f, err := Of(http.Header{"Content-Encoding": {encoding}})
		if err != nil {
			t.Fatal(err)
		}
		body := packed(t, encoding, text)
		for _, most := range []int64{int64(len(text)) + 1, 100} { // a bomb ends at the limit
			var b bytes.Buffer
			if err := f(&b, bytes.NewReader(body), most); err != nil || b.String() != text[:min(int64(len(text)), most)] {
				t.Errorf("%s, at most %d: %d bytes, %v", encoding, most, b.Len(), err)
			}
		}
		for name, broken := range map[string][]byte{"no data": nil, "another format": []byte("{}{}{}{}{}{}{}{}"), "cut short": body[:len(body)-9]} {
			if err := f(io.Discard, bytes.NewReader(broken), 1<<20); err == nil {
				t.Errorf("%s, %s: taken", encoding, name)
			}
		}
		for _, n := range []int{0, 1, len(body) / 2} {
			if err := f(io.Discard, bytes.NewReader(body[:n]), 1<<20); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s, %d bytes of it: %v", encoding, n, err)
			}
		}
	}
	for _, encoding := range []string{"", "identity"} {
		if f, err := Of(http.Header{"Content-Encoding": {encoding}}); f != nil || err != nil {
			t.Errorf("%q: %v", encoding, err)
		}
	}
	if _, err := Of(http.Header{"Content-Encoding": {"br"}}); err == nil || !strings.Contains(err.Error(), `"br" is not read here`) {
		t.Error(err)
	}
}
