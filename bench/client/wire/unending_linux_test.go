package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// unending accepts connections, writes before once on each, and then the text again and again as fast
// as it is taken, until the test ends.
func unending(t *testing.T, before, text string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, err := io.WriteString(c, before)
				for err == nil {
					_, err = io.WriteString(c, text)
				}
			}()
		}
	}()
	return l.Addr().String()
}

// TestServerThatWritesWithoutPause: the context of a request, and Close, end it while its server writes
// as fast as it is read, and another connection of the same poller is served meanwhile.
func TestServerThatWritesWithoutPause(t *testing.T) {
	piece := make([]byte, 64<<10)
	address := unending(t, "HTTP/1.1 200 OK\r\n\r\n", string(piece))
	tr := open(t, Config{Pollers: 1})
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	over := make(chan error, 2)
	go func() { over <- tr.Do(ctx, address, post("x"), discard{}) }()
	go func() { over <- tr.Do(t.Context(), address, post("x"), discard{}) }()
	other, _ := serving(t, echo)
	for range 20 {
		if err := tr.Do(t.Context(), other, post("x"), &taken{}); err != nil {
			t.Fatal(err)
		}
	}
	cancel(enough)
	within(t, over, enough)
	go tr.Close()
	within(t, over, ErrClosed)
}

// TestInformationalAnswersWithoutEnd: a server that sends heads of status 1xx for ever has sent no
// answer.
func TestInformationalAnswersWithoutEnd(t *testing.T) {
	address := unending(t, "", "HTTP/1.1 100 Continue\r\n\r\n")
	over := make(chan error, 1)
	tr := open(t, Config{})
	go func() { over <- tr.Do(t.Context(), address, post("x"), &taken{}) }()
	within(t, over, ErrMalformed)
}

// discard is a handler that keeps nothing.
type discard struct{}

func (discard) Head(*http.Response, time.Duration) error { return nil }

func (discard) Body([]byte, time.Duration, time.Duration) error { return nil }

// within wants an error, and soon.
func within(t *testing.T, over <-chan error, want error) {
	t.Helper()
	select {
	case err := <-over:
		if !errors.Is(err, want) {
			t.Fatalf("%v, want %v", err, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("no end within 10 s, want %v", want)
	}
}
