package calibrate

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"kvferry/bench/observe"
	"kvferry/bench/stats"
	"kvferry/engine"
)

// A cost is a field of a profile's costs that a series may show.
type cost struct {
	field string
	start float64 // of the search, where guess knows nothing better
	step  float64 // by which a derivative is taken: a visible change
	// needed is a cost of every server: it stays in a profile, however small.
	needed bool
	with   string // it is there only beside this one
	least  float64
	most   float64 // 1e5 if it is 0
}

// even are the costs with which times change evenly. The first is what requests wait.
var even = []cost{
	{field: "request_ms", start: 1, step: 0.05, needed: true},
	{field: "prefill_step_ms", start: 1, step: 0.05, needed: true},
	{field: "prefill_token_ms", start: 0.1, step: 1e-4, needed: true},
	{field: "decode_step_ms", start: 10, step: 0.05, needed: true},
	{field: "decode_seq_ms", start: 0.01, step: 2e-3, needed: true},
	{field: "decode_kv_token_ns", start: 10, step: 2},
	{field: "experts.read_ms", start: 0.01, step: 2e-3},
	{field: "prefill_floor_ms", start: 1, step: 0.1},
	{field: "prefill_attention_ns", start: 1, step: 0.1},
	{field: "output_delay_ms", start: 1, step: 0.1},
	{field: "hot_slowdown", start: 0.1, step: 0.02, most: 10},
	{field: "heat_ms", start: 100, step: 5, with: "hot_slowdown", least: 1},
}

// serial are those of what is done for requests and tokens one after another. Of one request they
// cannot be told from request_ms; in a crowd they decide which requests share a step.
var serial = []cost{
	{field: "front_end_in_ms", step: 0.05},
	{field: "front_end_out_ms", step: 0.02},
}

// has reports whether a cost is among others.
func has(all []cost, field string) bool {
	return slices.ContainsFunc(all, func(c cost) bool { return c.field == field })
}

// A Cost is what was found of one.
type Cost struct {
	Field     string
	Value     float64
	Low, High float64 // an interval of 95 %
}

// An Absent cost is one that what was measured does not need. It may be as large as AtMost all
// the same: +Inf if it would not be seen however large.
type Absent struct {
	Field  string
	AtMost float64
}

// A Residual is a measure as it was measured, the median of its rounds, and as the profile has it.
type Residual struct {
	Point    Point
	Measure  string
	Measured float64
	Modelled float64
}

// Fitted is what a fit came to.
type Fitted struct {
	Profile   *engine.Profile
	Costs     []Cost
	Absent    []Absent
	Residuals []Residual
	// RPC is the way to the engine, there or back, that Profile was fitted with. Told says that it is
	// by the server's account; else it is what is usual.
	RPC  time.Duration
	Told bool
	// Noise is how far a round is from the median of its rounds, the median over all measures, as
	// a share: nothing can be predicted better. It is NaN of one round.
	Noise float64
	// Meanwhile is what else this machine did while the series was asked; nil if nobody looked.
	Meanwhile *observe.Disturbance
}

// A sight is one measure, as typical has it.
type sight struct {
	value float64
	off   float64
	even  bool // see Point.even
}

// Shares that a measure may well be off by.
const (
	least  = 0.001
	most   = 0.01
	uneven = 0.03 // where one request more in a step makes as much
)

// scale is how far off a measure may well be: what timers and sockets add, a share of it, and what
// its rounds differ by.
func (f *fitting) scale(s *sight) float64 {
	share := f.share
	if !s.even {
		share = uneven
	}
	return 0.05 + share*s.value + s.off
}

// Fit searches the costs with which a modelled server gives the measures. base is the server in
// all but its costs: of those, its kind of experts alone is read.
func Fit(ctx context.Context, base *engine.Profile, m *Measured) (*Fitted, error) {
	blank, err := blank(base)
	if err != nil {
		return nil, err
	}
	of := func(points func(Point) bool) *fitting { return newFitting(blank, m, points) }
	all := slices.Clone(even)
	if base.Costs.Experts.Count == 0 {
		all = slices.DeleteFunc(all, func(c cost) bool { return c.field == "experts.read_ms" })
	}
	steady := of(Point.even)
	at, err := steady.evenly(ctx, all)
	if err != nil {
		return nil, err
	}
	r := &Fitted{}
	if err := steady.intervals(ctx, r, all, at); err != nil {
		return nil, err
	}
	if at, err = of(func(p Point) bool { return !p.even() }).frontEnd(ctx, r, at); err != nil {
		return nil, err
	}
	whole := of(func(Point) bool { return true })
	whole.share = steady.share
	if has(at.costs, "front_end_out_ms") { // which holds back a large batch, too
		if at, err = whole.search(ctx, at); err != nil {
			return nil, err
		}
		r = &Fitted{}
		if err := whole.intervals(ctx, r, append(all, serial...), at); err != nil {
			return nil, err
		}
	}
	r.RPC, r.Told, r.Noise = m.rpc(), m.accounts(), m.noise()
	return r, whole.result(ctx, r, at)
}

