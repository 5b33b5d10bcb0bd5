package simulation

import (
	"cmp"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"kvferry/bench/figure"
	"kvferry/bench/page"
)

// WriteHTML writes report.html of one point: distributions and tables in a file
// that loads nothing from elsewhere.
func (r *Result) WriteHTML(w io.Writer) error {
	report := page.Page{
		Title: "kvferry sim",
		Sub:   []string{"Virtual time, everything modelled: " + r.Cluster.Profile + " (" + r.Cluster.GPU + ").", "Cluster: " + r.Cluster.String() + ".", "Load: " + r.Load.String() + "."},
		Lines: r.lines(),
	}
	var all page.Section
	for _, t := range r.tables() {
		all.Tables = append(all.Tables, t.HTML(-1))
	}
	for _, d := range []struct {
		title string
		h     *figure.Histogram
		limit float64
	}{{"TTFT (ms), share of requests", r.TTFT, float64(r.SLO.TTFT) / 1e6}, {"TPOT (ms), share of requests", r.TPOT, float64(r.SLO.TPOT) / 1e6}} {
		if d.h == nil || d.h.Count() == 0 {
			continue
		}
		p, err := distribution(d.title, d.h, d.limit)
		if err != nil {
			return err
		}
		all.Plots = append(all.Plots, p)
	}
	report.Sections = []page.Section{all}
	record := *r
	record.Nodes = nil // thousands, perhaps; summary.json has them
	return report.Write(w, record)
}

// distribution draws the share of values up to x, and the SLO's limit.
func distribution(title string, h *figure.Histogram, limit float64) (*page.Plot, error) {
	p := page.NewPlot(title)
	var points plotter.XYs
	for q := 0.0; q <= 99.9; q += 0.1 {
		points = append(points, plotter.XY{X: float64(h.Percentile(q)) / 1e6, Y: q / 100})
	}
	if _, err := p.Curve(0, "", points, false); err != nil {
		return nil, err
	}
	if limit > 0 && limit < 3*points[len(points)-1].X {
		slo, err := plotter.NewLine(plotter.XYs{{X: limit, Y: 0}, {X: limit, Y: 1}})
		if err != nil {
			return nil, err
		}
		slo.Color, slo.Dashes = page.Palette[5], []vg.Length{vg.Points(4), vg.Points(3)}
		p.Add(slo)
		p.Key("SLO", slo)
	}
	p.X.Min, p.Y.Min, p.Y.Max = 0, 0, 1
	return p, nil
}

// WriteHTML writes report.html of a sweep: curves over the first parameter, one
// for each value of the second, with the best point marked.
func (r *SweepResult) WriteHTML(w io.Writer) error {
	report := page.Page{Title: "kvferry sim: sweep of " + r.names(), Verdict: r.Why, Lines: r.lines()}
	all := page.Section{Tables: []page.HTMLTable{r.table().HTML(r.Best)}}
	if len(r.Points) > 0 {
		p := r.Points[0]
		report.Sub = []string{
			"Virtual time, everything modelled: " + p.Cluster.Profile + " (" + p.Cluster.GPU + ").",
			"First point: " + p.Cluster.String() + ".", "Its load: " + p.Load.String() + ".",
			"SLO: " + sloText(p.SLO) + ".",
		}
	}
	role := func(p *Result, of func(*Role) float64) (most float64) {
		for i := range p.Roles {
			most = max(most, of(&p.Roles[i]))
		}
		return 100 * most
	}
	figureOf := func(metric string, of func(LatencyRecord) float64) func(*Result) float64 {
		return func(p *Result) float64 {
			if l, ok := p.latency(metric); ok {
				return of(l)
			}
			return math.NaN()
		}
	}
	mean, p99 := func(l LatencyRecord) float64 { return l.Mean }, func(l LatencyRecord) float64 { return l.P99 }
	for _, c := range []struct {
		title string
		of    func(*Result) float64
	}{
		{"Goodput (requests/s)", func(p *Result) float64 { return p.Goodput }},
		{"Goodput a GPU (requests/s)", func(p *Result) float64 { return p.GoodputGPU }},
		{"Requests that kept the SLO (%)", func(p *Result) float64 { return 100 * p.Attained }},
		{"Mean TTFT (ms)", figureOf("ttft", mean)},
		{"P99 TTFT (ms)", figureOf("ttft", p99)},
		{"P99 TPOT (ms)", figureOf("tpot", p99)},
		{"Mean E2EL (ms)", figureOf("e2el", mean)},
		{"P99 E2EL (ms)", figureOf("e2el", p99)},
		{"GPU busy with prompts, busiest role (%)", func(p *Result) float64 { return role(p, func(k *Role) float64 { return k.Prefill }) }},
		{"GPU busy with decoding, busiest role (%)", func(p *Result) float64 { return role(p, func(k *Role) float64 { return k.Decode }) }},
		{"NIC, the busiest direction (%)", func(p *Result) float64 {
			return role(p, func(k *Role) float64 { return max(k.SentMax, k.ReceivedMax) })
		}},
	} {
		p, err := r.curves(c.title, c.of)
		if err != nil {
			return err
		}
		all.Plots = append(all.Plots, p)
	}
	report.Sections = []page.Section{all}
	return report.Write(w, r)
}

