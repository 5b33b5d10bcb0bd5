package clienttest

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
)

// Bodies are the POST requests that a Tap has seen, in their order.
type Bodies struct {
	mu      sync.Mutex
	bodies  []string
	headers []http.Header
}

// All are the bodies so far.
func (b *Bodies) All() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bodies
}

// Headers are the headers of those requests.
func (b *Bodies) Headers() []http.Header {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.headers
}

// Tap stands before a server until the end of the test, and notes what is sent. It returns
// its own URL.
func Tap(t *testing.T, server string, seen *Bodies) string {
	t.Helper()
	to, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	tap := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			seen.mu.Lock()
			seen.bodies = append(seen.bodies, string(body))
			seen.headers = append(seen.headers, r.Header.Clone())
			seen.mu.Unlock()
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(tap.Close)
	return tap.URL
}
