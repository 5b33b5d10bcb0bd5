package document

import (
	"fmt"
	"html/template"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"kvferry/bench/stats"
)

// A Plot is a Chart or Bars: data, which are drawn when a page is written.
type Plot interface {
	// draw returns nil if there is nothing to draw.
	draw() (*drawing, error)
	name() string
}

// SVG draws a plot for the page; it returns nothing if there is nothing in the plot.
func SVG(p Plot) (template.HTML, error) {
	if p == nil {
		return "", nil
	}
	d, err := p.draw()
	if err != nil || d == nil {
		return "", err
	}
	text, err := d.svg()
	if err != nil {
		err = fmt.Errorf("plot %q: %w", p.name(), err)
	}
	return template.HTML(text), err
}

// A Style selects how a Chart draws its curves.
type Style int

// Styles.
const (
	Line   Style = iota
	Points       // a line with its points
)

// A Curve is a series of points in a Chart, by ascending X. The i-th curve looks the same in every Chart, whether
// those before it have points or not.
type Curve struct {
	Name  string // in the legend, if not empty
	XYs   plotter.XYs
	Steps bool // each value holds until the next
}

// Add appends a point.
func (c *Curve) Add(x, y float64) { c.XYs = append(c.XYs, plotter.XY{X: x, Y: y}) }

// An Axis configures an axis of a Chart.
type Axis struct {
	Label    string
	Log      bool
	Ticks    []plot.Tick // nil: round numbers
	Min, Max float64     // Max 0: from 0 on, or what the data and a logarithmic scale need
}

// A Chart has curves over an axis. Points that are no number, or that a logarithmic axis has no
// place for, are left out; a Chart without any is not drawn.
type Chart struct {
	Title  string
	X, Y   Axis
	Curves []Curve
	Style  Style
	Marks  []float64 // vertical lines,
	Mark   string    // their name in the legend
	Best   *plotter.XY
}

func (c Chart) name() string { return c.Title }

// limits returns an axis' ends, for values from low to high.
func (a Axis) limits(low, high float64) (from, to float64) {
	switch {
	case a.Max > a.Min:
		return a.Min, a.Max
	case a.Log:
		return low / 1.3, high * 1.3
	case a.Ticks != nil:
		return low, high
	}
	return min(0, 1.1*low), headroom(high)
}

// headroom leaves space for labels; an axis must not be empty.
func headroom(top float64) float64 {
	if top <= 0 {
		return 1
	}
	return top * 1.1
}

func (a Axis) set(to *plot.Axis) {
	to.Label.Text = a.Label
	if a.Log {
		to.Scale, to.Tick.Marker = plot.LogScale{}, DecadeTicks{}
	}
	if a.Ticks != nil {
		to.Tick.Marker = plot.ConstantTicks(a.Ticks)
	} else if a.Log && to.Max > 2e3*to.Min {
		to.Tick.Label.Font.Size = 7.5 // six digits stand side by side
	}
}

// shown returns the points that have a place.
func (c *Chart) shown(all plotter.XYs) plotter.XYs {
	return slices.DeleteFunc(slices.Clone(all), func(p plotter.XY) bool {
		return math.IsNaN(p.X) || math.IsNaN(p.Y) || c.X.Log && p.X <= 0 || c.Y.Log && p.Y <= 0
	})
}

// Ends returns the ends of both axes; false if there is nothing to draw.
func (c Chart) Ends() (from, to plotter.XY, some bool) {
	low, high := plotter.XY{X: math.Inf(1), Y: math.Inf(1)}, plotter.XY{X: math.Inf(-1), Y: math.Inf(-1)}
	for _, curve := range c.Curves {
		for _, p := range c.shown(curve.XYs) {
			low, high = plotter.XY{X: min(low.X, p.X), Y: min(low.Y, p.Y)}, plotter.XY{X: max(high.X, p.X), Y: max(high.Y, p.Y)}
		}
	}
	from.X, to.X = c.X.limits(low.X, high.X)
	from.Y, to.Y = c.Y.limits(low.Y, high.Y)
	return from, to, low.X <= high.X
}

