package validation

import (
	"math"
	"slices"
	"strings"

	"kvferry/bench/document"
)

// plots are two of each source, the errors of its latencies over what was published and how its errors
// are distributed, and those of the transfers that meet.
func (r *Results) plots() (all []document.Plot) {
	for _, source := range r.sources() {
		groups := r.groups(source)
		all = append(all, errorPlot(source, groups), document.CDF(source+": share by error", "%", distributions(groups), 0))
	}
	if r.Contention != nil {
		all = append(all, r.Contention.Plots()...)
	}
	return all
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

// errorPlot returns a plot of the error of each latency over the published value. Other figures have other
// units, and are left out.
func errorPlot(source string, groups []group) document.Chart {
	c := document.Chart{Title: source + ": error (%)", X: document.Axis{Label: "published latency, ms", Log: true}, Style: document.Dots}
	worst := bands[0]
	for _, g := range groups {
		dots := document.Curve{Name: g.name}
		for _, rec := range g.records {
			if strings.HasSuffix(rec.Figure, "_ms") {
				dots.Add(rec.Published, 100*rec.RelErr)
				worst = max(worst, math.Abs(rec.RelErr))
			}
		}
		c.Curves = append(c.Curves, dots)
	}
	for _, b := range bands {
		c.Bands = append(c.Bands, 100*b)
	}
	c.Y.Min, c.Y.Max = -110*worst, 110*worst
	return c
}

// distributions are the sizes of the errors of all figures, in percent.
func distributions(groups []group) []document.Distribution {
	all := make([]document.Distribution, len(groups))
	for i, g := range groups {
		all[i].Name = g.name
		for _, rec := range g.records {
			all[i].Values = append(all[i].Values, 100*math.Abs(rec.RelErr))
		}
		slices.Sort(all[i].Values)
	}
	return all
}
