package load

import (
	"math"
	"strings"
	"testing"
)

// TestDue: a time that no clock reaches, or that is no number, is an error and not a time.
func TestDue(t *testing.T) {
	if at, err := due(1, 1.5); err != nil || at.Seconds() != 1.5 {
		t.Errorf("%v, %v", at, err)
	}
	for _, s := range []float64{1e30, math.Inf(1), math.NaN()} {
		if at, err := due(7, s); err == nil || !strings.Contains(err.Error(), "request 7") {
			t.Errorf("%v s: %v, %v", s, at, err)
		}
	}
}
