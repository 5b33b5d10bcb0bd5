package connection

import (
	"testing"

	"kvferry/transport"
)

// A room takes QueueSlices slices and QueueBytes bytes at once, or one slice of any size,
// and as much again when those were freed.
func TestRoom(t *testing.T) {
	large := make([]byte, QueueBytes+1)
	of := func(n, size int) []*transport.Slice {
		slices := make([]*transport.Slice, n)
		for i := range slices {
			slices[i] = transport.NewSlice(transport.Write, large[:size], 0, 0, nil)
		}
		return slices
	}
	for _, c := range []struct{ bound, size, n, taken int }{
		{0, 1 << 20, 100, 64},
		{0, QueueBytes + 1, 2, 1},
		{0, QueueBytes, 2, 1},
		{0, QueueBytes / 2, 3, 2},
		{0, QueueBytes/2 + 1, 3, 1},
		{0, 1, 5000, 4096},
		{0, 0, 5000, 4096},
		{64, 1, 100, 64},
		{64, QueueBytes / 2, 3, 2},
	} {
		r := Room{Slices: c.bound}
		for range 2 {
			taken := r.Take(of(c.n, c.size))
			if taken != c.taken || r.Take(of(1, c.size)) != 0 {
				t.Errorf("of %d slices of %d bytes %d were taken, want %d and no more", c.n, c.size, taken, c.taken)
			}
			r.Free(taken, int64(taken*c.size))
		}
	}
	r := Room{}
	r.Take(of(1, QueueBytes-1))
	if n := r.Take(append(of(1, 1), of(1, 1)...)); n != 1 {
		t.Errorf("%d slices were taken where there was one byte left", n)
	}
}
