package selection

import (
	"testing"
	"time"
)

// TestLatency: what is measured, and when it is measured anew.
func TestLatency(t *testing.T) {
	const ms = time.Millisecond
	var l Latency
	now := time.Duration(0)
	// completed has slices complete for so long, one a millisecond, that each took so long.
	completed := func(d, took, explained, roundTrip time.Duration) {
		for end := now + d; now < end; now += ms {
			l.Completed(now, now-took, explained, roundTrip)
		}
	}
	want := func(what string, least time.Duration, probing bool) {
		t.Helper()
		if l.Least() != least || l.Probing() != probing {
			t.Errorf("%s: %v, probing %t, want %v, %t", what, l.Least(), l.Probing(), least, probing)
		}
	}
	want("before the first", 0, false)
	l.Start(now, 12*ms)
	want("the connection's round trip", 12*ms, false)
	now = time.Second
	completed(100*ms, 10*ms, 35*ms, 0)
	want("less than that", 10*ms, false)
	completed(3*time.Second, 30*ms, 35*ms, 0)
	want("a full window", 10*ms, false)
	completed(3*time.Second, 30*ms, 35*ms, 0)
	want("full for long", 10*ms, true)
	completed(10*ms, 30*ms, 35*ms, 0)
	want("posted before it was probed", 10*ms, true)
	now += 25 * ms
	completed(ms, 11*ms, 35*ms, 0)
	want("posted while it was", 11*ms, false)

	completed(1020*ms, 90*ms, 35*ms, 0)
	want("all are later than the window explains", 11*ms, true)
	now += 90 * ms
	completed(ms, 60*ms, 35*ms, 0)
	want("the path is longer now", 60*ms, false)

	completed(10*time.Second, 200*ms, 0, 0)
	want("of a path without a window nothing is measured anew", 60*ms, false)
	l.Completed(now, now-500*ms, 35*ms, 8*ms)
	want("several round trips", 8*ms, false)
	l.Completed(now, now, 35*ms, 0)
	want("at once", 8*ms, false)
	l.Stop()
	want("the connection was lost", 0, false)
}
