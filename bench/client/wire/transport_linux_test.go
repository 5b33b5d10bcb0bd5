package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// open is a transport that ends with the test, with nothing left of it.
func open(t *testing.T, cfg Config) *Transport {
	t.Helper()
	tr, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return tr
}

// serving is a server, where it is, and how many connections it has had.
func serving(t *testing.T, h http.HandlerFunc) (address string, connections *atomic.Int32) {
	t.Helper()
	connections = new(atomic.Int32)
	s := httptest.NewUnstartedServer(h)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), connections
}

func post(body string) []byte {
	return fmt.Appendf(nil, "POST /x HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// echo answers with what it was sent.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%d:%.5s", len(body), body)
}

// TestDo: requests of one byte and of more than the sockets hold, one after the other on one
// connection and many at once.
func TestDo(t *testing.T) {
	address, connections := serving(t, echo)
	tr := open(t, Config{Rest: time.Minute})
	for _, body := range []string{"x", strings.Repeat("long ", 4<<20), "again"} {
		var got taken
		if err := tr.Do(t.Context(), address, post(body), &got); err != nil || got.status != 200 || string(got.body) != fmt.Sprintf("%d:%.5s", len(body), body) {
			t.Fatalf("%d bytes: %d %q, %v", len(body), got.status, got.body, err)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections for three requests in a row", n)
	}
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			var got taken
			body := fmt.Sprint(i)
			if err := tr.Do(t.Context(), address, post(body), &got); err != nil || string(got.body) != fmt.Sprintf("%d:%s", len(body), body) {
				t.Errorf("request %d: %q, %v", i, got.body, err)
			}
		})
	}
	all.Wait()
}

// TestStreamOfPieces: each piece comes when it was sent, with the time of it. How long the
// kernel had had it is known, but not of the first ones: the kernel begins to stamp what it
// receives a little after the first socket on the machine has asked for it.
func TestStreamOfPieces(t *testing.T) {
	next := make(chan bool)
	address, _ := serving(t, func(w http.ResponseWriter, _ *http.Request) {
		for range next {
			fmt.Fprint(w, "piece ")
			w.(http.Flusher).Flush()
		}
	})
	tr := open(t, Config{})
	h := pieces{came: make(chan piece, 1)}
	over := make(chan error, 1)
	go func() { over <- tr.Do(t.Context(), address, post(""), h) }()
	last := time.Duration(-1)
	began, stamped := time.Now(), 0
	for n := 0; n < 3 || stamped < 3 && time.Since(began) < 30*time.Second; n++ {
		next <- true
		p := <-h.came
		if p.at <= last {
			t.Fatalf("a piece at %v after one at %v", p.at, last)
		}
		last = p.at
		if p.late > 0 {
			stamped++
		}
	}
	close(next)
	if err := <-over; err != nil || stamped < 3 {
		t.Errorf("%v; %d pieces with the kernel's time", err, stamped)
	}
}

// A piece of a stream: when it came, and how long the kernel had had it.
type piece struct{ at, late time.Duration }

type pieces struct{ came chan piece }

func (p pieces) Head(*http.Response, time.Duration) error { return nil }

func (p pieces) Body(_ []byte, at, late time.Duration) error {
	p.came <- piece{at, late}
	return nil
}

// TestConnectionEnds: a connection that the server closes, or that has rested too long, is
// not used again, and no request notices.
func TestConnectionEnds(t *testing.T) {
	address, connections := serving(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		echo(w, r)
	})
	tr := open(t, Config{})
	for range 3 {
		if err := tr.Do(t.Context(), address, post("x"), &taken{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := connections.Load(); n != 3 {
		t.Errorf("%d connections for three requests whose answers say close", n)
	}
	address, connections = serving(t, echo)
	now := new(atomic.Int64)
	tr = open(t, Config{Rest: time.Second, Now: func() time.Duration { return time.Duration(now.Load()) }})
	for i := range 3 {
		if err := tr.Do(t.Context(), address, post("x"), &taken{}); err != nil {
			t.Fatal(err)
		}
		now.Add(int64(time.Second) - 1)
		if i == 1 {
			now.Add(1)
		}
	}
	if n := connections.Load(); n != 2 {
		t.Errorf("%d connections, want a second one after a second's rest", n)
	}
}

// TestFaults: what goes wrong is said, whatever it is, and the connection is not used again.
func TestFaults(t *testing.T) {
	refused, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused.Close()
	failed := errors.New("the handler's own")
	for _, c := range []struct {
		name   string
		serve  http.HandlerFunc
		handle taken
		want   error
	}{
		{"nobody there", nil, taken{}, ErrConnect},
		{"it dies before an answer", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, taken{}, errGone},
		{"it dies in its answer", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "half")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, taken{}, io.ErrUnexpectedEOF},
		{"the handler has enough", echo, taken{fail: failed}, failed},
		{"it speaks something else", func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				fmt.Fprint(c, "what?\r\n\r\n")
				c.Close()
			}
		}, taken{}, ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			address := refused.Addr().String()
			if c.serve != nil {
				address, _ = serving(t, c.serve)
			}
			tr := open(t, Config{})
			if err := tr.Do(t.Context(), address, post("x"), &c.handle); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			tr.mu.Lock()
			defer tr.mu.Unlock()
			for addr, list := range tr.idle {
				if len(list) > 0 {
					t.Errorf("the connection to %v is kept", addr)
				}
			}
		})
	}
}

