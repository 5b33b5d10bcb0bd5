package simulation

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"kvferry/bench/document"
	"kvferry/bench/stats"
)

// document returns the report of a single point.
func (r *Result) document() *document.Document {
	brief := *r
	brief.Nodes = nil // thousands, perhaps; summary.json has them
	d := &document.Document{
		Title: "kvferry sim", Brief: brief,
		Head: []string{fmt.Sprintf("virtual time, everything modelled: %s (%s)", r.Cluster.Profile, r.Cluster.GPU), "cluster  " + r.Cluster.String(), "load     " + r.Load.String()},
		Sections: []document.Section{{Tables: r.tables(), Plots: []document.Plot{
			distribution("TTFT (ms), share of requests", r.TTFT, r.SLO.Limit("ttft")), distribution("TPOT (ms), share of requests", r.TPOT, r.SLO.Limit("tpot")),
		}}},
	}
	d.Notes.Add(document.Info, r.lines()...)
	return d
}

// distribution returns a plot of the cumulative distribution with the SLO's limit, nil if h has no values.
func distribution(title string, h *stats.Histogram, limit float64) document.Plot {
	if h == nil || h.Count() == 0 {
		return nil
	}
	var values []float64
	for q := 0; q <= 999; q++ {
		values = append(values, float64(h.Percentile(float64(q)/10))/1e6)
	}
	return document.CDF(title, "ms", []document.Distribution{{Values: values}}, limit)
}

// document returns the report of a sweep: curves over the first parameter, one for each value of the second, with
// the best point marked.
func (r *SweepResult) document() *document.Document {
	d := &document.Document{Title: "kvferry sim: sweep of " + r.names(), Verdict: "best: " + r.Why, DataName: sweepFile, Brief: r}
	all := document.Section{Tables: []document.Table{r.table()}}
	if len(r.Points) > 0 {
		p := r.Points[0]
		d.Head = []string{
			fmt.Sprintf("virtual time, everything modelled: %s (%s); SLO %s", p.Cluster.Profile, p.Cluster.GPU, sloText(p.SLO)),
			"first    " + p.Cluster.String(), "load     " + p.Load.String(),
		}
	}
	d.Notes.Add(document.Info, r.lines()...)
	for _, p := range r.Points {
		if p.Failed > 0 {
			d.Notes.Addf(document.Info, "refused at %s: %d of %d requests, the first: %s", r.label(p), p.Failed, p.Requests, p.failure())
		}
	}
	busiest := func(of func(Role) float64) func(*Result) float64 {
		return func(p *Result) float64 { return 100 * greatest(p.Roles, of) }
	}
	figureOf := func(metric string, of func(stats.Summary) float64) func(*Result) float64 {
		return func(p *Result) float64 {
			if l, ok := p.latency(metric); ok {
				return of(l)
			}
			return math.NaN()
		}
	}
	mean, p99 := func(l stats.Summary) float64 { return l.Mean }, func(l stats.Summary) float64 { return l.P99 }
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
		{"GPU busy with prompts, busiest role (%)", busiest(func(k Role) float64 { return k.Prefill })},
		{"GPU busy with decoding, busiest role (%)", busiest(func(k Role) float64 { return k.Decode })},
		{"NIC, the busiest direction (%)", busiest(func(k Role) float64 { return max(k.SentMax, k.ReceivedMax) })},
	} {
		all.Plots = append(all.Plots, r.curves(c.title, c.of))
	}
	d.Sections = []document.Section{all}
	return d
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

// curves returns a plot of one figure of the points. NaN is left out.
func (r *SweepResult) curves(title string, of func(*Result) float64) document.Chart {
	at, ticks := r.axis()
	c := document.Chart{Title: title, X: document.Axis{Label: r.Params[0].Name, Ticks: ticks}, Style: document.Points}
	point := func(p *Result) plotter.XY { return plotter.XY{X: at[p.Params[r.Params[0].Name]], Y: of(p)} }
	names := []string{""}
	if len(r.Params) > 1 {
		names = r.Params[1].Values
	}
	top := 0.0
	curves := make([]plotter.XYs, len(names))
	for i, name := range names {
		for _, p := range r.Points {
			if xy := point(p); !math.IsNaN(xy.Y) && (len(r.Params) == 1 || p.Params[r.Params[1].Name] == name) {
				curves[i] = append(curves[i], xy)
				top = max(top, xy.Y)
			}
		}
		slices.SortFunc(curves[i], func(a, b plotter.XY) int { return cmp.Compare(a.X, b.X) })
	}
	for i, xy := range curves {
		name := ""
		if names[i] != "" {
			name = r.Params[1].Name + "=" + names[i]
			if same := slices.IndexFunc(curves[:i], func(o plotter.XYs) bool { return alike(o, xy, top) }); same >= 0 {
				name += " (as " + names[same] + ")"
			}
		}
		c.Curves = append(c.Curves, document.Curve{Name: name, XYs: xy})
	}
	if r.Best >= 0 && !math.IsNaN(of(r.Points[r.Best])) {
		best := point(r.Points[r.Best])
		c.Best = &best
	}
	return c
}

// alike says that two curves cannot be told apart on an axis up to top.
func alike(a, b plotter.XYs, top float64) bool {
	return slices.EqualFunc(a, b, func(p, q plotter.XY) bool { return p.X == q.X && math.Abs(p.Y-q.Y) <= 0.01*top })
}
