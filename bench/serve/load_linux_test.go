package serve

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"kvferry/load"
)

// stopping is a target that ends the run's context once it is open.
type stopping struct {
	scripted
	cancel func()
}

func (s *stopping) Open(ctx context.Context) (Facts, error) {
	s.cancel()
	return s.scripted.Open(ctx)
}

// TestPipe: who waits for a pipe that nobody writes to is not kept from ending, and a pipe that would
// be read again is refused.
func TestPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	target := &stopping{scripted: scripted{facts: virtual(), answer: quick}, cancel: cancel}
	cfg := configOf(t, target)
	cfg.Load = load.Spec{Kind: load.Traced, File: pipe, Speed: 1}
	over := make(chan error, 1)
	go func() { over <- Run(ctx, cfg) }()
	select {
	case err := <-over:
		if !errors.Is(err, context.Canceled) || target.closed != 1 || len(target.runs) != 0 {
			t.Errorf("%v; %d times closed, runs %v", err, target.closed, target.runs)
		}
	case <-time.After(time.Minute):
		t.Error("it waits for the pipe")
	}
	// Whoever still waits for a writer has one now, which ends.
	if w, err := os.OpenFile(pipe, os.O_RDWR, 0); err != nil {
		t.Error(err)
	} else {
		defer w.Close()
	}
	cfg.Warmups = 1
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "File: it is a pipe, which can be read once") {
		t.Errorf("with a warm-up: %v", err)
	}
}
