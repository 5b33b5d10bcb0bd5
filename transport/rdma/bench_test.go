//go:build rdma && cgo

package rdma

import (
	"fmt"
	"os"
	"testing"

	"kvferry/transport"
)

// BenchmarkVerbs moves blocks between two rails of one device, 128 under way, as
// ib_write_bw has them.
func BenchmarkVerbs(b *testing.B) {
	device := os.Getenv("KVFERRY_RDMA")
	if device == "" {
		b.Skip("KVFERRY_RDMA names no device")
	}
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		for _, size := range []int{64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%v/%dKiB", op, size>>10), func(b *testing.B) {
				x := newVerbsPair(b, device, 4<<20)
				free := make(chan *transport.Slice, 128)
				done := func(s *transport.Slice, err error) {
					if err != nil {
						b.Error(err)
					}
					free <- s
				}
				under := 0
				b.SetBytes(int64(size))
				b.ResetTimer()
				for range b.N {
					if under == 16 {
						<-free
						under--
					}
					if k, err := x.ep.Post([]*transport.Slice{transport.NewSlice(op, x.src[:size], x.key, 0, done)}); k != 1 || err != nil {
						b.Fatal(k, err)
					}
					under++
				}
				for ; under > 0; under-- {
					<-free
				}
			})
		}
	}
	b.Run("write/8B-latency", func(b *testing.B) {
		x := newVerbsPair(b, device, 4096)
		done := make(chan error, 1)
		for range b.N {
			if k, err := x.ep.Post([]*transport.Slice{transport.NewSlice(transport.Write, x.src[:8], x.key, 0, func(_ *transport.Slice, err error) { done <- err })}); k != 1 || err != nil {
				b.Fatal(k, err)
			}
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		}
	})
}

type verbsPair struct {
	ep       transport.Endpoint
	src, dst []byte
	key      transport.Key
}

func newVerbsPair(tb testing.TB, device string, n int) *verbsPair {
	tb.Helper()
	rail := func() *Rail {
		r, err := New(Config{Name: "rdma/" + device, Logger: discard})
		if err != nil {
			tb.Fatal(err)
		}
		r.HandleImmediates(func(transport.Imm) {})
		tb.Cleanup(func() {
			if err := r.Close(); err != nil {
				tb.Error(err)
			}
		})
		return r
	}
	a, z := rail(), rail()
	x := &verbsPair{src: make([]byte, n), dst: make([]byte, n)}
	if _, err := a.Register(x.src); err != nil {
		tb.Fatal(err)
	}
	var err error
	if x.key, err = z.Register(x.dst); err != nil {
		tb.Fatal(err)
	}
	if x.ep, err = a.Dial(tb.Context(), z.Addr()); err != nil {
		tb.Fatal(err)
	}
	return x
}
