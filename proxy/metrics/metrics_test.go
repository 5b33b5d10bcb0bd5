package metrics

import (
	"slices"
	"testing"
)

// TestITLBuckets: steps of one GPU do not all fall into one bucket, and whoever knows
// vLLM's bounds finds them.
func TestITLBuckets(t *testing.T) {
	for _, bound := range []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80} {
		if !slices.Contains(itlBuckets, bound) {
			t.Errorf("vLLM's bound %v is missing", bound)
		}
	}
	for i, bound := range itlBuckets[1:] {
		if last := itlBuckets[i]; bound <= last || bound <= .025 && bound/last > 1.21 {
			t.Errorf("a bucket from %v to %v s", last, bound)
		}
	}
}
