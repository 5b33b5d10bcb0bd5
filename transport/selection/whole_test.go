package selection

import (
	"testing"
	"time"
)

// TestWhole: what is told at the end of slices goes with them where the round trip is longer than
// what several paths save.
func TestWhole(t *testing.T) {
	const ms = time.Millisecond
	path := func(rate float64, latency time.Duration) Path {
		return Path{Up: true, Rate: rate, Best: rate, Latency: latency}
	}
	near := []uint8{0, 0}
	for name, c := range map[string]struct {
		paths []Path
		ranks []uint8
		bytes int64
		want  bool
	}{
		"a layer on a long link":          {[]Path{path(250e6, 10*ms), path(250e6, 10*ms)}, near, 1 << 20, true},
		"in a rack":                       {[]Path{path(250e6, ms/5), path(250e6, ms/5)}, near, 1 << 20, false},
		"small in a rack":                 {[]Path{path(250e6, ms/5), path(250e6, ms/5)}, near, 64 << 10, true},
		"much on a long link":             {[]Path{path(250e6, 10*ms), path(250e6, 10*ms)}, near, 6 << 20, false},
		"latency not known":               {[]Path{path(250e6, 0), path(250e6, 0)}, near, 64 << 10, false},
		"the other is down":               {[]Path{path(250e6, ms/5), {Rate: 250e6}}, near, 1 << 20, true},
		"the other stands by":             {[]Path{path(250e6, ms/5), {Up: true, Order: 1, Rate: 250e6}}, near, 1 << 20, true},
		"the other is far":                {[]Path{path(250e6, ms/5), path(250e6, ms/5)}, []uint8{0, 1}, 1 << 20, true},
		"the other is much faster":        {[]Path{path(25e6, 10*ms), path(1e9, 10*ms)}, near, 1 << 20, false},
		"more than may be under way":      {[]Path{path(10e6, 100*ms), {Rate: 1}}, near, 2 << 20, false},
		"as much as that, with the other": {[]Path{{Up: true, Rate: 250e6, Best: 250e6, Latency: 10 * ms, Inflight: 8 << 20}, path(250e6, 10*ms)}, near, 1 << 20, false},
	} {
		if got := Whole(c.paths, c.ranks, 0, c.bytes); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
