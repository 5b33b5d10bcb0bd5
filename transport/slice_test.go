package transport_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"kvferry/internal/clock/clocktest"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// A holder is a rail that takes slices and leaves them to the test.
type holder struct {
	transport.Rail
	posted chan *transport.Slice
}

func (h holder) Dial(ctx context.Context, addr string) (transport.Endpoint, error) {
	ep, err := h.Rail.Dial(ctx, addr)
	return holding{ep, h.posted}, err
}

type holding struct {
	transport.Endpoint
	posted chan *transport.Slice
}

func (h holding) Post(slices []*transport.Slice) (int, error) {
	for _, s := range slices {
		h.posted <- s
	}
	return len(slices), nil
}

// TestSecondCompletion: a slice that a broken rail completes again ends nothing a second
// time. The log says so once, or a panic does where tests run under the race detector.
func TestSecondCompletion(t *testing.T) {
	var log clocktest.Log
	n := transporttest.NewNetwork()
	h := holder{n.Rail("a"), make(chan *transport.Slice, 10)}
	a := engine(t, transport.Config{Rails: []transport.Rail{h}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	remote := register(t, engine(t, transport.Config{Rails: []transport.Rail{n.Rail("b")}}), "remote", 64)
	local := register(t, a, "local", 64).Bytes()
	target, err := a.Open(remote.Info())
	if err != nil {
		t.Fatal(err)
	}
	b := a.Submit(target, []transport.Request{{Op: transport.Write, Local: local[:10]}, {Op: transport.Write, Local: local[10:20]}}, transport.BatchOptions{})
	first, second := <-h.posted, <-h.posted
	first.Complete(nil)
	panics := false
	for range 2 {
		func() {
			defer func() {
				if why := recover(); why != nil {
					panics = strings.Contains(why.(string), "twice")
				}
			}()
			transport.CompleteAll([]*transport.Slice{first}, nil)
		}()
	}
	if b.Status() != transport.InFlight {
		t.Errorf("with one of two slices under way the batch has %v", b.Status())
	}
	second.Complete(nil)
	if <-b.Done(); b.Err() != nil {
		t.Error(b.Err())
	}
	if lines := strings.Count(log.String(), "has completed a write of 10 bytes at offset 0 twice"); !panics && lines != 1 || panics && lines != 0 {
		t.Errorf("panics: %t; the log: %s", panics, log.String())
	}
	var ends []error
	s := transport.NewSlice(transport.Read, nil, 1, 0, func(_ *transport.Slice, err error) { ends = append(ends, err) })
	s.Complete(nil)
	s.Complete(nil)
	if len(ends) != 2 || ends[0] != nil || ends[1] == nil {
		t.Errorf("a rail's test hears of %v", ends)
	}
}
