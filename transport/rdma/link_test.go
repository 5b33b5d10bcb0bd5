package rdma

import (
	"testing"
	"time"
)

// Polling goes on while it finds something, stops when it does not, and comes back.
func TestSpinner(t *testing.T) {
	s := spinner{most: time.Microsecond, score: maxScore}
	run := func(n int, hit func(i int) bool) (spins int) {
		for i := range n {
			if s.next() > 0 {
				spins++
			}
			s.found(hit(i))
		}
		return spins
	}
	if n := run(1000, func(i int) bool { return i%4 == 0 }); n != 1000 {
		t.Errorf("%d of 1000 polls spin, and one in four finds something", n)
	}
	if n := run(1000, func(int) bool { return false }); n > maxScore+1000/probeEvery+1 {
		t.Errorf("%d of 1000 polls spin for nothing", n)
	}
	if n := run(1000, func(int) bool { return true }); n < 1000-probeEvery {
		t.Errorf("%d of 1000 polls spin where all would find something", n)
	}
}
