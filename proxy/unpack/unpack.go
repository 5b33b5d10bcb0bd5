// Package unpack reads bodies of HTTP requests that were compressed, as far as they may be
// long: a body of 4 KiB can unpack to 4 MiB and more.
package unpack

import (
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// A Func unpacks what comes from from into to, and ends without an error after most bytes,
// however many there are.
type Func func(to io.Writer, from io.Reader, most int64) error

// Of is how a body with that header is unpacked; nil if it was not compressed. An encoding
// that is not known is an error that says which are.
func Of(header http.Header) (Func, error) {
	switch encoding := strings.ToLower(header.Get("Content-Encoding")); encoding {
	case "", "identity":
		return nil, nil
	case "gzip", "x-gzip":
		return with(func(from io.Reader) (io.Reader, error) { return gzip.NewReader(from) }), nil
	case "deflate": // zlib's format (RFC 9110, 8.4.1.2)
		return with(func(from io.Reader) (io.Reader, error) { return zlib.NewReader(from) }), nil
	default:
		return nil, fmt.Errorf("Content-Encoding: %.60q is not read here; use gzip or deflate, or send the body as it is", encoding)
	}
}

func with(open func(io.Reader) (io.Reader, error)) Func {
	return func(to io.Writer, from io.Reader, most int64) error {
		plain, err := open(from)
		if err == nil {
			_, err = io.Copy(to, io.LimitReader(plain, most))
		}
		if errors.Is(err, io.EOF) { // nothing came at all
			err = io.ErrUnexpectedEOF
		}
		return err
	}
}
