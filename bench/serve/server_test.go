package serve

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/bench/client"
)

// TestProbeEnds: a server that is healthy, and refuses or never answers the first request, is not
// asked for ever.
func TestProbeEnds(t *testing.T) {
	for want, behave := range map[string]http.HandlerFunc{
		"HTTP 429 Too Many Requests: later": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "later", http.StatusTooManyRequests) },
		"(--ready-check-timeout-sec)":       func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); <-r.Context().Done() },
	} {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"data":[{"id":"m"}]}`) })
		mux.HandleFunc("POST /v1/completions", behave)
		f := httptest.NewServer(mux)
		target := Server(Asking{Config: client.Config{URL: f.URL}, Ready: 2 * time.Second})
		_, err := target.Open(t.Context())
		if err == nil || !strings.Contains(err.Error(), "it did not answer a first request within 2s") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "interrupted") {
			t.Errorf("%v, want %q", err, want)
		}
		target.Close()
		f.CloseClientConnections()
		f.Close()
	}
}

// TestPages: a server that several of the URLs name is counted once, and given its key by any of its names.
func TestPages(t *testing.T) {
	how := Asking{Config: client.Config{URLs: []string{"http://localhost:8000", "http://127.0.0.1:8000/v1", "http://127.0.0.1:8001"}, APIKey: "k"}}
	s := server{how: how, client: client.New(how.Config)}
	defer s.client.Close()
	var urls []string
	for _, p := range s.pages() {
		urls = append(urls, p.URL)
	}
	if want := []string{"http://localhost:8000/metrics", "http://127.0.0.1:8001/metrics"}; !slices.Equal(urls, want) {
		t.Errorf("%q, want %q", urls, want)
	}
	s.how.Metrics = []string{"http://127.0.0.1:8000/metrics", "http://localhost:9000/metrics"}
	if p := s.pages(); p[0].Header.Get("Authorization") == "" || p[1].Header.Get("Authorization") != "" {
		t.Errorf("the key goes to %v", p)
	}
}