// draws is how often the bootstrap draws measures.
const draws = 500

// intervals notes what was found of even costs, and how large those may be that were left out.
func (f *fitting) intervals(ctx context.Context, r *Fitted, all []cost, s state) error {
	found := s.solved(f.linear(&s, nil))
	drawn := f.bootstrap(&s)
	for i, c := range s.costs {
		shift := s.x[i] - found[i] // the last step, which was not worth taking
		low, high := stats.Percentile(drawn[i], 2.5)+shift, stats.Percentile(drawn[i], 97.5)+shift
		if s.x[i] == 0 && !c.needed {
			r.Absent = append(r.Absent, Absent{c.field, max(high, 0)})
			continue
		}
		r.Costs = append(r.Costs, Cost{c.field, s.x[i], max(min(low, s.x[i]), 0), max(high, s.x[i])})
	}
	for _, c := range all {
		if has(s.costs, c.field) || c.with != "" {
			continue
		}
		most, err := f.atMost(ctx, &s, c)
		if err != nil {
			return err
		}
		r.Absent = append(r.Absent, Absent{c.field, most})
	}
	return nil
}

// result is the profile, and each measure beside it.
func (f *fitting) result(ctx context.Context, r *Fitted, s state) (err error) {
	for i := range s.x {
		s.x[i] = digits(s.x[i], 4)
	}
	if r.Profile, err = f.profile(&s); err != nil {
		return err
	}
	r.Profile.Disagg.DecodeStepMS = r.Profile.Costs.DecodeStepMS
	if err := f.look(ctx, &s); err != nil {
		return err
	}
	r.Residuals = f.residuals(&s)
	return nil
}

// bootstrap solves the least squares around a state for measures that are off by as much of their scale
// as those measured are as a rule, by a tenth of it at least, and returns each cost's values in ascending
// order.
func (f *fitting) bootstrap(s *state) [][]float64 {
	usual := max(math.Sqrt(s.loss/float64(max(len(f.sights)-len(s.x), 1))), 0.1)
	rng := rand.New(rand.NewPCG(uint64(len(f.sights)), 2))
	drawn, off := make([][]float64, len(s.x)), make([]float64, len(f.sights))
	for range draws {
		for k := range off {
			off[k] = usual * f.scale(&f.sights[k]) * rng.NormFloat64()
		}
		for i, v := range s.solved(f.linear(s, off)) {
			drawn[i] = append(drawn[i], v)
		}
	}
	for i := range drawn {
		slices.Sort(drawn[i])
	}
	return drawn
}

// atMost is how large a cost may be that is not in a state: two standard deviations, with the
// sights as far off as they are.
func (f *fitting) atMost(ctx context.Context, s *state, c cost) (float64, error) {
	more := state{costs: append(slices.Clone(s.costs), c), x: append(slices.Clone(s.x), 0)}
	for _, other := range even {
		if other.with == c.field {
			more.costs, more.x = append(more.costs, other), append(more.x, other.start)
		}
	}
	if err := f.look(ctx, &more); err != nil {
		return 0, err
	}
	if err := f.differentiate(ctx, &more); err != nil {
		return 0, err
	}
	n := f.linear(&more, nil)
	free := make([]bool, len(more.x))
	for i, v := range s.x {
		free[i] = v > 0 && n.a[i][i] > 0
	}
	variance := max(more.loss/float64(len(f.sights)), f.floor())
	return 2 * math.Sqrt(variance) * n.deviation(len(s.x), free), nil
}

// residuals sets each measure beside what was measured of it.
func (f *fitting) residuals(s *state) (all []Residual) {
	for _, p := range f.points {
		for _, name := range p.Measures() {
			all = append(all, Residual{p, name, f.sights[len(all)].value, s.got[len(all)]})
		}
	}
	return all
}

// noise is how far a round is from the median of its rounds, the median over all measures, as a share;
// NaN of one round.
func (m *Measured) noise() float64 {
	if len(m.Values[0]) < 2 {
		return math.NaN()
	}
	var off []float64
	for i, p := range m.Points {
		for k := range p.Measures() {
			var rounds []float64
			for _, values := range m.Values[i] {
				rounds = append(rounds, mean(values[k]))
			}
			middle := stats.Median(rounds)
			for _, v := range rounds {
				off = append(off, math.Abs(v/middle-1))
			}
		}
	}
	return stats.Median(off)
}
