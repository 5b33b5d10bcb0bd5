package calibrate

import (
	"cmp"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
)

const (
	// firstEdge is how long the first simplex is, of the unit cube.
	firstEdge = 0.1
	// smallest is a simplex from which nothing more is expected.
	smallest = 1e-4
	// vain is how many fresh simplexes in a row may find nothing before the search ends.
	vain = 3
)

// errSpent says that no more points may be tried.
var errSpent = errors.New("no evaluations are left")

type vertex struct {
	x []float64
	f float64
}

// minimize looks for the least f in the unit cube, from start on, in at most budget calls,
// by Nelder and Mead's simplex (1965) with the coefficients of Gao and Han (2012), which
// depend on the dimension. Points outside of the cube are moved to its surface. What is
// searched is rough, for one event that comes before another changes figures at once, and
// a simplex gets stuck on that: when it has become small, another one starts at the best
// point, in directions that are drawn.
func minimize(f func([]float64) (float64, error), start []float64, budget int, seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, uint64(len(start))))
	left := budget
	try := func(x []float64) (vertex, error) {
		if left == 0 {
			return vertex{}, errSpent
		}
		left--
		x = slices.Clone(x)
		for i := range x {
			x[i] = min(max(x[i], 0), 1)
		}
		v, err := f(x)
		return vertex{x, v}, err
	}
	best, err := try(start)
	edge := firstEdge
	for failed := 0; err == nil && failed < vain; {
		var found vertex
		found, err = descend(try, best, edge, rng)
		if found.f < best.f*(1-1e-4) {
			failed = 0
		} else {
			failed++
		}
		if found.f < best.f {
			best = found
		}
		edge = firstEdge * math.Pow(2, 2*rng.Float64()-1)
	}
	if errors.Is(err, errSpent) {
		return nil
	}
	return err
}

// descend runs one simplex from best until it is small, and returns its best vertex, also
// beside an error.
func descend(try func([]float64) (vertex, error), best vertex, edge float64, rng *rand.Rand) (vertex, error) {
	n := len(best.x)
	simplex := []vertex{best}
	for i := range n {
		x := slices.Clone(best.x)
		step := edge
		if rng.IntN(2) == 0 {
			step = -edge
		}
		if x[i]+step < 0 || x[i]+step > 1 {
			step = -step
		}
		x[i] += step
		v, err := try(x)
		if err != nil {
			return lowest(simplex), err
		}
		simplex = append(simplex, v)
	}
	d := float64(n)
	expand, contract, shrink := 1+2/d, 0.75-1/(2*d), 1-1/d
	if n == 1 { // the formulas are of two dimensions and more
		expand, contract, shrink = 2, 0.5, 0.5
	}
	for {
		slices.SortStableFunc(simplex, func(a, b vertex) int { return cmp.Compare(a.f, b.f) })
		if diameter(simplex) < smallest {
			return simplex[0], nil
		}
		worst := &simplex[n]
		middle := make([]float64, n)
		for _, v := range simplex[:n] {
			for i := range middle {
				middle[i] += v.x[i] / d
			}
		}
		along := func(by float64) (vertex, error) {
			x := make([]float64, n)
			for i := range x {
				x[i] = middle[i] + by*(middle[i]-worst.x[i])
			}
			return try(x)
		}
		reflected, err := along(1)
		if err != nil {
			return simplex[0], err
		}
		next := reflected
		switch {
		case reflected.f < simplex[0].f:
			further, err := along(expand)
			if err != nil {
				return reflected, err
			}
			if further.f < reflected.f {
				next = further
			}
		case reflected.f >= simplex[n-1].f:
			by := contract
			if reflected.f >= worst.f {
				by = -contract
			}
			nearer, err := along(by)
			if err != nil {
				return simplex[0], err
			}
			if nearer.f >= min(reflected.f, worst.f) { // no better: all move towards the best
				for k := 1; k <= n; k++ {
					x := slices.Clone(simplex[k].x)
					for i := range x {
						x[i] = simplex[0].x[i] + shrink*(x[i]-simplex[0].x[i])
					}
					if simplex[k], err = try(x); err != nil {
						return lowest(simplex), err
					}
				}
				continue
			}
			next = nearer
		}
		*worst = next
	}
}

func lowest(simplex []vertex) vertex {
	best := simplex[0]
	for _, v := range simplex[1:] {
		if v.x != nil && v.f < best.f {
			best = v
		}
	}
	return best
}

// diameter is the longest edge from the best vertex, along any axis.
func diameter(simplex []vertex) float64 {
	d := 0.0
	for _, v := range simplex[1:] {
		for i := range v.x {
			d = max(d, math.Abs(v.x[i]-simplex[0].x[i]))
		}
	}
	return d
}
