package calibrate

import (
	"math"
	"testing"
)

// TestSquares: the least squares by hand, with an unknown that would be below 0, and one that cannot
// be told from another.
func TestSquares(t *testing.T) {
	s := newNormal(2)
	s.add([]float64{1, 0}, 3, 1)
	s.add([]float64{0, 2}, 8, 1)
	if x := s.solve(); math.Abs(x[0]-3) > 1e-12 || math.Abs(x[1]-4) > 1e-12 {
		t.Errorf("%v, want 3 and 4", x)
	}
	if d := s.deviation(1, []bool{true, false}); math.Abs(d-0.5) > 1e-12 {
		t.Errorf("a deviation of %v, want 0.5", d)
	}
	s = newNormal(2) // x + y = 1, x = 2: y would be -1, and without it x is their mean
	s.add([]float64{1, 1}, 1, 1)
	s.add([]float64{1, 0}, 2, 1)
	if x := s.solve(); math.Abs(x[0]-1.5) > 1e-12 || x[1] != 0 {
		t.Errorf("%v, want 1.5 and 0", x)
	}
	s = newNormal(3)
	s.add([]float64{1, 1, 0}, 4, 1)
	if x := s.solve(); math.Abs(x[0]+x[1]-4) > 1e-9 || x[2] != 0 {
		t.Errorf("%v, want a sum of 4, and 0", x)
	}
	if d := s.deviation(1, []bool{true, false, false}); !math.IsInf(d, 1) {
		t.Errorf("a deviation of %v of what cannot be told from another", d)
	}
	if x := s.damped([]float64{1, 0, 0}, 1e6).solve(); math.Abs(x[0]-1) > 1e-3 {
		t.Errorf("%v, want it held at 1", x)
	}
}
