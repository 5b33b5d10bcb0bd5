package calibrate

// This file searches the fields of a profile with which modelled figures come closest
// to figures that were measured or published.
//
//	Search ──▶ profile with other fields ──▶ Figures of it ──▶ loss ──▶ the next point
//
// What is searched are fields by their names in the profile's file, each within bounds;
// what computes figures of a profile is the caller's, a simulation mostly. A search draws
// nothing but from its seed: twice the same is the same.

import (
	"context"
	"fmt"
	"math"
	"slices"

	"kvferry/bench/stats"
	"kvferry/engine"
	"kvferry/internal/config"
)

// A Parameter is a field that is searched.
type Parameter struct {
	Field     string // its name in the file: "costs.prefill_token_ms", "links.tcp.ms_per_mb"
	Low, High float64
}

// A Figure is a figure of a profile beside what it should be. Both are above 0.
type Figure struct {
	Name      string
	Got, Want float64
	// Scale is the share by which the figure may well be off: 0.05 is 5 %. Above 0.
	Scale float64
}

// Off is how far the figure is from what it should be, as a share of that.
func (f Figure) Off() float64 { return f.Got/f.Want - 1 }

// Figures computes the figures of a profile, always the same ones in the same order.
type Figures func(context.Context, *engine.Profile) ([]Figure, error)

// Search is a search from a profile.
type Search struct {
	Profile     *engine.Profile // where it starts; it is not changed
	Parameters  []Parameter
	Figures     Figures
	Evaluations int    // of Figures, at most
	Seed        uint64 // of the turns that it takes
	// OnProgress is told of every profile that is better than those before.
	OnProgress func(evaluations int, loss float64)
}

// SearchResult holds the best profile that a search found.
type SearchResult struct {
	Profile     *engine.Profile
	Figures     []Figure // of Profile
	Loss        float64
	Evaluations int
}

// Validate lists every fault by its field, as a [config.Invalid].
func (s Search) Validate() error {
	var bad config.Faults
	if s.Profile == nil {
		bad.Add("Profile", nil, "give the profile to start from")
		return bad.Err("fit.Search")
	}
	bad.Refuse(len(s.Parameters) == 0, "Parameters", nil, "name the fields to search")
	for i, p := range s.Parameters {
		field := fmt.Sprintf("Parameters[%d]", i)
		if v, err := ReadField(s.Profile, p.Field); err != nil {
			bad.Check(field, err)
		} else if !(p.Low < p.High) || !(v >= p.Low && v <= p.High) {
			bad.Check(field, fmt.Errorf("%s is %v: give bounds around that, not %v to %v", p.Field, v, p.Low, p.High))
		}
	}
	config.Between(&bad, "Evaluations", s.Evaluations, 1, 1<<30)
	return bad.Err("fit.Search")
}

// Run searches until it finds no better profile or may not compute another. When ctx ends
// it returns the best so far, and ctx's cause.
func (s Search) Run(ctx context.Context) (*SearchResult, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	start := make([]float64, len(s.Parameters))
	for i, p := range s.Parameters {
		v, err := ReadField(s.Profile, p.Field)
		if err != nil {
			return nil, err
		}
		start[i] = (v - p.Low) / (p.High - p.Low)
	}
	best := &SearchResult{Loss: math.Inf(1)}
	n := 0
	loss := func(x []float64) (float64, error) {
		n++
		prof, err := s.at(x)
		if err != nil {
			return 0, err
		}
		figures, err := s.Figures(ctx, prof)
		if err != nil {
			return 0, err
		}
		l := loss(figures)
		if l < best.Loss {
			*best = SearchResult{Profile: prof, Figures: figures, Loss: l}
			if s.OnProgress != nil {
				s.OnProgress(n, l)
			}
		}
		return l, nil
	}
	err := minimize(loss, start, s.Evaluations, s.Seed)
	best.Evaluations = n
	if best.Profile == nil {
		return nil, err
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return best, err
}

// at is the profile of a point of the unit cube. Values have four digits: what was
// computed is what is written down, and no more is known.
func (s Search) at(x []float64) (*engine.Profile, error) {
	values := make(map[string]float64, len(x))
	for i, p := range s.Parameters {
		values[p.Field] = digits(p.Low+x[i]*(p.High-p.Low), 4)
	}
	return WithFields(s.Profile, values)
}

// loss returns the value that a search minimizes, the mean over figures of
//
//	2 (sqrt(1 + r²) - 1),   r = ln(Got/Want) / Scale
//
// which is r² where a figure is as close as it should be and grows like 2r beyond: one
// that cannot be met does not outweigh all others (the pseudo-Huber loss).
func loss(figures []Figure) float64 {
	sum := 0.0
	for _, f := range figures {
		r := math.Inf(1)
		if f.Got > 0 {
			r = math.Log(f.Got/f.Want) / f.Scale
		}
		sum += 2 * (math.Hypot(1, r) - 1)
	}
	return sum / float64(max(len(figures), 1))
}

// Errors are the median, the 90th percentile and the largest of how far figures are off,
// whatever the direction.
type Errors struct {
	Count              int
	Median, P90, Worst float64
}

// ErrorsOf sums figures up.
func ErrorsOf(figures []Figure) Errors {
	off := make([]float64, len(figures))
	for i, f := range figures {
		off[i] = math.Abs(f.Off())
	}
	slices.Sort(off)
	return Errors{len(off), stats.Percentile(off, 50), stats.Percentile(off, 90), stats.Percentile(off, 100)}
}

func (e Errors) String() string {
	return fmt.Sprintf("%d figures: median error %.2f %%, 90th percentile %.2f %%, worst %.0f %%", e.Count, 100*e.Median, 100*e.P90, 100*e.Worst)
}

// digits rounds v to n significant ones.
func digits(v float64, n int) float64 {
	if v == 0 {
		return 0
	}
	return stats.Round(v, n-1-int(math.Floor(math.Log10(math.Abs(v)))))
}
