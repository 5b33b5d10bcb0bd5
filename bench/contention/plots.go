package contention

import (
	"fmt"
	"slices"

	"kvferry/bench/document"
)

// Plots have what transfers add on the average over how many meet, a plot for each hand-off and switch: by
// both clocks, and by the rules of other simulators.
func (r *Result) Plots() (all []document.Plot) {
	type meeting struct {
		handoff string
		ratio   float64
	}
	var seen []meeting
	for _, row := range r.Rows {
		m := meeting{row.Handoff, row.Oversubscription}
		if slices.Contains(seen, m) {
			continue
		}
		seen = append(seen, m)
		c := document.Chart{Title: fmt.Sprintf("%s, switches %g:1: added by KV (ms)", m.handoff, m.ratio), X: document.Axis{Label: "transfers at once"}, Style: document.Points}
		for _, figure := range figures() {
			curve := document.Curve{Name: figure.name}
			for _, o := range r.Rows {
				if ms, there := figure.of(o); there && m == (meeting{o.Handoff, o.Oversubscription}) {
					curve.Add(float64(o.Transfers), ms)
				}
			}
			c.Curves = append(c.Curves, curve)
		}
		all = append(all, c)
	}
	return all
}

// A figure is a value of a row, which not every row has.
type figure struct {
	name string
	of   func(*Row) (ms float64, there bool)
}

// figures are ours and those of others. Each looks the same in every plot.
func figures() []figure {
	mean := func(a *Added) (float64, bool) {
		if a == nil {
			return 0, false
		}
		return a.Mean, true
	}
	all := []figure{
		{"kvferry, virtual", func(row *Row) (float64, bool) { return mean(row.Virtual) }},
		{"kvferry, real", func(row *Row) (float64, bool) { return mean(row.Real) }},
	}
	for _, o := range others.Simulators {
		all = append(all, figure{o.Short, func(row *Row) (float64, bool) {
			ms, there := row.Others[o.Short]
			return ms, there
		}})
	}
	return all
}
