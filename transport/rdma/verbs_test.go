//go:build cgo && linux

package rdma

import (
	"os"
	"testing"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// TestVerbsContract is TestContract on real queue pairs, of the device that
// KVFERRY_RDMA names.
func TestVerbsContract(t *testing.T) {
	device := os.Getenv("KVFERRY_RDMA")
	if device == "" {
		t.Skip("KVFERRY_RDMA names no device: make test-roce runs this on software RoCE")
	}
	for _, c := range []struct {
		name         string
		pairs, depth int
	}{{"default", 0, 0}, {"three shallow queue pairs", 3, 5}} {
		t.Run(c.name, func(t *testing.T) {
			transporttest.TestRail(t, func(tb testing.TB) transport.Rail {
				r, err := New(Config{Name: "rdma/" + device, QueuePairs: c.pairs, QueueDepth: c.depth})
				if err != nil {
					tb.Fatal(err)
				}
				return r
			}, transporttest.Unchecked)
		})
	}
}
