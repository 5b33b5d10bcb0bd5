package rail

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"kvferry/bench/page"
	"kvferry/internal/config"
)

// WriteHTML writes report.html: curves over the block size, the table and all that
// was recorded, in a file that loads nothing from elsewhere.
func (r *Result) WriteHTML(w io.Writer) error {
	report := page.Page{
		Title: "kvferry rail bench", Sub: append([]string{"Measured " + r.Started.UTC().Format("2006-01-02 15:04 UTC") + "."}, r.conditions()...),
		Lines: append(r.legend(), r.remarks()...),
	}
	all := page.Section{Tables: []page.HTMLTable{r.table().HTML(-1)}}
	for _, c := range []struct {
		title string
		log   bool
		of    func(*Point) float64
		ref   func(*Reference) Rank
	}{
		{"GB/s over the block size", false, func(p *Point) float64 { return p.GBps }, func(o *Reference) Rank { return &o.GBps }},
		{"P50 latency of a batch (µs)", true, func(p *Point) float64 { return p.Latency.P50US }, func(o *Reference) Rank { return o.P50US }},
		{"P99 latency of a batch (µs)", true, func(p *Point) float64 { return p.Latency.P99US }, func(o *Reference) Rank { return o.P99US }},
		{"CPU seconds of both ends a GB", false, func(p *Point) float64 { return p.CPU.PerGB }, func(*Reference) Rank { return nil }},
	} {
		p, err := r.curves(c.title, c.log, c.of, c.ref)
		if err != nil {
			return err
		}
		all.Plots = append(all.Plots, p)
	}
	report.Sections = []page.Section{all}
	return report.Write(w, r)
}

// name is the curve a point belongs to: all of it but the block size, and of that
// only what the run varies besides op and batch.
func (r *Result) name(p *Point) string {
	parts := []string{p.Op, fmt.Sprintf("x %d", p.Batch)}
	if p.Imm {
		parts = append(parts, "immediate")
	}
	if p.Peers > 1 {
		parts = append(parts, fmt.Sprintf("%d initiators", p.Peers))
	}
	if r.varies() {
		parts = append(parts, fmt.Sprintf("%d rails, %s", p.Count, p.Select))
	}
	if slices.ContainsFunc(r.Points, func(q Point) bool { return q.Threads != p.Threads || q.Depth != p.Depth }) {
		parts = append(parts, fmt.Sprintf("threads %d, depth %d", p.Threads, p.Depth))
	}
	return strings.Join(parts, " ")
}

// varies says that not all points have the same rails and selection.
func (r *Result) varies() bool {
	return slices.ContainsFunc(r.Points, func(p Point) bool { return p.Count != r.Points[0].Count || p.Select != r.Points[0].Select })
}

// curves draws a figure over the block size; points without it are left out, as a
// log axis has no 0.
func (r *Result) curves(title string, log bool, of func(*Point) float64, ref func(*Reference) Rank) (*page.Plot, error) {
	p := page.NewPlot(title)
	p.X.Label.Text = "block"
	p.X.Scale = plot.LogScale{}
	var names []string
	series := map[string]plotter.XYs{}
	ticks := map[int64]bool{}
	top, low, high, bottom := 0.0, math.Inf(1), 0.0, math.Inf(1)
	add := func(name string, block int64, y float64) {
		x := float64(block)
		if y <= 0 {
			return
		}
		if series[name] == nil {
			names = append(names, name)
		}
		series[name] = append(series[name], plotter.XY{X: x, Y: y})
		ticks[block] = true
		low, bottom = min(low, x), min(bottom, y)
		top, high = max(top, y), max(high, x)
	}
	for i := range r.Points {
		add(r.name(&r.Points[i]), r.Points[i].Block, of(&r.Points[i]))
	}
	for i := range r.References {
		if y := ref(&r.References[i]); y != nil {
			add(r.References[i].Op+" "+r.References[i].Name, r.References[i].Block, *y)
		}
	}
	if len(names) == 0 {
		low, high, bottom, top = 1, 1, 1, 1
	}
	var marks []plot.Tick
	for n := range ticks {
		marks = append(marks, plot.Tick{Value: float64(n), Label: config.FormatSize(n)})
	}
	p.X.Tick.Marker = plot.ConstantTicks(marks)
	for i, name := range names {
		if _, err := p.Curve(i, name, series[name], true); err != nil {
			return nil, err
		}
	}
	p.X.Min, p.X.Max = low/1.3, high*1.3
	p.Y.Min, p.Y.Max = 0, top*1.1
	if log {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, page.DecadeTicks{}
		p.Y.Min, p.Y.Max = bottom/1.5, top*2
	}
	return p, nil
}
