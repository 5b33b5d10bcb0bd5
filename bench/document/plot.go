package document

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"regexp"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// palette is Okabe and Ito's, which colour-blind readers can tell apart.
var palette = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, // blue
	{0xe6, 0x9f, 0x00, 0xff}, // orange
	{0x00, 0x9e, 0x73, 0xff}, // green
	{0xcc, 0x79, 0xa7, 0xff}, // purple
	{0x56, 0xb4, 0xe9, 0xff}, // sky
	{0xd5, 0x5e, 0x00, 0xff}, // vermilion
	{0x99, 0x99, 0x99, 0xff}, // grey
}

// A plot is as wide as its place on a page for a wide screen: its letters are then
// 13 pixels high, and 10 on a telephone.
const plotWidth, plotHeight = 5.2 * vg.Inch, 2.9 * vg.Inch

// A drawing is a plot on its way to the page. Its legend stands below the axes, never over the data.
type drawing struct {
	*plot.Plot
	keys []key
}

type key struct {
	name   string
	thumbs []plot.Thumbnailer
}

func sans(size vg.Length) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
}

// newDrawing returns an empty plot in the reports' style.
func newDrawing(title string) *drawing {
	p := plot.New()
	p.BackgroundColor = nil // the page's shows, light or dark
	for _, f := range []*font.Font{
		&p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font, &p.X.Tick.Label.Font, &p.Y.Tick.Label.Font,
	} {
		*f = sans(10)
	}
	p.Title.Text = title
	p.Title.TextStyle.Font = sans(12)
	p.Title.Padding = vg.Points(6)
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.LineStyle.Color = color.Gray{0x88}
		a.Tick.LineStyle.Color = color.Gray{0x88}
		a.Tick.Marker = Ticks{}
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xee}, color.Gray{0xee}
	p.Add(grid)
	return &drawing{Plot: p}
}

// key adds a name to the legend, in front of it what it is drawn with.
func (d *drawing) key(name string, thumbs ...plot.Thumbnailer) {
	if name != "" {
		d.keys = append(d.keys, key{name, thumbs})
	}
}

// Curves that lie on one another are all seen: each has dashes that show what is
// below, and points of a shape of its own.
var (
	dashes = [][]float64{nil, {7, 5}, {2, 4}, {10, 4, 2, 4}, {4, 2}}
	shapes = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.RingGlyph{}, draw.CrossGlyph{}, draw.PlusGlyph{}}
)

// curve draws the i-th curve of a plot: its line unless it has dots alone, and its points if they are wanted.
func (d *drawing) curve(i int, c Curve, style Style) error {
	line, marks, err := plotter.NewLinePoints(c.XYs)
	if err != nil {
		return err
	}
	shade := palette[i%len(palette)]
	line.Color, line.Width = shade, vg.Points(1.5)
	for _, dash := range dashes[i%len(dashes)] {
		line.Dashes = append(line.Dashes, vg.Points(dash))
	}
	if c.Steps {
		line.StepStyle = plotter.PostStep
	}
	marks.GlyphStyle = draw.GlyphStyle{Color: shade, Shape: shapes[i%len(shapes)], Radius: vg.Points(2.5 + 0.7*float64(i%len(shapes)))}
	d.Add(line)
	thumbs := []plot.Thumbnailer{line}
	if style != Line {
		d.Add(marks)
		thumbs = append(thumbs, marks)
	}
	d.key(c.Name, thumbs...)
	return nil
}

// Ticks label round numbers of a linear axis, with as many decimals as they need.
type Ticks struct{}

// ticksWanted is how many labels an axis has, or some fewer.
const ticksWanted = 6

// Ticks implements plot.Ticker.
func (Ticks) Ticks(low, high float64) []plot.Tick {
	span := high - low
	if !(span > 0) || math.IsInf(span, 0) {
		return []plot.Tick{{Value: low, Label: strconv.FormatFloat(low, 'g', 4, 64)}}
	}
	decade := math.Pow10(int(math.Floor(math.Log10(span / ticksWanted))))
	step := decade
	for _, m := range []float64{1, 2, 5, 10} {
		if step = m * decade; span/step <= ticksWanted {
			break
		}
	}
	decimals := max(0, -int(math.Floor(math.Log10(step)+1e-9)))
	var ticks []plot.Tick
	for n := math.Ceil(low/step - 1e-9); n*step <= high+step*1e-9; n++ {
		v := n * step
		if n == 0 {
			v = 0 // and not -0
		}
		ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'f', decimals, 64)})
	}
	return ticks
}