// TestGivenUp: a request ends with its context, with its transport, and cannot begin after
// either.
func TestGivenUp(t *testing.T) {
	arrived, release := make(chan bool, 2), make(chan bool)
	address, _ := serving(t, func(_ http.ResponseWriter, _ *http.Request) {
		arrived <- true
		<-release
	})
	defer close(release)
	tr := open(t, Config{})
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	over := make(chan error, 1)
	go func() { over <- tr.Do(ctx, address, post("x"), &taken{}) }()
	<-arrived
	cancel(enough)
	if err := <-over; !errors.Is(err, enough) {
		t.Errorf("with its context: %v", err)
	}
	if err := tr.Do(ctx, address, post("x"), &taken{}); !errors.Is(err, enough) {
		t.Errorf("after its context: %v", err)
	}
	go func() { over <- tr.Do(t.Context(), address, post("x"), &taken{}) }()
	<-arrived
	tr.Close()
	if err := <-over; !errors.Is(err, ErrClosed) {
		t.Errorf("with the transport: %v", err)
	}
	if err := tr.Do(t.Context(), address, post("x"), &taken{}); !errors.Is(err, ErrClosed) {
		t.Errorf("after the transport: %v", err)
	}
}

// TestNames: a name with several addresses is asked for once, and the address that answered
// comes first from then on.
func TestNames(t *testing.T) {
	address, _ := serving(t, echo)
	_, port, _ := net.SplitHostPort(address)
	tr := open(t, Config{})
	for range 2 {
		if err := tr.Do(t.Context(), net.JoinHostPort("localhost", port), post("x"), &taken{}); err != nil {
			t.Fatal(err)
		}
	}
	known := tr.known[net.JoinHostPort("localhost", port)]
	if len(known) == 0 || !known[0].Addr().Is4() {
		t.Errorf("known: %v, want 127.0.0.1 first: the server has no ::1", known)
	}
	for _, bad := range []string{"nowhere", "127.0.0.1:http", "127.0.0.1:99999"} {
		if err := tr.Do(t.Context(), bad, post("x"), &taken{}); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

// TestBusy: a poller that naps instead of being woken for each piece loses none of many
// streams' pieces, and has the last ones when there are few.
func TestBusy(t *testing.T) {
	const streams, pieces = 40, 300
	address, _ := serving(t, func(w http.ResponseWriter, _ *http.Request) {
		for range pieces {
			fmt.Fprint(w, "piece ")
			w.(http.Flusher).Flush()
		}
	})
	tr := open(t, Config{Pollers: 1})
	var all sync.WaitGroup
	for i := range streams {
		all.Go(func() {
			var got taken
			if err := tr.Do(t.Context(), address, post(""), &got); err != nil || len(got.body) != pieces*len("piece ") {
				t.Errorf("stream %d: %d bytes, %v", i, len(got.body), err)
			}
		})
	}
	all.Wait()
}

// TestIsBusy: by the events of the millisecond before.
func TestIsBusy(t *testing.T) {
	now := time.Duration(0)
	p := &poller{transport: &Transport{cfg: Config{Now: func() time.Duration { return now }}}}
	for _, c := range []struct {
		at     time.Duration
		events int
		want   bool
	}{
		{time.Millisecond, 1, false},
		{1100 * time.Microsecond, busyEvents, false},
		{2 * time.Millisecond, 1, true},
		{2900 * time.Microsecond, 0, true},
		{3 * time.Millisecond, 3, false},
		{3500 * time.Microsecond, busyEvents, false},
		{5 * time.Millisecond, 1, false}, // of a long pause nothing is known
	} {
		if now = c.at; p.isBusy(c.events) != c.want {
			t.Errorf("at %v: busy is %t", c.at, !c.want)
		}
	}
}