func (c Chart) draw() (*drawing, error) {
	from, to, some := c.Ends()
	if !some {
		return nil, nil
	}
	d := newDrawing(c.Title)
	d.X.Min, d.X.Max, d.Y.Min, d.Y.Max = from.X, to.X, from.Y, to.Y
	c.X.set(&d.X)
	c.Y.set(&d.Y)
	for i, curve := range c.Curves {
		if curve.XYs = c.shown(curve.XYs); len(curve.XYs) == 0 {
			continue
		}
		if err := d.curve(i, curve, c.Style); err != nil {
			return nil, err
		}
	}
	for i, at := range c.Marks {
		line, err := plotter.NewLine(plotter.XYs{{X: at, Y: d.Y.Min}, {X: at, Y: d.Y.Max}})
		if err != nil {
			return nil, err
		}
		line.Color, line.Width, line.Dashes = palette[5], vg.Points(1.2), []vg.Length{vg.Points(4), vg.Points(3)}
		d.Add(line)
		if i == 0 {
			d.key(c.Mark, line)
		}
	}
	if c.Best != nil {
		ring, err := plotter.NewScatter(plotter.XYs{*c.Best})
		if err != nil {
			return nil, err
		}
		ring.Color, ring.Shape, ring.Radius = palette[5], draw.RingGlyph{}, vg.Points(7)
		d.Add(ring)
		d.key("best", ring)
	}
	return d, nil
}

// A Distribution is one curve of a CDF: values in ascending order.
type Distribution struct {
	Name   string
	Values []float64
}

// CurvePoints is how many points a curve of a distribution has at most: a gap a token is a
// million, and a plot has 500 pixels.
const CurvePoints = 400

// decades is how many a distribution's axis shows at most, from the greatest value down. The
// gaps of chunks that came in one piece are microseconds; nobody wants to see how few.
const decades = 3

// linear is how many times the least value the greatest must be for the axis to be a
// logarithmic one, which has labels at 1, 2 and 5 of a decade only.
const linear = 8

// CDF returns a plot of which share of the values, of a unit, is up to what, with an SLO's limit
// if it is not 0. It is nil if no value is above 0.
func CDF(title, unit string, all []Distribution, limit float64) Plot {
	low, high := math.Inf(1), 0.0
	for _, d := range all {
		if n := len(d.Values); n > 0 {
			low, high = min(low, d.Values[0]), max(high, d.Values[n-1])
		}
	}
	if high <= 0 {
		return nil
	}
	low = max(low, high/math.Pow10(decades)) // a log axis has no 0
	c := Chart{Title: title, Y: Axis{Max: 1}, Mark: "SLO"}
	for _, d := range all {
		c.Curves = append(c.Curves, Curve{Name: d.Name, XYs: cumulative(d.Values, low)})
	}
	if limit > 0 && limit > low/2 && limit < high*2 {
		c.Marks = []float64{limit}
		low, high = min(low, limit), max(high, limit)
	}
	if high < linear*low {
		margin := max((high-low)/20, high/100)
		c.X = Axis{Label: unit, Min: max(low-margin, 0), Max: high + margin}
	} else {
		c.X = Axis{Label: unit, Log: true, Min: low / 1.1, Max: high * 1.1}
	}
	return c
}

// cumulative returns the points of a distribution: at x the share of the values that are no greater.
// What is below low is drawn at low.
func cumulative(values []float64, low float64) plotter.XYs {
	n := min(CurvePoints, len(values))
	if n == 0 {
		return nil
	}
	points := plotter.XYs{{X: max(values[0], low), Y: 0}}
	for i := 1; i <= n; i++ {
		share := float64(i) / float64(n)
		points = append(points, plotter.XY{X: max(stats.Percentile(values, 100*share), low), Y: share})
	}
	return points
}

// Bars has a group of bars for each name: one a series, side by side with their values on top, or
// stacked from left to right.
type Bars struct {
	Title   string
	Names   []string
	Series  []Series
	Stacked bool
}

// A Series is a bar of each of Bars' Names. NaN is none. A series without any, or of nothing but 0 where
// bars are stacked, is left out.
type Series struct {
	Name   string
	Values []float64
	Pale   bool // grey: what the others are held against
}

func (b Bars) name() string { return b.Title }

