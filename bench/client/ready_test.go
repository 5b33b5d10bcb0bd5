package client

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

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