// DecadeTicks label 1, 2 and 5 of each decade of a log axis, of more than three decades each, and of more than seven
// some of these: as many labels as have room.
type DecadeTicks struct{}

// Ticks implements plot.Ticker.
func (DecadeTicks) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	decades := math.Log10(high / low)
	every := max(1, int(math.Ceil(decades/(ticksWanted+1))))
	for power := int(math.Floor(math.Log10(low))); math.Pow10(power) <= high; power++ {
		for m := 1.0; m < 10; m++ {
			v := m * math.Pow10(power)
			if v < low || v > high {
				continue
			}
			t := plot.Tick{Value: v}
			if m == 1 && power%every == 0 || decades <= 3 && (m == 2 || m == 5) {
				if t.Label = fmt.Sprintf("%.4g", v); v >= 1e4 && v < 1e9 {
					t.Label = fmt.Sprintf("%.0f", v)
				}
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

// Measures of the legend: a row, the picture before a name, and spaces.
const (
	legendRow   = 17 * vg.Length(1)
	legendThumb = 22 * vg.Length(1)
	legendGap   = 5 * vg.Length(1)
	legendSpace = 16 * vg.Length(1)
)

// A placed key is one with its place: of its left end, and its row from the top.
type placed struct {
	key
	x   vg.Length
	row int
}

// legend places the keys in rows of width at most, as far as one key goes.
func (p *drawing) legend(style draw.TextStyle, width vg.Length) (all []placed, rows int) {
	x := vg.Length(0)
	for _, k := range p.keys {
		w := legendThumb + legendGap + style.Width(k.name)
		if x > 0 && x+w > width {
			x, rows = 0, rows+1
		}
		all = append(all, placed{k, x, rows})
		x += w + legendSpace
	}
	if len(all) > 0 {
		rows++
	}
	return all, rows
}

var size = regexp.MustCompile(`\s(width|height)="[^"]*"`)

// svg renders the plot as an <svg> element for a page, without the XML prolog. It has
// a viewBox and no size of its own, so that a page can scale it. Fonts are named, not
// embedded: half a megabyte a plot.
func (p *drawing) svg() (string, error) {
	const margin = 8
	style := draw.TextStyle{Color: color.Black, Font: sans(10), XAlign: draw.XLeft, YAlign: draw.YCenter, Handler: p.Title.TextStyle.Handler}
	keys, rows := p.legend(style, plotWidth-2*margin)
	below := legendRow * vg.Length(rows)
	c := vgsvg.NewWith(vgsvg.UseWH(plotWidth, plotHeight+below))
	all := draw.New(c)
	p.Draw(draw.Crop(all, margin, -margin, below, -margin))
	for _, k := range keys {
		x, y := margin+k.x, below-legendRow*(vg.Length(k.row)+0.5)
		thumb := draw.Canvas{Canvas: all.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: x, Y: y - 4}, Max: vg.Point{X: x + legendThumb, Y: y + 4},
		}}
		for _, t := range k.thumbs {
			t.Thumbnail(&thumb)
		}
		all.FillText(style, vg.Point{X: x + legendThumb + legendGap, Y: y}, k.name)
	}
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", err
	}
	svg := b.String()
	start := strings.Index(svg, "<svg")
	if start < 0 {
		return "", fmt.Errorf("renderer wrote no <svg>")
	}
	svg = svg[start:]
	open, rest, _ := strings.Cut(svg, ">")
	open = size.ReplaceAllString(open, "")
	return open + ">" + strings.ReplaceAll(rest, "font-family:Liberation Sans;", "font-family:'Liberation Sans',Arial,Helvetica,sans-serif;"), nil
}
