package nics

import (
	"fmt"
	"math"

	"kvferry/transport"
)

// A Limit is a figure and what it must be.
type Limit struct {
	Name  string
	Unit  string
	Least float64 // 0: no least
	Most  float64 // math.Inf(1): no most
	of    func(*Result) (float64, bool)
}

// rows that limits speak of
var (
	one   = sweeps[0].key(1, transport.Affinity)
	two   = sweeps[0].key(2, transport.Affinity)
	four  = sweeps[0].key(4, transport.Affinity)
	four6 = sweeps[1].key(4, transport.Affinity)
	mixed = sweeps[3].key(4, transport.Affinity)
)

// Limits are what several NICs must do here.
var Limits = []Limit{
	least("4 x 2 Gbit", "% of ideal", 98, efficiency(four)),
	least("4/2/2/1 Gbit, affinity", "% of ideal", 97, efficiency(mixed)),
	least("2 NICs over 1", "x", 1.96, ratio(two, one, rate)),
	least("4 NICs over 1", "x", 3.9, ratio(four, one, rate)),
	least("64 KiB blocks over 1 MiB, 4 NICs", "%", 95, percent(ratio(four6, four, rate))),
	most("CPU a GB, 4 NICs over 1", "x", 1.15, ratio(four, one, cpu)),
	most("cut: the rest at full rate", "ms", 200, recovered(cutStep)),
	most("restored: carries its share", "ms", 2000, recovered(restoreStep)),
	most("a tenth of the rate: share follows", "ms", 1000, recovered(slowStep)),
	most("black hole: found", "ms", 500, detected(holeStep)),
	most("lost, wrong or twice", "blocks", 0, func(r *Result) (float64, bool) { return float64(r.Wrong), len(r.Failovers) > 0 }),
}

func least(name, unit string, v float64, of func(*Result) (float64, bool)) Limit {
	return Limit{Name: name, Unit: unit, Least: v, Most: math.Inf(1), of: of}
}

func most(name, unit string, v float64, of func(*Result) (float64, bool)) Limit {
	return Limit{Name: name, Unit: unit, Most: v, of: of}
}

// A Verdict is a figure beside its limit.
type Verdict struct {
	Limit
	Value  float64
	Known  bool // it was measured
	Missed bool
}

// Verdicts holds the result to the limits. A figure that was not measured has missed.
func (r *Result) Verdicts() (all []Verdict) {
	for _, l := range Limits {
		v := Verdict{Limit: l}
		v.Value, v.Known = l.of(r)
		v.Missed = !v.Known || !(v.Value >= l.Least && v.Value <= l.Most)
		all = append(all, v)
	}
	return all
}

// want is the limit in words.
func (l *Limit) want() string {
	if math.IsInf(l.Most, 1) {
		return fmt.Sprintf("at least %g %s", l.Least, l.Unit)
	}
	return fmt.Sprintf("at most %g %s", l.Most, l.Unit)
}

func rate(r *Row) float64 { return r.GBps }
func cpu(r *Row) float64  { return r.CPUPerGB }

func efficiency(k Key) func(*Result) (float64, bool) {
	return func(r *Result) (float64, bool) {
		row := r.row(k)
		if row == nil {
			return 0, false
		}
		return row.Percent, true
	}
}

func ratio(a, b Key, of func(*Row) float64) func(*Result) (float64, bool) {
	return func(r *Result) (float64, bool) {
		x, y := r.row(a), r.row(b)
		if x == nil || y == nil || of(y) == 0 {
			return 0, false
		}
		return of(x) / of(y), true
	}
}

func percent(f func(*Result) (float64, bool)) func(*Result) (float64, bool) {
	return func(r *Result) (float64, bool) {
		v, ok := f(r)
		return 100 * v, ok
	}
}

func recovered(step int) func(*Result) (float64, bool) {
	return func(r *Result) (float64, bool) { return r.step(step, func(s *Step) float64 { return s.RecoverMS }) }
}

func detected(step int) func(*Result) (float64, bool) {
	return func(r *Result) (float64, bool) { return r.step(step, func(s *Step) float64 { return s.DetectMS }) }
}