func (r *SweepResult) names() string {
	var names []string
	for _, p := range r.Params {
		names = append(names, p.Name)
	}
	return strings.Join(names, " x ")
}

// crowded is the least distance of two values on an axis, as a share of all of it, at
// which their labels can be read.
const crowded = 0.06

// axis is where a value of the first parameter is drawn: at its number if all have one
// and their labels have room, else at its position in the list.
func (r *SweepResult) axis() (at map[string]float64, ticks []plot.Tick) {
	at = map[string]float64{}
	numeric := true
	var numbers []float64
	for _, v := range r.Params[0].Values {
		x, err := strconv.ParseFloat(v, 64)
		numeric = numeric && err == nil && !math.IsInf(x, 0)
		at[v] = x
		numbers = append(numbers, x)
	}
	slices.Sort(numbers)
	for i := 1; numeric && i < len(numbers); i++ {
		numeric = numbers[i]-numbers[i-1] >= crowded*(numbers[len(numbers)-1]-numbers[0])
	}
	for i, v := range r.Params[0].Values {
		if !numeric {
			at[v] = float64(i)
		}
		ticks = append(ticks, plot.Tick{Value: at[v], Label: v})
	}
	return at, ticks
}

// curves draws a figure of the points; one that is NaN is left out.
func (r *SweepResult) curves(title string, of func(*Result) float64) (*page.Plot, error) {
	p := page.NewPlot(title)
	at, ticks := r.axis()
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	p.X.Label.Text = r.Params[0].Name
	names := []string{""}
	if len(r.Params) > 1 {
		names = r.Params[1].Values
	}
	top := 0.0
	curves := make([]plotter.XYs, len(names))
	for i, name := range names {
		for _, q := range r.Points {
			y := of(q)
			if !math.IsNaN(y) && (len(r.Params) == 1 || q.Params[r.Params[1].Name] == name) {
				curves[i] = append(curves[i], plotter.XY{X: at[q.Params[r.Params[0].Name]], Y: y})
				top = max(top, y)
			}
		}
		slices.SortFunc(curves[i], func(a, b plotter.XY) int { return cmp.Compare(a.X, b.X) })
	}
	for i, xy := range curves {
		if len(xy) == 0 {
			continue
		}
		name := ""
		if names[i] != "" {
			name = r.Params[1].Name + "=" + names[i]
			if same := slices.IndexFunc(curves[:i], func(o plotter.XYs) bool { return alike(o, xy, top) }); same >= 0 {
				name += " (as " + names[same] + ")"
			}
		}
		if _, err := p.Curve(i, name, xy, true); err != nil {
			return nil, err
		}
	}
	if r.Best >= 0 && !math.IsNaN(of(r.Points[r.Best])) {
		b := r.Points[r.Best]
		mark, err := plotter.NewScatter(plotter.XYs{{X: at[b.Params[r.Params[0].Name]], Y: of(b)}})
		if err != nil {
			return nil, err
		}
		mark.Color, mark.Shape, mark.Radius = page.Palette[5], draw.RingGlyph{}, vg.Points(7)
		p.Add(mark)
		p.Key("best", mark)
	}
	p.Y.Min, p.Y.Max = 0, page.Headroom(top)
	return p, nil
}

// alike says that two curves cannot be told apart on an axis up to top.
func alike(a, b plotter.XYs, top float64) bool {
	return slices.EqualFunc(a, b, func(p, q plotter.XY) bool { return p.X == q.X && math.Abs(p.Y-q.Y) <= 0.01*top })
}
