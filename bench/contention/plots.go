package contention

import (
	"fmt"

	"gonum.org/v1/plot/plotter"

	"kvferry/bench/document"
)

// Plots have what transfers add on the average over how many meet, a plot for each hand-off and switch: by
// both clocks, and by the rules of other simulators.
func (r *Result) Plots() ([]*document.Plot, error) {
	type meeting struct {
		handoff string
		ratio   float64
	}
	var meetings []meeting
	rows := map[meeting][]*Row{}
	for _, row := range r.Rows {
		m := meeting{row.Handoff, row.Oversubscription}
		if rows[m] == nil {
			meetings = append(meetings, m)
		}
		rows[m] = append(rows[m], row)
	}
	var all []*document.Plot
	for _, m := range meetings {
		p, err := plotOf(fmt.Sprintf("%s, switches %g:1: added by KV (ms)", m.handoff, m.ratio), rows[m])
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// A curve is a figure of the rows; some have none.
type curve struct {
	name string
	of   func(*Row) (ms float64, there bool)
}

// curves are ours and those of others. Each looks the same in every plot.
func curves() []curve {
	mean := func(a *Added) (float64, bool) {
		if a == nil {
			return 0, false
		}
		return a.Mean, true
	}
	all := []curve{
		{"kvferry, virtual", func(row *Row) (float64, bool) { return mean(row.Virtual) }},
		{"kvferry, real", func(row *Row) (float64, bool) { return mean(row.Real) }},
	}
	for _, o := range others.Simulators {
		all = append(all, curve{o.Short, func(row *Row) (float64, bool) {
			ms, there := row.Others[o.Short]
			return ms, there
		}})
	}
	return all
}

func plotOf(title string, rows []*Row) (*document.Plot, error) {
	p := document.NewPlot(title)
	p.X.Label.Text = "transfers at once"
	most, top := 0, 0.0
	for i, c := range curves() {
		var points plotter.XYs
		for _, row := range rows {
			if ms, there := c.of(row); there {
				points = append(points, plotter.XY{X: float64(row.Transfers), Y: ms})
				most, top = max(most, row.Transfers), max(top, ms)
			}
		}
		if len(points) == 0 {
			continue
		}
		if _, err := p.Curve(i, c.name, points, true); err != nil {
			return nil, err
		}
	}
	p.X.Min, p.X.Max = 0, document.Headroom(float64(most))
	p.Y.Min, p.Y.Max = 0, document.Headroom(top)
	return p, nil
}
