package kvtransfer

import (
	"slices"
	"testing"
	"time"
)

// TestLane: what is under way is bounded, goes in the order in which it came, and one
// move that is larger than the bound goes by itself.
func TestLane(t *testing.T) {
	const limit = 10
	n := &lane{}
	for i, bytes := range []int{4, 6, 1, 25, 0, 3} {
		n.waiting = append(n.waiting, &move{bytes: bytes, since: time.Duration(i)})
	}
	var under []*move
	goes := func(want ...int) {
		t.Helper()
		var got []int
		for v := n.next(limit); v != nil; v = n.next(limit) {
			got = append(got, int(v.since))
			under = append(under, v)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("moves %v go, want %v", got, want)
		}
	}
	end := func() { n.end(under[0]); under = under[1:] }
	goes(0, 1) // 10 bytes
	end()
	goes(2) // 7
	end()
	goes()
	end()
	goes(3) // alone
	if out := n.remove(func(v *move) bool { return v.since == 4 }); len(out) != 1 || out[0].since != 4 {
		t.Errorf("removed %v", out)
	}
	end()
	goes(5)
	end()
	if n.moves != 0 || n.bytes != 0 || len(n.waiting) != 0 {
		t.Errorf("%+v is left", n)
	}
}
