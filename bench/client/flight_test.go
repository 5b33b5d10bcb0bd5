package client

import (
	"fmt"
	"slices"
	"testing"
)

// TestInFlight: one that takes the place of another is not at once with it, and what was never in flight is in no
// step.
func TestInFlight(t *testing.T) {
	f := InFlight(slices.Values([]*Record{
		{Sent: 3, Finish: 4}, {Sent: 0, Finish: 2}, {Sent: 2, Finish: 4}, {Sent: 1, Finish: 2}, {Sent: 5, Finish: 5}, {Skipped: true, Sent: 1, Finish: 9},
	}))
	if got, want := fmt.Sprint(f), "{[{0 1 1} {1 2 2} {2 3 1} {3 4 2} {4 4 0}] 2 6}"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if f := InFlight(slices.Values([]*Record{})); f.Steps != nil || f.Peak != 0 {
		t.Errorf("of nothing %+v", f)
	}
}
