package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/bench/client/clienttest"
)

func TestReady(t *testing.T) {
	var asked atomic.Int32
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	// The time is over once the second answer has been asked for again: until then the
	// server's reason may not have come.
	f := &clienttest.Server{Asked: func() {
		if asked.Add(1) == 5 {
			cancel(errors.New("not ready within 60ms"))
		}
	}}
	f.Unhealthy.Store(2)
	clienttest.NewServer(t, f)
	c := New(Config{URL: f.URL})
	defer c.Close()
	model, err := c.Ready(ctx)
	if err != nil || model != "fake-7b" || asked.Load() != 3 {
		t.Fatalf("Ready = %q, %v, after asking %d times", model, err, asked.Load())
	}

	f.Unhealthy.Store(1 << 30)
	_, err = c.Ready(ctx)
	if err == nil || !strings.Contains(err.Error(), "not ready within 60ms") || !strings.Contains(err.Error(), "no prefill node") {
		t.Fatalf("Ready of an unhealthy server = %v, want the deadline and the server's reason", err)
	}
}

// TestReadyWorkers: all of several workers are to be there, and not the first alone.
func TestReadyWorkers(t *testing.T) {
	var asked atomic.Int32
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	good := clienttest.NewServer(t, &clienttest.Server{Asked: func() {
		if asked.Add(1) == 3 { // the other was asked for twice
			cancel(errors.New("not ready in time"))
		}
	}})
	gone := clienttest.NewServer(t, &clienttest.Server{})
	gone.Close()
	c := New(Config{URLs: []string{good.URL, gone.URL}})
	defer c.Close()
	if _, err := c.Ready(ctx); err == nil || !strings.Contains(err.Error(), "not ready in time") || !strings.Contains(err.Error(), "worker "+gone.URL) {
		t.Errorf("with a worker that is gone: %v", err)
	}
	both := New(Config{URLs: []string{good.URL, good.URL}})
	defer both.Close()
	if model, err := both.Ready(t.Context()); err != nil || model != "fake-7b" {
		t.Errorf("%q, %v", model, err)
	}
}

// TestReadyEndlessError: what a server says with its status is waited for a while only.
func TestReadyEndlessError(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		unending(w, "no key ")
	}))
	defer s.Close()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("not ready within a minute"))
	defer cancel()
	c := New(Config{URL: s.URL})
	defer c.Close()
	if _, err := c.Ready(ctx); err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "it wants an API key") || !strings.Contains(err.Error(), "HTTP 401 Unauthorized: no key") {
		t.Errorf("Ready = %v", err)
	}
}

// TestReadyCompressed: nor does it read what is compressed.
func TestReadyCompressed(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		fmt.Fprint(w, "\x1f\x8b\x08\x00\x00")
	}))
	defer s.Close()
	c := New(Config{URL: s.URL})
	defer c.Close()
	if _, err := c.Get(t.Context(), "/v1/models"); err == nil || !strings.Contains(err.Error(), "/v1/models: the answer is compressed (Content-Encoding: gzip)") {
		t.Errorf("Get = %v", err)
	}
}
