package bench

import (
	"math"
	"slices"

	"kvferry/bench/client"
	"kvferry/bench/document"
)

// plots are a group's: bars of what was measured beside what was published, the distribution of TTFT,
// and where the time went.
func (g group) plots() []document.Plot {
	var plots []document.Plot
	for _, b := range []struct {
		title string
		of    func(*client.Figures) float64
	}{
		{"Mean TTFT (ms)", func(f *client.Figures) float64 { return f.MeanTTFTMS }},
		{"P99 TTFT (ms)", func(f *client.Figures) float64 { return f.P99TTFTMS }},
		{"Mean TPOT (ms)", func(f *client.Figures) float64 { return f.MeanTPOTMS }},
		{"P99 TPOT (ms)", func(f *client.Figures) float64 { return f.P99TPOTMS }},
	} {
		series := func(name string, pale bool, figures func(*Cell) *client.Figures) document.Series {
			return g.series(name, pale, func(c *Cell) float64 {
				if f := figures(c); f != nil {
					return b.of(f)
				}
				return math.NaN()
			})
		}
		plots = append(plots, document.Bars{Title: b.title, Names: g.settings(), Series: []document.Series{
			series(g.measured(), false, (*Cell).measured), series("published", true, (*Cell).published),
		}})
	}
	return append(plots, g.ttftCDF(), g.stages())
}

// settings are the cells' names, marked as in the tables.
func (g group) settings() []string {
	names := make([]string, len(g.cells))
	for i, c := range g.cells {
		names[i] = c.mark()
	}
	return names
}

// series returns a figure of each cell as bars.
func (g group) series(name string, pale bool, of func(*Cell) float64) document.Series {
	s := document.Series{Name: name, Pale: pale}
	for _, c := range g.cells {
		s.Values = append(s.Values, of(c))
	}
	return s
}

// ttftCDF returns the cumulative distribution of each cell's TTFT.
func (g group) ttftCDF() document.Plot {
	var all []document.Distribution
	for _, c := range g.cells {
		var ttft []float64
		for j := range c.Records {
			if r := &c.Records[j]; r.Failure() == "" {
				ttft = append(ttft, 1e3*r.TTFT())
			}
		}
		slices.Sort(ttft)
		all = append(all, document.Distribution{Name: c.mark(), Values: ttft})
	}
	return document.CDF("TTFT, share of requests", "ms", all, 0)
}

// stages stacks the mean request's parts, one bar a setting. What is not known of a part is in the next.
func (g group) stages() document.Plot {
	b := document.Bars{Title: "Mean request's time by part (ms; hidden transfers overlap prefill)", Names: g.settings(), Stacked: true}
	for i, stage := range client.StageNames {
		b.Series = append(b.Series, g.series(stage, false, func(c *Cell) float64 {
			if c.Metrics == nil || c.Metrics.Stages == nil {
				return math.NaN()
			}
			return *c.Metrics.Stages.Parts()[i]
		}))
	}
	return b
}
