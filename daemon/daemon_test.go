package daemon

import (
	"runtime/debug"
	"testing"
)

// TestTune: a daemon collects garbage early, unless GOGC says when.
func TestTune(t *testing.T) {
	const start = 100
	defer debug.SetGCPercent(debug.SetGCPercent(start))
	for gogc, want := range map[string]int{"": 20, "400": start} {
		t.Setenv("GOGC", gogc)
		Tune()
		if got := debug.SetGCPercent(start); got != want {
			t.Errorf("GOGC=%q: %d %%, want %d", gogc, got, want)
		}
	}
}
