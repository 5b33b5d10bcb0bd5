package incast

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"kvferry/transport"
)

// serve runs a target and returns what reaches it.
func serve(t *testing.T, initiators int) (info transport.SegmentInfo) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	over := make(chan error, 1)
	go func() {
		err := Serve(ctx, "127.0.0.1", "", initiators, in)
		in.CloseWithError(err)
		over <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &info)
	}
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// TestLoad: all initiators move something, from addresses of their own, and so does the probe.
func TestLoad(t *testing.T) {
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		l := Load{
			Target: serve(t, 3), Op: op, From: []string{"127.0.0.2", "127.0.0.3", "127.0.0.4"}, Probe: "127.0.0.5",
			Block: 64 << 10, Depth: 2, Warmup: time.Millisecond, Duration: 50 * time.Millisecond,
		}
		for {
			s, err := l.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(s.Bytes) != 3 || s.Seconds < l.Duration.Seconds() || s.Probes == 0 || s.P50MS <= 0 || s.P99MS < s.P50MS {
				t.Fatalf("%+v", s)
			}
			if s.MinMax > 0 {
				break
			}
			if l.Duration *= 2; l.Duration > time.Minute { // a busy machine takes longer
				t.Fatalf("somebody has moved nothing: %v", s.Bytes)
			}
		}
	}
}

// TestLoadFails: what keeps an initiator from its blocks ends the run, and so does its context.
func TestLoadFails(t *testing.T) {
	l := Load{Target: serve(t, 1), Op: transport.Read, From: []string{"127.0.0.2", "127.0.0.3"}, Probe: "127.0.0.4", Block: 64 << 10, Depth: 1, Warmup: time.Hour, Duration: time.Hour}
	bad := l
	bad.Target.Rails = slices.Clone(l.Target.Rails)
	bad.Target.Rails[0].Key++
	if s, err := bad.Run(t.Context()); err == nil {
		t.Errorf("%+v with a key that opens nothing", s)
	}
	l.From = []string{"192.0.2.1"} // of nobody (RFC 5737)
	if s, err := l.Run(t.Context()); err == nil {
		t.Errorf("%+v from an address that is not ours", s)
	}
	l.From, l.Target = []string{"127.0.0.2"}, serve(t, 1)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, io.ErrUnexpectedEOF)
	defer cancel()
	if s, err := l.Run(ctx); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%+v, %v", s, err)
	}
}
