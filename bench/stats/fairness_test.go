package stats

import (
	"math"
	"testing"
)

func TestFairness(t *testing.T) {
	for _, c := range []struct {
		bytes        []int64
		minMax, jain float64
	}{{[]int64{5, 5, 5, 5}, 1, 1}, {[]int64{0, 0, 0, 8}, 0, 0.25}, {[]int64{1, 3}, 1.0 / 3, 0.8}, {[]int64{0, 0}, 1, 1}} {
		if f := Shares(c.bytes); math.Abs(f.MinMax-c.minMax) > 1e-12 || math.Abs(f.Jain-c.jain) > 1e-12 {
			t.Errorf("%v: %+v", c.bytes, f)
		}
	}
	if f := Shares([]int64{7}); f != nil {
		t.Errorf("of one: %+v", f)
	}
}
