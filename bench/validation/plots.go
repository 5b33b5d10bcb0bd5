package validation

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"kvferry/bench/document"
	"kvferry/bench/report"
)

// plots are two of each source, the errors of its latencies over what was published and how its errors
// are distributed, and those of the transfers that meet.
func (r *Results) plots() ([]*document.Plot, error) {
	var all []*document.Plot
	for _, source := range r.sources() {
		groups := r.groups(source)
		errs, err := errorPlot(source, groups)
		if err != nil {
			return nil, err
		}
		shares, err := report.DistributionPlot(source+": share by error", "%", distributions(groups), 0)
		if err != nil {
			return nil, err
		}
		all = append(all, errs)
		if shares != nil { // nil: every figure is met to the digit
			all = append(all, shares)
		}
	}
	if r.Contention == nil {
		return all, nil
	}
	meetings, err := r.Contention.Plots()
	return append(all, meetings...), err
}

// sources are those of the records, in their order.
func (r *Results) sources() (all []string) {
	for i := range r.records {
		if s := r.records[i].Source; !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

// A group is records of one source whose profiles know as much of it. It is a curve.
type group struct {
	name    string
	records []Record
}

// groups are those of a source. The first is in sample and the second held back, also where there are no
// such records, so that they look the same in every plot; behind them are profiles of datasheets, each by itself.
func (r *Results) groups(source string) []group {
	groups := []group{{name: string(InSample)}, {name: string(OtherRun)}}
	for _, rec := range r.records {
		if rec.Source != source {
			continue
		}
		name := string(rec.Sample)
		if rec.Sample == Datasheet || rec.Sample == Anchored {
			name = rec.Profile + ", held back"
		}
		i := slices.IndexFunc(groups, func(g group) bool { return g.name == name })
		if i < 0 {
			i = len(groups)
			groups = append(groups, group{name: name})
		}
		groups[i].records = append(groups[i].records, rec)
	}
	return groups
}

// bands are errors up to which a point is in a shaded band, the widest first.
var bands = []float64{2 * closeBy, closeBy}

// errorPlot draws the error of each latency over what was published. Other figures have other units, and
// are left out.
func errorPlot(source string, groups []group) (*document.Plot, error) {
	p := document.NewPlot(source + ": error (%)")
	p.X.Label.Text = "published latency, ms"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, document.DecadeTicks{}
	points := make([]plotter.XYs, len(groups))
	low, high, worst := math.Inf(1), 0.0, bands[0]
	for i, g := range groups {
		for _, rec := range g.records {
			if !strings.HasSuffix(rec.Figure, "_ms") {
				continue
			}
			points[i] = append(points[i], plotter.XY{X: rec.Published, Y: 100 * rec.RelErr})
			low, high, worst = min(low, rec.Published), max(high, rec.Published), max(worst, math.Abs(rec.RelErr))
		}
	}
	p.X.Min, p.X.Max = low/1.3, high*1.3
	if high > 1e3*low {
		p.X.Tick.Label.Font.Size = 7.5 // six digits stand side by side
	}
	p.Y.Max = document.Headroom(100 * worst)
	p.Y.Min = -p.Y.Max
	var shades []plot.Thumbnailer
	for _, b := range bands {
		band, err := plotter.NewPolygon(plotter.XYs{{X: p.X.Min, Y: -100 * b}, {X: p.X.Max, Y: -100 * b}, {X: p.X.Max, Y: 100 * b}, {X: p.X.Min, Y: 100 * b}})
		if err != nil {
			return nil, err
		}
		band.Color, band.LineStyle.Width = color.NRGBA{0x99, 0x99, 0x99, 0x38}, 0
		p.Add(band)
		shades = append(shades, band) // each lies on those before
		p.Key(fmt.Sprintf("±%g %%", 100*b), shades...)
	}
	for i, g := range groups {
		if len(points[i]) == 0 {
			continue
		}
		if err := p.Points(i, g.name, points[i]); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// distributions are the sizes of the errors of all figures, in percent.
func distributions(groups []group) []report.Distribution {
	all := make([]report.Distribution, len(groups))
	for i, g := range groups {
		all[i].Name = g.name
		for _, rec := range g.records {
			all[i].Values = append(all[i].Values, 100*math.Abs(rec.RelErr))
		}
		slices.Sort(all[i].Values)
	}
	return all
}
