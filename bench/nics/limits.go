package nics

import (
	"math"
	"slices"

	"kvferry/transport"
)

// A limit bounds a figure of a result: from below if least is not 0, and else by most. of returns the
// figure, or NaN if it was not measured.
type limit struct {
	name, unit  string
	least, most float64
	of          func(*Result) float64
}

// Rows that limits are about.
var (
	one   = sweeps[0].key(1, transport.Affinity)
	two   = sweeps[0].key(2, transport.Affinity)
	four  = sweeps[0].key(4, transport.Affinity)
	four6 = sweeps[1].key(4, transport.Affinity)
	mixed = sweeps[3].key(4, transport.Affinity)
)

// limits lists the figures that several NICs are held to.
var limits = []limit{
	{"4 x 2 Gbit", ofIdeal, 98, 0, row(four, efficiency)},
	{"4/2/2/1 Gbit, affinity", ofIdeal, 97, 0, row(mixed, efficiency)},
	{"2 NICs over 1", "x", 1.96, 0, ratio(two, one, rate)},
	{"4 NICs over 1", "x", 3.9, 0, ratio(four, one, rate)},
	{"64 KiB blocks over 1 MiB, 4 NICs", "%", 95, 0, func(r *Result) float64 { return 100 * ratio(four6, four, rate)(r) }},
	{"CPU a GB, 4 NICs over 1", "x", 0, 1.15, ratio(four, one, cpu)},
	{"cut: the rest at full rate", inMS, 0, 200, step(cutStep, back)},
	{"restored: carries its share", inMS, 0, 2000, step(restoreStep, back)},
	{"a tenth of the rate: share follows", inMS, 0, 1000, step(slowStep, back)},
	{"black hole: found", inMS, 0, 500, step(holeStep, found)},
	{"lost, wrong or twice", "blocks", 0, 0, func(r *Result) float64 {
		if len(r.Failovers) == 0 {
			return math.NaN()
		}
		return float64(r.Wrong)
	}},
}

// judge sets Limits by the rows, steps and wrong blocks.
func (r *Result) judge() {
	r.Limits = nil
	for _, l := range limits {
		f := Figure{Case: l.name, Unit: l.unit, Least: l.least, Most: l.most}
		if v := l.of(r); !math.IsNaN(v) {
			f.Value, f.Kept, f.Taken = v, 1, 1
		}
		f.judge(true, f.Value >= l.least && (l.least > 0 || f.Value <= l.most))
		r.Limits = append(r.Limits, f)
	}
}

func efficiency(r *Row) float64 { return r.Percent }
func rate(r *Row) float64       { return r.GBps }
func cpu(r *Row) float64        { return r.CPUPerGB }
func found(s *Step) float64     { return s.DetectMS }
func back(s *Step) float64      { return s.RecoverMS }

// row returns a function that returns a value of the row with a key.
func row(k Key, of func(*Row) float64) func(*Result) float64 {
	return func(r *Result) float64 {
		if i := slices.IndexFunc(r.Rows, func(row Row) bool { return row.Key == k }); i >= 0 {
			return of(&r.Rows[i])
		}
		return math.NaN()
	}
}

// ratio returns a function that divides a value of row a by the same value of row b. It returns NaN if
// b's is 0.
func ratio(a, b Key, of func(*Row) float64) func(*Result) float64 {
	return func(r *Result) float64 {
		below := row(b, of)(r)
		if below == 0 {
			return math.NaN()
		}
		return row(a, of)(r) / below
	}
}

// step returns a function that returns a value of a step of the schedule.
func step(i int, of func(*Step) float64) func(*Result) float64 {
	return func(r *Result) float64 {
		if i >= len(r.Steps) {
			return math.NaN()
		}
		return of(&r.Steps[i])
	}
}
