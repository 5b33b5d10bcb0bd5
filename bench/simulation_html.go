package bench

import (
	"io"
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"kvferry/bench/page"
	"kvferry/sim"
)

// WriteHTML writes report.html of one point: distributions and tables in a file
// that loads nothing from elsewhere.
func (r *SimulationResult) WriteHTML(w io.Writer) error {
	report := page.Page{
		Title: "kvbench simulate",
		Sub:   []string{"Virtual time, everything modelled: " + r.Cluster.Profile + " (" + r.Cluster.GPU + ").", "Cluster: " + r.Cluster.String() + ".", "Load: " + r.Load.String() + "."},
		Lines: r.lines(),
	}
	for _, t := range r.tables() {
		report.Tables = append(report.Tables, t.HTML(-1))
	}
	var plots []*plot.Plot
	for _, d := range []struct {
		title string
		h     *sim.Histogram
		limit float64
	}{{"TTFT (ms), share of requests", r.TTFT, float64(r.SLO.TTFT) / 1e6}, {"TPOT (ms), share of requests", r.TPOT, float64(r.SLO.TPOT) / 1e6}} {
		if d.h == nil || d.h.Count() == 0 {
			continue
		}
		p, err := distribution(d.title, d.h, d.limit)
		if err != nil {
			return err
		}
		plots = append(plots, p)
	}
	record := *r
	record.Nodes = nil // thousands, perhaps; summary.json has them
	return report.Write(w, plots, record)
}

// distribution draws the share of values up to x, and the SLO's limit.
func distribution(title string, h *sim.Histogram, limit float64) (*plot.Plot, error) {
	p := page.NewPlot(title)
	var points plotter.XYs
	for q := 0.0; q <= 99.9; q += 0.1 {
		points = append(points, plotter.XY{X: float64(h.Percentile(q)) / 1e6, Y: q / 100})
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return nil, err
	}
	line.Color, line.Width = page.Palette[0], vg.Points(1.5)
	p.Add(line)
	if limit > 0 && limit < 3*points[len(points)-1].X {
		slo, err := plotter.NewLine(plotter.XYs{{X: limit, Y: 0}, {X: limit, Y: 1}})
		if err != nil {
			return nil, err
		}
		slo.Color, slo.Dashes = page.Palette[5], []vg.Length{vg.Points(4), vg.Points(3)}
		p.Add(slo)
		p.Legend.Add("SLO", slo)
		p.Legend.Top = false
	}
	p.X.Min, p.Y.Min, p.Y.Max = 0, 0, 1
	return p, nil
}

// WriteHTML writes report.html of a sweep: curves over the first parameter, one
// for each value of the second, with the best point marked.
func (r *SweepResult) WriteHTML(w io.Writer) error {
	report := page.Page{Title: "kvbench simulate: sweep of " + r.names(), Best: r.Why, Tables: []page.HTMLTable{r.table().HTML(r.Best)}}
	if len(r.Points) > 0 {
		p := r.Points[0]
		report.Sub = []string{
			"Virtual time, everything modelled: " + p.Cluster.Profile + " (" + p.Cluster.GPU + ").",
			"First point: " + p.Cluster.String() + ".", "Its load: " + p.Load.String() + ".",
			"SLO: " + sloText(p.SLO) + ".",
		}
	}
	var plots []*plot.Plot
	role := func(p *SimulationResult, of func(*Role) float64) (most float64) {
		for i := range p.Roles {
			most = max(most, of(&p.Roles[i]))
		}
		return 100 * most
	}
	p99 := func(metric string, p *SimulationResult) float64 {
		if l, ok := p.latency(metric); ok {
			return l.P99
		}
		return math.NaN()
	}
	for _, c := range []struct {
		title string
		of    func(*SimulationResult) float64
	}{
		{"Goodput (requests/s)", func(p *SimulationResult) float64 { return p.Goodput }},
		{"Goodput a GPU (requests/s)", func(p *SimulationResult) float64 { return p.GoodputGPU }},
		{"Requests that kept the SLO (%)", func(p *SimulationResult) float64 { return 100 * p.Attained }},
		{"P99 TTFT (ms)", func(p *SimulationResult) float64 { return p99("ttft", p) }},
		{"P99 TPOT (ms)", func(p *SimulationResult) float64 { return p99("tpot", p) }},
		{"GPU busy with prompts, busiest role (%)", func(p *SimulationResult) float64 { return role(p, func(k *Role) float64 { return k.Prefill }) }},
		{"GPU busy with decoding, busiest role (%)", func(p *SimulationResult) float64 { return role(p, func(k *Role) float64 { return k.Decode }) }},
		{"NIC, the busiest direction (%)", func(p *SimulationResult) float64 {
			return role(p, func(k *Role) float64 { return max(k.SentMax, k.ReceivedMax) })
		}},
	} {
		p, err := r.curves(c.title, c.of)
		if err != nil {
			return err
		}
		plots = append(plots, p)
	}
	return report.Write(w, plots, r)
}

func (r *SweepResult) names() string {
	var names []string
	for _, p := range r.Params {
		names = append(names, p.Name)
	}
	return strings.Join(names, " x ")
}

// axis is where a value of the first parameter is drawn: at its number if all
// have one, else at its place in the list.
func (r *SweepResult) axis() (at map[string]float64, ticks []plot.Tick) {
	at = map[string]float64{}
	numeric := true
	for _, v := range r.Params[0].Values {
		x, err := strconv.ParseFloat(v, 64)
		numeric = numeric && err == nil && !math.IsInf(x, 0)
		at[v] = x
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
func (r *SweepResult) curves(title string, of func(*SimulationResult) float64) (*plot.Plot, error) {
	p := page.NewPlot(title)
	at, ticks := r.axis()
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	p.X.Label.Text = r.Params[0].Name
	curves := []string{""}
	if len(r.Params) > 1 {
		curves = r.Params[1].Values
	}
	for i, curve := range curves {
		var xy plotter.XYs
		for _, q := range r.Points {
			y := of(q)
			if !math.IsNaN(y) && (len(r.Params) == 1 || q.Params[r.Params[1].Name] == curve) {
				xy = append(xy, plotter.XY{X: at[q.Params[r.Params[0].Name]], Y: y})
			}
		}
		if len(xy) == 0 {
			continue
		}
		line, points, err := plotter.NewLinePoints(xy)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = page.Palette[i%len(page.Palette)], vg.Points(1.5)
		points.Color, points.Shape, points.Radius = line.Color, draw.CircleGlyph{}, vg.Points(2.5)
		p.Add(line, points)
		if curve != "" {
			p.Legend.Add(r.Params[1].Name+"="+curve, line)
		}
	}
	if r.Best >= 0 && !math.IsNaN(of(r.Points[r.Best])) {
		b := r.Points[r.Best]
		mark, err := plotter.NewScatter(plotter.XYs{{X: at[b.Params[r.Params[0].Name]], Y: of(b)}})
		if err != nil {
			return nil, err
		}
		mark.Color, mark.Shape, mark.Radius = page.Palette[5], draw.RingGlyph{}, vg.Points(6)
		p.Add(mark)
		p.Legend.Add("best", mark)
	}
	p.Y.Min = min(p.Y.Min, 0)
	if p.Y.Max <= p.Y.Min {
		p.Y.Max = p.Y.Min + 1
	}
	return p, nil
}
