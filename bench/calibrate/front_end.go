package calibrate

import (
	"context"
	"math"
	"slices"
)

// frontEnd splits what requests wait into what they wait beside each other and what is done for
// one after another. The measures jump with that, so it is searched on a grid and then by a simplex,
// and not by slopes.
func (f *fitting) frontEnd(ctx context.Context, r *Fitted, s state) (state, error) {
	if err := f.look(ctx, &s); err != nil {
		return s, err
	}
	alone := s
	var tried []state
	for n := 1; n <= len(serial); n++ {
		next, all, err := f.split(ctx, alone, n)
		if err != nil {
			return s, err
		}
		tried = append(tried, all...)
		// By all measures: a front end may be seen in the worst alone. That there is one must be plain.
		costs, floor := len(next.x)-len(s.x), f.floor()
		if len(s.x) == len(alone.x) {
			floor = plain
		}
		if f.worth(next.whole, s.whole, costs, floor) {
			s = next
		}
	}
	// What was tried and does as well, to two standard deviations, is what it may be.
	enough := s.loss + 4*max(s.loss/float64(len(f.sights)), f.floor())
	own := len(alone.x)
	request := &r.Costs[0]
	for i, c := range serial {
		found := Cost{Field: c.field}
		if i < len(s.x)-own {
			found.Value = s.x[own+i]
		}
		found.Low, found.High = found.Value, found.Value
		for _, t := range tried {
			if t.loss > enough || t.x[0] == 0 {
				continue
			}
			v := 0.0
			if own+i < len(t.x) {
				v = t.x[own+i]
			}
			found.Low, found.High = min(found.Low, v), max(found.High, v)
		}
		if found.Value == 0 {
			r.Absent = append(r.Absent, Absent{c.field, found.High})
			continue
		}
		r.Costs = append(r.Costs, found)
		request.Low, request.Value, request.High = max(request.Low-found.High, 0), request.Value-found.Value, request.High-found.Low
	}
	return s, nil
}

// split searches n serial costs in a state that has none, and returns all states that it tried.
func (f *fitting) split(ctx context.Context, s state, n int) (best state, tried []state, err error) {
	loss := func(shares []float64) (float64, error) {
		next := state{costs: append(slices.Clone(s.costs), serial[:n]...), x: slices.Clone(s.x)}
		for _, share := range shares {
			next.x = append(next.x, share*s.x[0])
			next.x[0] = max(next.x[0]-share*s.x[0], 0)
		}
		err := f.look(ctx, &next)
		if err == nil && (best.x == nil || next.loss < best.loss) {
			best = next
		}
		tried = append(tried, next)
		return next.loss, err
	}
	outs := []float64{0, 0.001, 0.002, 0.004, 0.008, 0.016}
	least, start := math.Inf(1), []float64(nil)
	steps := 400 / (n * n) // the loss has minima that are narrow
	for i := range steps {
		for _, out := range outs[:1+(n-1)*(len(outs)-1)] {
			shares := []float64{float64(i) / (1.5 * float64(steps)), out}[:n]
			l, err := loss(shares)
			if err != nil {
				return best, nil, err
			}
			if l < least {
				least, start = l, shares
			}
		}
	}
	err = minimize(loss, start, 60*n, 1)
	return best, tried, err
}
