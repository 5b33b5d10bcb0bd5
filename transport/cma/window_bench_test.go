package cma

import (
	"testing"

	"golang.org/x/sys/unix"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// BenchmarkWindow is what it costs that the target holds slices to a window.
func BenchmarkWindow(b *testing.B) {
	available(b)
	cpu := func() float64 {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return float64(unix.TimevalToNsec(u.Utime)+unix.TimevalToNsec(u.Stime)) / 1e9
	}
	transporttest.BenchmarkWindows(b, func(t testing.TB) transport.Rail { return newRail(t) }, cpu)
}
