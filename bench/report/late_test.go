package report

import (
	"testing"

	"kvferry/bench/client"
)

// TestLate: in milliseconds, of requests that were sent; waiting for room is not the client's
// fault.
func TestLate(t *testing.T) {
	r := Run{Records: []client.Record{
		{Intended: 1, Sent: 1.002}, {Intended: 1, Room: 3, Sent: 3.004}, {Intended: 2, Sent: 2}, {Intended: 9, Skipped: true},
	}}
	for p, want := range map[float64]float64{0: 0, 50: 2, 100: 4} {
		if got := r.Late(p); got != want {
			t.Errorf("P%v is %v ms, want %v", p, got, want)
		}
	}
}
