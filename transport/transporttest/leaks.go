package transporttest

import (
	"net"
	"os"
	"runtime"
	"testing"
	"time"
)

// CheckLeaks fails the test if goroutines or descriptors are left at its end.
func CheckLeaks(t *testing.T) {
	t.Helper()
	fds := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("no /proc to count descriptors in")
		}
		return len(d)
	}
	// The poller's own descriptors come with the first socket.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	files, routines := fds(), runtime.NumGoroutine()
	t.Cleanup(func() {
		deadline := time.Now().Add(patience)
		for fds() > files || runtime.NumGoroutine() > routines {
			if time.Now().After(deadline) {
				t.Errorf("%d descriptors and %d goroutines, %d and %d before", fds(), runtime.NumGoroutine(), files, routines)
				return
			}
			runtime.Gosched()
		}
	})
}