func (b Bars) draw() (*drawing, error) {
	if len(b.Names) == 0 {
		return nil, nil
	}
	d := newDrawing(b.Title)
	if b.Stacked {
		return d, b.stack(d)
	}
	all := slices.DeleteFunc(slices.Clone(b.Series), func(s Series) bool {
		return !slices.ContainsFunc(s.Values, func(v float64) bool { return !math.IsNaN(v) })
	})
	width := min(22, 125/float64(len(b.Names))) // points: two bars and a gap for each name
	figures := sans(8)
	switch n := len(b.Names); { // names and figures stand side by side
	case n > 7:
		d.X.Tick.Label.Font.Size, figures.Size = 7.5, 6
	case n > 5:
		d.X.Tick.Label.Font.Size, figures.Size = 9, 7
	}
	top := 0.0
	for i, s := range all {
		offset := vg.Points(width * (float64(i) - float64(len(all)-1)/2))
		labels, err := valueLabels(s.Values, figures, offset)
		if err != nil {
			return nil, err
		}
		for _, xy := range labels.XYs {
			top = max(top, xy.Y)
		}
		bars, err := b.bars(d, i, s, width)
		if err != nil {
			return nil, err
		}
		bars.Offset = offset
		d.Add(bars, labels)
	}
	d.NominalX(b.Names...)
	d.Y.Min, d.Y.Max = 0, headroom(top)
	d.X.Min, d.X.Max = -0.6, float64(len(b.Names))-0.4
	return d, nil
}

// bars returns the bars of the i-th series, whose name it adds to the legend.
func (b Bars) bars(d *drawing, i int, s Series, width float64) (*plotter.BarChart, error) {
	values := make(plotter.Values, len(s.Values))
	for j, v := range s.Values {
		if !math.IsNaN(v) {
			values[j] = v
		}
	}
	bars, err := plotter.NewBarChart(values, vg.Points(width))
	if err != nil {
		return nil, err
	}
	bars.Color, bars.LineStyle.Width = palette[i%len(palette)], 0
	if s.Pale {
		bars.Color = color.RGBA{0xb8, 0xc2, 0xcc, 0xff}
	}
	d.key(s.Name, bars)
	return bars, nil
}

// valueLabels writes values above their bars.
func valueLabels(values []float64, figures font.Font, offset vg.Length) (*plotter.Labels, error) {
	at := plotter.XYLabels{XYs: make(plotter.XYs, len(values)), Labels: make([]string, len(values))}
	for j, v := range values {
		if at.XYs[j].X = float64(j); math.IsNaN(v) {
			continue
		}
		at.XYs[j].Y, at.Labels[j] = v, fmt.Sprintf("%.3g", v)
		if v >= 100 {
			at.Labels[j] = fmt.Sprintf("%.0f", v)
		}
	}
	labels, err := plotter.NewLabels(at)
	if err != nil {
		return nil, err
	}
	for j := range labels.TextStyle {
		labels.TextStyle[j].Font, labels.TextStyle[j].XAlign = figures, draw.XCenter
	}
	labels.Offset = vg.Point{X: offset, Y: vg.Points(2)}
	return labels, nil
}

// stack draws the series one after the other, a bar a name; the first name is at the top.
func (b Bars) stack(d *drawing) error {
	names := slices.Clone(b.Names)
	slices.Reverse(names) // the axis starts at the bottom
	var below *plotter.BarChart
	sums := make([]float64, len(names))
	for i, s := range b.Series {
		s.Values = slices.Clone(s.Values)
		slices.Reverse(s.Values)
		bars, err := b.bars(&drawing{}, i, s, 16)
		if err != nil {
			return err
		}
		if slices.Max(bars.Values) == 0 {
			continue
		}
		for j, v := range bars.Values {
			sums[j] += v
		}
		if bars.Horizontal = true; below != nil {
			bars.StackOn(below)
		}
		below = bars
		d.Add(bars)
		d.key(s.Name, bars)
	}
	d.NominalY(names...)
	d.X.Min, d.X.Max = 0, headroom(slices.Max(append(sums, 0)))
	d.Y.Min, d.Y.Max = -0.6, float64(len(names))-0.4
	return nil
}
