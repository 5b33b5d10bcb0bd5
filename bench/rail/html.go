package rail

import (
	"slices"

	"gonum.org/v1/plot"

	"kvferry/bench/document"
	"kvferry/internal/config"
)

// document returns the report: curves over the block size, and the table.
func (r *Result) document() *document.Document {
	d := &document.Document{
		Title: "kvferry rail bench", Made: document.When("Measured", r.Started), Head: r.conditions(), Notes: append(r.legend(), r.remarks()...),
		Data: r, DataName: resultsFile,
	}
	d.Sections = []document.Section{{Tables: []document.Table{r.table()}, Plots: []document.Plot{
		r.curves("GB/s over the block size", false, func(p *Point) float64 { return p.GBps }, func(o *Reference) Rank { return &o.GBps }),
		r.curves("P50 latency of a batch (µs)", true, func(p *Point) float64 { return p.Latency.P50US }, func(o *Reference) Rank { return o.P50US }),
		r.curves("P99 latency of a batch (µs)", true, func(p *Point) float64 { return p.Latency.P99US }, func(o *Reference) Rank { return o.P99US }),
		r.curves("CPU seconds of both ends a GB", false, func(p *Point) float64 { return p.CPU.PerGB }, func(*Reference) Rank { return nil }),
	}}}
	return d
}

// curves returns a plot of one figure over the block size. Points without the figure are left out.
func (r *Result) curves(title string, log bool, of func(*Point) float64, ref func(*Reference) Rank) document.Plot {
	c := document.Chart{Title: title, X: document.Axis{Label: "block", Log: true}, Y: document.Axis{Log: log}, Style: document.Points}
	add := func(name string, block int64, y float64) {
		if y <= 0 {
			return
		}
		i := slices.IndexFunc(c.Curves, func(o document.Curve) bool { return o.Name == name })
		if i < 0 {
			i = len(c.Curves)
			c.Curves = append(c.Curves, document.Curve{Name: name})
		}
		c.Curves[i].Add(float64(block), y)
		if tick := (plot.Tick{Value: float64(block), Label: config.FormatSize(block)}); !slices.Contains(c.X.Ticks, tick) {
			c.X.Ticks = append(c.X.Ticks, tick)
		}
	}
	for i := range r.Points {
		add(r.Points[i].Op+" "+r.subject(&r.Points[i]), r.Points[i].Block, of(&r.Points[i]))
	}
	for i := range r.References {
		if y := ref(&r.References[i]); y != nil {
			add(r.References[i].Op+" "+r.References[i].Name, r.References[i].Block, *y)
		}
	}
	return c
}
