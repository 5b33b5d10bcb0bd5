package tcp

import (
	"testing"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// BenchmarkWindow is what it costs that the target holds slices to a window.
func BenchmarkWindow(b *testing.B) {
	transporttest.BenchmarkWindows(b, func(t testing.TB) transport.Rail { return newRail(t, "127.0.0.1:0") }, cpuSeconds)
}
