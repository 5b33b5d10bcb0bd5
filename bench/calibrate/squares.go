package calibrate

import (
	"math"
	"slices"
)

// A normal is a least-squares problem in its normal equations: x'Ax - 2b'x is to be small.
type normal struct {
	a [][]float64
	b []float64
}

func newNormal(n int) *normal {
	s := &normal{b: make([]float64, n), a: make([][]float64, n)}
	for i := range s.a {
		s.a[i] = make([]float64, n)
	}
	return s
}

// add adds the equation row·x = y with a weight.
func (s *normal) add(row []float64, y, weight float64) {
	for i, v := range row {
		if v == 0 {
			continue
		}
		s.b[i] += weight * v * y
		for k, w := range row {
			s.a[i][k] += weight * v * w
		}
	}
}

// damped is the problem with x held near at, by a share of what holds each unknown already.
func (s *normal) damped(at []float64, share float64) *normal {
	d := &normal{b: slices.Clone(s.b)}
	for i, row := range s.a {
		row = slices.Clone(row)
		hold := share * row[i]
		row[i] += hold
		d.b[i] += hold * at[i]
		d.a = append(d.a, row)
	}
	return d
}

// solve is the x >= 0 of the least squares: Lawson and Hanson's active set (1974).
func (s *normal) solve() []float64 {
	n := len(s.b)
	x, free := make([]float64, n), make([]bool, n)
	for range 4 * n {
		// The unknown at 0 that wants to grow most, on a scale on which all are alike.
		best, most := -1, 1e-10
		for i := range n {
			if free[i] || s.a[i][i] <= 0 {
				continue
			}
			g := s.b[i]
			for k, v := range x {
				g -= s.a[i][k] * v
			}
			if g /= math.Sqrt(s.a[i][i]); g > most {
				best, most = i, g
			}
		}
		if best < 0 {
			break
		}
		free[best] = true
		for {
			z := s.equations(free)
			step, first := 1.0, -1 // as far as the first unknown that becomes 0
			for i := range z {
				if free[i] && z[i] <= 0 && x[i]/(x[i]-z[i]) < step {
					step, first = x[i]/(x[i]-z[i]), i
				}
			}
			for i := range x {
				if free[i] {
					x[i] = max(x[i]+step*(z[i]-x[i]), 0)
				}
			}
			if first < 0 {
				break
			}
			x[first], free[first] = 0, false
		}
	}
	return x
}

// equations solves those of the free unknowns, by elimination with diagonal pivots: A is
// symmetric and not negative. One that cannot be told from others is 0.
func (s *normal) equations(free []bool) []float64 {
	x := make([]float64, len(free))
	var at []int
	for i, f := range free {
		if f {
			at = append(at, i)
		}
	}
	// Rows are scaled to a diagonal of 1.
	rows := make([][]float64, len(at))
	scale := make([]float64, len(at))
	for r, i := range at {
		scale[r] = 1 / math.Sqrt(s.a[i][i])
	}
	for r, i := range at {
		for c, k := range at {
			rows[r] = append(rows[r], s.a[i][k]*scale[r]*scale[c])
		}
		rows[r] = append(rows[r], s.b[i]*scale[r])
	}
	n := len(at)
	done := make([]int, 0, n) // pivots, in order
	used := make([]bool, n)
	for range at {
		p := -1
		for r := range rows {
			if !used[r] && (p < 0 || rows[r][r] > rows[p][p]) {
				p = r
			}
		}
		if rows[p][p] < 1e-11 {
			break
		}
		used[p] = true
		done = append(done, p)
		for r := range rows {
			if used[r] {
				continue
			}
			f := rows[r][p] / rows[p][p]
			for c := range rows[r] {
				rows[r][c] -= f * rows[p][c]
			}
		}
	}
	z := make([]float64, n)
	for _, p := range slices.Backward(done) {
		v := rows[p][n]
		for c := range n {
			if c != p {
				v -= rows[p][c] * z[c]
			}
		}
		z[p] = v / rows[p][p]
	}
	for r, i := range at {
		x[i] = z[r] * scale[r]
	}
	return x
}

// deviation is the standard deviation of an unknown of the problem beside those that are free, if
// equations have weights of 1 over their variance; +Inf if it cannot be told from them.
func (s *normal) deviation(i int, free []bool) float64 {
	e := newNormal(len(s.b))
	e.a, e.b[i] = s.a, 1
	free = slices.Clone(free)
	free[i] = true
	if s.a[i][i] <= 0 {
		return math.Inf(1)
	}
	if v := e.equations(free)[i]; v > 0 {
		return math.Sqrt(v)
	}
	return math.Inf(1)
}
