package bench

import (
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"kvferry/bench/client"
	"kvferry/bench/document"
)

var (
	measuredColor  = document.Palette[0]
	publishedColor = color.RGBA{0xb8, 0xc2, 0xcc, 0xff}
)

// plots are a group's figures: bars of what was measured beside what was
// published, the distribution of TTFT, and where the time went.
func (g group) plots() ([]*document.Plot, error) {
	var plots []*document.Plot
	for _, b := range []struct {
		title string
		of    func(*client.Figures) float64
	}{
		{"Mean TTFT (ms)", func(f *client.Figures) float64 { return f.MeanTTFTMS }},
		{"P99 TTFT (ms)", func(f *client.Figures) float64 { return f.P99TTFTMS }},
		{"Mean TPOT (ms)", func(f *client.Figures) float64 { return f.MeanTPOTMS }},
		{"P99 TPOT (ms)", func(f *client.Figures) float64 { return f.P99TPOTMS }},
	} {
		p, err := g.bars(b.title, b.of)
		if err != nil {
			return nil, err
		}
		plots = append(plots, p)
	}
	cdf, err := g.ttftCDF()
	if err != nil {
		return nil, err
	}
	stages, err := g.stages()
	if err != nil {
		return nil, err
	}
	return append(plots, cdf, stages), nil
}

// settings are the cells' names, marked as in the tables.
func (g group) settings() []string {
	names := make([]string, len(g.cells))
	for i, c := range g.cells {
		names[i] = c.mark()
	}
	return names
}

// bars draws measured and published side by side, with their values on top. A series
// that no cell has is left out.
func (g group) bars(title string, of func(*client.Figures) float64) (*document.Plot, error) {
	type series struct {
		name  string
		color color.Color
		of    func(*Cell) *client.Figures
	}
	all := []series{
		{g.measured(), measuredColor, func(c *Cell) *client.Figures {
			if c.Metrics == nil {
				return nil
			}
			return &c.Metrics.Figures
		}},
		{"published", publishedColor, func(c *Cell) *client.Figures {
			if c.Published == nil {
				return nil
			}
			return &c.Published.Figures
		}},
	}
	all = slices.DeleteFunc(all, func(s series) bool {
		return !slices.ContainsFunc(g.cells, func(c *Cell) bool { return s.of(c) != nil })
	})
	p := document.NewPlot(title)
	width := min(22, 125/float64(len(g.cells))) // points: two bars and a gap for each cell
	figures := font.Font{Typeface: "Liberation", Variant: "Sans", Size: 8}
	switch n := len(g.cells); { // names and figures stand side by side
	case n > 7:
		p.X.Tick.Label.Font.Size, figures.Size = 7.5, 6
	case n > 5:
		p.X.Tick.Label.Font.Size, figures.Size = 9, 7
	}
	top := 0.0
	for i, s := range all {
		offset := vg.Points(width * (float64(i) - float64(len(all)-1)/2))
		values := make(plotter.Values, len(g.cells))
		labels := plotter.XYLabels{XYs: make(plotter.XYs, len(g.cells)), Labels: make([]string, len(g.cells))}
		for j, c := range g.cells {
			if f := s.of(c); f != nil {
				values[j] = of(f)
				labels.Labels[j] = fmt.Sprintf("%.3g", values[j])
				if values[j] >= 100 {
					labels.Labels[j] = fmt.Sprintf("%.0f", values[j])
				}
			}
			labels.XYs[j] = plotter.XY{X: float64(j), Y: values[j]}
			top = max(top, values[j])
		}
		b, err := plotter.NewBarChart(values, vg.Points(width))
		if err != nil {
			return nil, err
		}
		b.Color, b.LineStyle.Width, b.Offset = s.color, 0, offset
		l, err := plotter.NewLabels(labels)
		if err != nil {
			return nil, err
		}
		for j := range l.TextStyle {
			l.TextStyle[j].Font = figures
			l.TextStyle[j].XAlign = draw.XCenter
		}
		l.Offset = vg.Point{X: offset, Y: vg.Points(2)}
		p.Add(b, l)
		p.Key(s.name, b)
	}
	p.NominalX(g.settings()...)
	p.Y.Min, p.Y.Max = 0, document.Headroom(top)
	p.X.Min, p.X.Max = -0.6, float64(len(g.cells))-0.4
	return p, nil
}

// ttftCDF draws which share of the requests had their first token by when.
func (g group) ttftCDF() (*document.Plot, error) {
	p := document.NewPlot("TTFT, share of requests")
	p.X.Label.Text = "ms"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, document.DecadeTicks{}
	low, high := math.Inf(1), 0.0
	for i, c := range g.cells {
		var ttft []float64
		for j := range c.Records {
			if r := &c.Records[j]; r.Failure() == "" {
				// A log axis has no 0; a microsecond is the resolution.
				ttft = append(ttft, max((r.FirstToken-r.Sent)*1e3, 1e-3))
			}
		}
		if len(ttft) == 0 {
			continue
		}
		slices.Sort(ttft)
		low, high = min(low, ttft[0]), max(high, ttft[len(ttft)-1])
		points := make(plotter.XYs, len(ttft))
		for j, v := range ttft {
			points[j] = plotter.XY{X: v, Y: float64(j+1) / float64(len(ttft))}
		}
		line, err := p.Curve(i, c.mark(), points, false)
		if err != nil {
			return nil, err
		}
		line.StepStyle = plotter.PostStep
	}
	if high == 0 {
		low, high = 1, 10
	}
	p.X.Min, p.X.Max = low/1.2, high*1.2
	p.Y.Min, p.Y.Max = 0, 1
	return p, nil
}

// stages stacks the mean request's parts, one bar a setting. Parts that take no time
// in any setting are left out.
func (g group) stages() (*document.Plot, error) {
	p := document.NewPlot("Mean request's time by part (ms; hidden transfers overlap prefill)")
	names := g.settings()
	slices.Reverse(names) // the axis starts at the bottom
	var below *plotter.BarChart
	top := 0.0
	sums := make([]float64, len(names))
	for i, stage := range client.StageNames {
		values := make(plotter.Values, len(names))
		for j, c := range g.cells {
			if c.Metrics != nil && c.Metrics.Stages != nil {
				k := len(names) - 1 - j
				if part := *c.Metrics.Stages.Parts()[i]; !math.IsNaN(part) { // what is not known is in the next
					values[k] = part
				}
				sums[k] += values[k]
				top = max(top, sums[k])
			}
		}
		if slices.Max(values) == 0 {
			continue
		}
		b, err := plotter.NewBarChart(values, vg.Points(16))
		if err != nil {
			return nil, err
		}
		b.Horizontal = true
		b.Color, b.LineStyle.Width = document.Palette[i%len(document.Palette)], 0
		if below != nil {
			b.StackOn(below)
		}
		below = b
		p.Add(b)
		p.Key(stage, b)
	}
	p.NominalY(names...)
	p.X.Min, p.X.Max = 0, document.Headroom(top)
	p.Y.Min, p.Y.Max = -0.6, float64(len(names))-0.4
	return p, nil
}
