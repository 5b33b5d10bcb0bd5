package page

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Palette is Okabe and Ito's, which colour-blind readers can tell apart.
var Palette = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, // blue
	{0xe6, 0x9f, 0x00, 0xff}, // orange
	{0x00, 0x9e, 0x73, 0xff}, // green
	{0xcc, 0x79, 0xa7, 0xff}, // purple
	{0x56, 0xb4, 0xe9, 0xff}, // sky
	{0xd5, 0x5e, 0x00, 0xff}, // vermilion
	{0x99, 0x99, 0x99, 0xff}, // grey
}

const plotWidth, plotHeight = 6.4 * vg.Inch, 3.4 * vg.Inch

// NewPlot is an empty plot in the reports' style.
func NewPlot(title string) *plot.Plot {
	p := plot.New()
	sans := font.Font{Typeface: "Liberation", Variant: "Sans"}
	for _, f := range []*font.Font{
		&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font,
		&p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font,
	} {
		f.Typeface, f.Variant = sans.Typeface, sans.Variant
		f.Size = 10
	}
	p.Title.Text = title
	p.Title.TextStyle.Font.Size = 12
	p.Title.Padding = vg.Points(6)
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.LineStyle.Color = color.Gray{0x88}
		a.Tick.LineStyle.Color = color.Gray{0x88}
	}
	p.Legend.Top = true
	p.Legend.Padding = vg.Points(2)
	p.Legend.ThumbnailWidth = vg.Points(12)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xee}, color.Gray{0xee}
	p.Add(grid)
	return p
}

// DecadeTicks label 1, 2 and 5 of each decade of a log axis.
type DecadeTicks struct{}

// Ticks implements plot.Ticker.
func (DecadeTicks) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for decade := math.Pow10(int(math.Floor(math.Log10(low)))); decade <= high; decade *= 10 {
		for m := 1.0; m < 10; m++ {
			v := m * decade
			if v < low || v > high {
				continue
			}
			t := plot.Tick{Value: v}
			if m == 1 || m == 2 || m == 5 {
				if t.Label = fmt.Sprintf("%.4g", v); v >= 1e4 && v < 1e9 {
					t.Label = fmt.Sprintf("%.0f", v)
				}
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

// InlineSVG renders p as an <svg> element for a page, without the XML prolog.
// Fonts are named, not embedded: half a megabyte a plot.
func InlineSVG(p *plot.Plot) (string, error) {
	c := vgsvg.NewWith(vgsvg.UseWH(plotWidth, plotHeight))
	const margin = 8
	p.Draw(draw.Crop(draw.New(c), margin, -margin, 0, -margin))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", err
	}
	svg := b.String()
	start := strings.Index(svg, "<svg")
	if start < 0 {
		return "", fmt.Errorf("renderer wrote no <svg>")
	}
	return strings.ReplaceAll(svg[start:], "font-family:Liberation Sans;", "font-family:'Liberation Sans',Arial,Helvetica,sans-serif;"), nil
}
