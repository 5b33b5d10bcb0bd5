//go:build linux

package shm

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// TestWithinSubmit: over this rail a small batch ends within Submit, and what its end submits does not go
// deeper and deeper.
func TestWithinSubmit(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	quiet := slog.New(slog.DiscardHandler)
	var engines [2]*transport.Engine
	var segs [2]*transport.Segment
	for i := range engines {
		e, err := transport.New(transport.Config{Rails: []transport.Rail{newRail(t)}, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		mem, release, err := Map(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = e.Close(); _ = release() }()
		if segs[i], err = e.Register("memory", mem, "*"); err != nil {
			t.Fatal(err)
		}
		engines[i] = e
	}
	target, err := engines[0].Open(segs[1].Info())
	if err != nil {
		t.Fatal(err)
	}
	local := segs[0].Bytes()[:4096]
	copy(local, bytes.Repeat([]byte{3}, 4096))
	reqs := []transport.Request{{Op: transport.Write, Local: local}}
	within := false
	for deadline := time.Now().Add(patience); !within; {
		b := engines[0].Submit(target, reqs, transport.BatchOptions{})
		select {
		case <-b.Done():
			within = true
		default: // connecting, or the goroutine that carried the one before is not done with it
			ends(t, b.Done(), "a batch")
		}
		if b.Err() != nil {
			t.Fatal(b.Err())
		}
		if time.Now().After(deadline) {
			t.Fatal("no batch ends within Submit")
		}
	}
	if !bytes.Equal(segs[1].Bytes()[:4096], local) {
		t.Error("it is not there")
	}
	const chain = 100_000 // calls of these in each other would not fit the stack
	over := make(chan struct{})
	var next func(*transport.Batch)
	left := chain
	next = func(b *transport.Batch) {
		if b != nil && b.Err() != nil {
			t.Error(b.Err())
		}
		if left--; left == 0 {
			close(over)
			return
		}
		engines[0].Submit(target, reqs, transport.BatchOptions{OnDone: next})
	}
	next(nil)
	ends(t, over, "the chain")
}
