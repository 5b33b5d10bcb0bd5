package document

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"

	"gonum.org/v1/plot/plotter"
)

// A label is a text of a plot and how high above the plot's lower edge it stands, in
// points.
type label struct {
	text   string
	height float64
}

// labels reads the texts of an SVG.
func labels(t *testing.T, svg string) (all []label) {
	t.Helper()
	dec := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := dec.Token()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "text" {
			var l label
			for _, a := range e.Attr {
				if a.Name.Local == "y" {
					y, err := strconv.ParseFloat(a.Value, 64)
					if err != nil {
						t.Fatal(err)
					}
					l.height = -y // the canvas is turned upside down
				}
			}
			if err := dec.DecodeElement(&l.text, &e); err != nil {
				t.Fatal(err)
			}
			all = append(all, l)
		}
	}
}

// TestLegend: it stands below the axis and everything drawn above it, however many
// names there are, and the plot scales with its page.
func TestLegend(t *testing.T) {
	for _, n := range []int{0, 1, 3, 9} {
		p := Chart{Title: "curves", X: Axis{Label: "x axis"}, Style: Points, Curves: []Curve{{XYs: plotter.XYs{{X: 1, Y: 1}}}}}
		for i := range n {
			p.Curves = append(p.Curves, Curve{Name: fmt.Sprintf("curve number %d", i), XYs: plotter.XYs{{X: 0, Y: 0}, {X: 1, Y: float64(i)}}})
		}
		d, err := p.draw()
		if err != nil {
			t.Fatal(err)
		}
		svg, err := d.svg()
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(svg, ">")
		if !strings.Contains(head, "viewBox=") || strings.Contains(head, "width=") || strings.Contains(head, "height=") {
			t.Errorf("%s: want a viewBox and no size", head)
		}
		named, lowest := 0, math.Inf(1)
		texts := labels(t, svg)
		for _, l := range texts {
			if !strings.HasPrefix(l.text, "curve number") {
				lowest = min(lowest, l.height)
			}
		}
		for _, l := range texts {
			if strings.HasPrefix(l.text, "curve number") {
				if named++; l.height >= lowest || l.height < 0 {
					t.Errorf("%d curves: %q is at %.1f, the axis' lowest text at %.1f", n, l.text, l.height, lowest)
				}
			}
		}
		if named != n {
			t.Errorf("%d names of %d curves", named, n)
		}
	}
}

// TestEqualCurves: of curves on one another each is seen, by its dashes and points.
func TestEqualCurves(t *testing.T) {
	d := newDrawing("equal")
	seen := map[string]bool{}
	for i := range 12 {
		if err := d.curve(i, Curve{Name: "c", XYs: plotter.XYs{{X: 0, Y: 1}, {X: 1, Y: 1}}}, Points); err != nil {
			t.Fatal(err)
		}
		line := d.keys[i].thumbs[0].(*plotter.Line)
		seen[fmt.Sprint(line.Color, line.Dashes)] = true
		if i > 0 && i < 5 && len(line.Dashes) == 0 {
			t.Errorf("curve %d hides those below it", i)
		}
	}
	if len(seen) != 12 {
		t.Errorf("12 curves look like %d", len(seen))
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		want      string
	}{
		{0, 57328, "0 10000 20000 30000 40000 50000"},
		{0, 100, "0 20 40 60 80 100"},
		{0, 2.2, "0.0 0.5 1.0 1.5 2.0"},
		{0, 1, "0.0 0.2 0.4 0.6 0.8 1.0"},
		{0, 0.037, "0.00 0.01 0.02 0.03"},
		{-3, 3, "-3 -2 -1 0 1 2 3"},
		{-0.1, 0.1, "-0.10 -0.05 0.00 0.05 0.10"},
		{1e-9, 5e-9, "0.000000001 0.000000002 0.000000003 0.000000004 0.000000005"},
		{5, 5, "5"},
	} {
		var got []string
		for _, tick := range (Ticks{}).Ticks(c.low, c.high) {
			got = append(got, tick.Label)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%v to %v: %q, want %q", c.low, c.high, got, c.want)
		}
	}
	// What any axis may ask for: some labels, in order, within it and of a bearable length.
	for _, low := range []float64{0, -7, 1e-3, 12345} {
		for span := 1e-6; span < 1e10; span *= 3.7 {
			ticks := (Ticks{}).Ticks(low, low+span)
			if len(ticks) < 2 || len(ticks) > 8 {
				t.Errorf("%v to %v has %d labels", low, low+span, len(ticks))
			}
			for i, tick := range ticks {
				if len(tick.Label) > 14 || tick.Value < low-1e-6*span || tick.Value > low+span*(1+1e-6) || i > 0 && tick.Label == ticks[i-1].Label {
					t.Errorf("%v to %v: %q at %v", low, low+span, tick.Label, tick.Value)
				}
			}
		}
	}
}

// TestDecadeTicks: labels of a log axis have room, over however many decades: 12 at most, none twice.
func TestDecadeTicks(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		want      string
	}{
		{1, 100, "1 2 5 10 20 50 100"},
		{8, 700, "10 20 50 100 200 500"},
		{0.5, 500, "0.5 1 2 5 10 20 50 100 200 500"},
		{1, 20000, "1 10 100 1000 10000"},
		{0.01, 5e4, "0.01 0.1 1 10 100 1000 10000"},
		{1e-6, 1e6, "1e-06 0.0001 0.01 1 100 10000 1000000"},
		{1e-9, 1e12, "1e-09 1e-06 0.001 1 1000 1000000 1e+09 1e+12"},
	} {
		var got []string
		minor := 0
		for _, tick := range (DecadeTicks{}).Ticks(c.low, c.high) {
			if tick.Label == "" {
				minor++
			} else {
				got = append(got, tick.Label)
			}
		}
		if strings.Join(got, " ") != c.want || minor == 0 {
			t.Errorf("%v to %v: %q and %d marks without, want %q", c.low, c.high, got, minor, c.want)
		}
	}
}
