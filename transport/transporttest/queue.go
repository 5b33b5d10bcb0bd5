package transporttest

import (
	"errors"
	"testing"

	"kvferry/transport"
	"kvferry/transport/connection"
)

// testQueueIsBounded: an endpoint takes a bounded number of slices and of bytes, or one
// slice of any size, and as many again when those have ended.
func testQueueIsBounded(t *testing.T, factory Factory) {
	const most = connection.QueueBytes
	x := newBench(t, factory, most+1)
	defer x.close()
	for _, c := range []struct{ size, n int }{
		{1 << 20, 100}, {most + 1, 2}, {most, 2}, {most / 2, 3}, {most/2 + 1, 3}, {1, 5000}, {0, 5000},
	} {
		first := 0
		for round := range 2 {
			done := newTally(t)
			slices := make([]*transport.Slice, c.n)
			for i := range slices {
				slices[i] = transport.NewSlice(transport.Write, x.src[:c.size], x.key, 0, done.done)
			}
			taken, err := x.ep.Post(slices)
			switch {
			case err != nil:
				t.Fatal(err)
			case taken == 0:
				t.Errorf("of %d slices of %d bytes none was taken, and nothing was under way", c.n, c.size)
			case taken > 1 && taken*c.size > most:
				t.Errorf("%d slices of %d bytes were taken at once, more than %d bytes", taken, c.size, most)
			case taken > connection.QueueSlices:
				t.Errorf("%d slices were taken at once, more than %d", taken, connection.QueueSlices)
			case round == 0:
				first = taken
			case taken != first:
				t.Errorf("of %d slices of %d bytes %d were taken, and then, when those had ended, %d", c.n, c.size, first, taken)
			}
			done.wait(taken)
			for _, s := range slices[:taken] {
				if err := done.err(s); err != nil && !errors.Is(err, transport.ErrInvalid) { // larger than the rail can carry as it is set
					t.Fatal(err)
				}
			}
		}
	}
}
