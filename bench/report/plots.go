package report

import (
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"kvferry/bench/document"
	"kvferry/bench/stats"
)

// A Distribution is one curve of a plot: values in ascending order.
type Distribution struct {
	Name   string
	Values []float64
}

// curvePoints is how many points a curve of a distribution has at most: a gap a token is a
// million, and a plot has 500 pixels.
const curvePoints = 400

// decades is how many a distribution's axis shows at most, from the greatest value down. The
// gaps of chunks that came in one piece are microseconds; nobody wants to see how few.
const decades = 3

// linear is how many times the least value the greatest must be for the axis to be a
// logarithmic one, which has labels at 1, 2 and 5 of a decade only.
const linear = 8

// DistributionPlot draws which share of the values, of a unit, is up to what, with an SLO's limit
// if it is not 0. It is nil if there are no values.
func DistributionPlot(title, unit string, curves []Distribution, limit float64) (*document.Plot, error) {
	p := document.NewPlot(title)
	p.X.Label.Text = unit
	low, high := math.Inf(1), 0.0
	for _, c := range curves {
		if n := len(c.Values); n > 0 {
			high = max(high, c.Values[n-1])
			low = min(low, c.Values[0])
		}
	}
	if high <= 0 {
		return nil, nil
	}
	low = max(low, high/math.Pow10(decades)) // a log axis has no 0
	for i, c := range curves {
		if len(c.Values) == 0 {
			continue
		}
		if _, err := p.Curve(i, c.Name, cumulative(c.Values, low), false); err != nil {
			return nil, err
		}
	}
	if limit > 0 && limit > low/2 && limit < high*2 {
		if err := vertical(p, limit, "SLO"); err != nil {
			return nil, err
		}
		low, high = min(low, limit), max(high, limit)
	}
	if high < linear*low {
		margin := max((high-low)/20, high/100)
		p.X.Min, p.X.Max = max(low-margin, 0), high+margin
	} else {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, document.DecadeTicks{}
		p.X.Min, p.X.Max = low/1.1, high*1.1
	}
	p.Y.Min, p.Y.Max = 0, 1
	return p, nil
}

// cumulative are the points of a distribution: at x the share of the values that are no greater.
// What is below low is drawn at low.
func cumulative(values []float64, low float64) plotter.XYs {
	n := min(curvePoints, len(values))
	points := plotter.XYs{{X: max(values[0], low), Y: 0}}
	for i := 1; i <= n; i++ {
		share := float64(i) / float64(n)
		points = append(points, plotter.XY{X: max(stats.Percentile(values, 100*share), low), Y: share})
	}
	return points
}

// vertical draws a limit, over all of the axis of shares.
func vertical(p *document.Plot, at float64, name string) error {
	line, err := plotter.NewLine(plotter.XYs{{X: at, Y: 0}, {X: at, Y: 1}})
	if err != nil {
		return err
	}
	line.Color, line.Width, line.Dashes = document.Palette[5], vg.Points(1.2), []vg.Length{vg.Points(4), vg.Points(3)}
	p.Add(line)
	p.Key(name, line)
	return nil
}

// milliseconds are a sample's values, of many as many as a curve can show.
func (s sample) milliseconds() []float64 {
	n := min(len(s), curvePoints+1)
	list := make([]float64, n)
	for i := range list {
		list[i] = s.percentile(100 * float64(i) / float64(max(n-1, 1)))
	}
	return list
}

// distributions are the plots of latencies of one or several runs.
func distributions(reports []*Report) ([]*document.Plot, error) {
	var plots []*document.Plot
	for _, d := range []struct{ title, name, slo string }{
		{"TTFT, share of requests", nameTTFT, "ttft"},
		{"TPOT, share of requests", nameTPOT, "tpot"},
		{"ITL, share of gaps", nameITL, ""},
		{"E2EL, share of requests", nameE2EL, "e2el"},
	} {
		var curves []Distribution
		limit := 0.0
		for _, r := range reports {
			name := ""
			if len(reports) > 1 {
				name = r.name() + " "
			}
			curves = append(curves, Distribution{name, r.samples[d.name].milliseconds()})
			if per := r.samples[nameITLToken]; d.name == nameITL && len(per) > 0 {
				curves[len(curves)-1].Name = name + "between chunks"
				curves = append(curves, Distribution{name + "per token", per.milliseconds()})
			}
			if due := r.samples[nameE2ELDue]; d.name == nameE2EL && r.bounded() && len(due) > 0 {
				curves[len(curves)-1].Name = name + "from sending"
				curves = append(curves, Distribution{name + "from the due time", due.milliseconds()})
			}
			if i := slices.IndexFunc(r.Goodput, func(s SLO) bool { return s.Metric == d.slo }); i >= 0 {
				limit = r.Goodput[i].MS
			}
		}
		p, err := DistributionPlot(d.title, "ms", curves, limit)
		if err != nil {
			return nil, err
		}
		if p != nil {
			plots = append(plots, p)
		}
	}
	return plots, nil
}

