// Package nullservertest starts null servers (package nullserver) for the tests of their clients.
package nullservertest

import (
	"errors"
	"net"
	"testing"

	"kvferry/bench/nullserver"
)

// Start starts a server on a port of loopback that the kernel chooses. It is closed when the
// test ends.
func Start(t testing.TB, cfg nullserver.Config) *nullserver.Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := nullserver.Start(l, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, net.ErrClosed) { // a test may have closed it
			t.Errorf("the null server: %v", err)
		}
	})
	return s
}
