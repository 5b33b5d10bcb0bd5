package wire

import (
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestClosedAtRest: the server closes a connection at rest, and the poller has not been told
// when the next request takes it: nothing of that is sent there.
func TestClosedAtRest(t *testing.T) {
	connections := new(atomic.Int32)
	s := httptest.NewUnstartedServer(http.HandlerFunc(echo))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	tr := open(t, Config{Rest: time.Hour})
	var got taken
	if err := tr.Do(t.Context(), s.Listener.Addr().String(), post("one"), &got); err != nil {
		t.Fatal(err)
	}
	tr.mu.Lock()
	var rested *conn
	for _, list := range tr.idle {
		rested = list[0]
	}
	tr.mu.Unlock()
	if err := unix.EpollCtl(rested.poller.fd, unix.EPOLL_CTL_DEL, rested.fd, nil); err != nil {
		t.Fatal(err)
	}
	s.CloseClientConnections()
	for deadline := time.Now().Add(time.Minute); rested.silent() == nil; {
		if time.Now().After(deadline) {
			t.Fatal("the connection is not closed")
		}
	}
	got = taken{}
	if err := tr.Do(t.Context(), s.Listener.Addr().String(), post("two"), &got); err != nil || string(got.body) != "3:two" {
		t.Errorf("%q, %v", got.body, err)
	}
	if n := connections.Load(); n != 2 {
		t.Errorf("%d connections, want one more", n)
	}
}

// BenchmarkRested is a request on a connection that has rested, to a server of this process; the
// look at the connection is a part of it.
func BenchmarkRested(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(echo))
	defer s.Close()
	tr, err := New(Config{Rest: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	defer tr.Close()
	do := func() {
		var got taken
		if err := tr.Do(b.Context(), s.Listener.Addr().String(), post("x"), &got); err != nil {
			b.Fatal(err)
		}
	}
	do()
	b.Run("request", func(b *testing.B) {
		for b.Loop() {
			do()
		}
	})
	var rested *conn
	for _, list := range tr.idle {
		rested = list[0]
	}
	b.Run("look", func(b *testing.B) {
		for b.Loop() {
			if err := rested.silent(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