// timelines are the plots over a run's time. A point of a rate stands in the middle of its bin.
func (p *Report) timelines() ([]*document.Plot, error) {
	width := p.bin()
	points := func(rates []float64) plotter.XYs {
		xy := make(plotter.XYs, len(rates))
		for i, v := range rates {
			xy[i] = plotter.XY{X: (float64(i) + 0.5) * width, Y: v}
		}
		return xy
	}
	sent, failed := p.requestRates(width)
	sentCurves := []curve{{"sent", points(sent), false}}
	if len(failed) > 0 {
		sentCurves = append(sentCurves, curve{"failed", points(failed), false})
	}
	var flight plotter.XYs
	for _, s := range thin(p.inFlight().steps) {
		flight = append(flight, plotter.XY{X: s.at, Y: float64(s.requests)})
	}
	var plots []*document.Plot
	for _, t := range []struct {
		title  string
		curves []curve
	}{
		{"Requests in flight", []curve{{"", flight, true}}},
		{"Output tokens a second", []curve{{"", points(p.tokenRate(width)), false}}},
		{"Requests a second", sentCurves},
		{"TTFT (ms) by the time of sending", []curve{{"", p.ttftOverTime(), false}}},
	} {
		plot, err := p.timeline(t.title, t.curves)
		if err != nil {
			return nil, err
		}
		if plot != nil {
			plots = append(plots, plot)
		}
	}
	return plots, nil
}

// A curve of a timeline; steps hold their value until the next.
type curve struct {
	name  string
	xy    plotter.XYs
	steps bool
}

// timeline draws curves over the run's time, with its steady part marked.
func (p *Report) timeline(title string, curves []curve) (*document.Plot, error) {
	plot := document.NewPlot(title)
	plot.X.Label.Text = "s since the run's start"
	top, drawn := 0.0, 0
	for _, c := range curves {
		for _, xy := range c.xy {
			top = max(top, xy.Y)
		}
	}
	top = document.Headroom(top)
	if p.Steady != nil {
		for i, at := range []float64{p.Steady.From, p.Steady.To} {
			line, err := plotter.NewLine(plotter.XYs{{X: at, Y: 0}, {X: at, Y: top}})
			if err != nil {
				return nil, err
			}
			line.Color, line.Dashes = document.Palette[6], []vg.Length{vg.Points(3), vg.Points(3)}
			plot.Add(line)
			if i == 0 {
				plot.Key("steady part", line)
			}
		}
	}
	for i, c := range curves {
		if len(c.xy) == 0 {
			continue
		}
		line, err := plot.Curve(i, c.name, c.xy, false)
		if err != nil {
			return nil, err
		}
		if c.steps {
			line.StepStyle = plotter.PostStep
		}
		drawn++
	}
	if drawn == 0 {
		return nil, nil
	}
	plot.X.Min, plot.X.Max = 0, max(p.Duration, 1e-3)
	plot.Y.Min, plot.Y.Max = 0, top
	return plot, nil
}

// thin keeps of many steps those that a plot can show: of each 1/400 of the time the greatest.
func thin(steps []step) []step {
	if len(steps) <= 2*curvePoints {
		return steps
	}
	span := steps[len(steps)-1].at - steps[0].at
	var kept []step
	last := -1
	for _, s := range steps {
		bin := int((s.at - steps[0].at) / span * curvePoints)
		switch n := len(kept); {
		case bin != last:
			kept, last = append(kept, s), bin
		case s.requests > kept[n-1].requests:
			kept[n-1].requests = s.requests
		}
	}
	return append(kept, steps[len(steps)-1])
}

// ttftOverTime is the median TTFT of the requests that were sent in each bin: whether the
// server kept up shows here before it shows in a mean.
func (p *Report) ttftOverTime() plotter.XYs {
	width := p.bin()
	by := map[int][]float64{}
	for i := range p.Records {
		if rec := &p.Records[i]; rec.Failure() == "" {
			bin := int(rec.Sent / width)
			by[bin] = append(by[bin], rec.TTFT()*1e3)
		}
	}
	var xy plotter.XYs
	for bin, values := range by {
		slices.Sort(values)
		xy = append(xy, plotter.XY{X: (float64(bin) + 0.5) * width, Y: stats.Percentile(values, 50)})
	}
	slices.SortFunc(xy, func(a, b plotter.XY) int { return int(math.Copysign(1, a.X-b.X)) })
	return xy
}
