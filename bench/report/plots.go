package report

import (
	"cmp"
	"maps"
	"slices"

	"kvferry/bench/client"
	"kvferry/bench/document"
	"kvferry/bench/stats"
)

// milliseconds are a sample's values, of many as many as a curve can show.
func milliseconds(s stats.Sample) []float64 {
	n := min(len(s), document.CurvePoints+1)
	list := make([]float64, n)
	for i := range list {
		list[i] = s.Percentile(100 * float64(i) / float64(max(n-1, 1)))
	}
	return list
}

// distributions are the plots of latencies of one or several runs.
func distributions(reports []*Report) (plots []document.Plot) {
	for _, d := range []struct{ title, name, slo string }{
		{"TTFT, share of requests", nameTTFT, "ttft"},
		{"TPOT, share of requests", nameTPOT, "tpot"},
		{"ITL, share of gaps", nameITL, ""},
		{"E2EL, share of requests", nameE2EL, "e2el"},
	} {
		var curves []document.Distribution
		limit := 0.0
		for _, r := range reports {
			name := ""
			if len(reports) > 1 {
				name = r.name() + " "
			}
			curves = append(curves, document.Distribution{Name: name, Values: milliseconds(r.samples[d.name])})
			if per := r.samples[nameITLToken]; d.name == nameITL && len(per) > 0 {
				curves[len(curves)-1].Name = name + "between chunks"
				curves = append(curves, document.Distribution{Name: name + "per token", Values: milliseconds(per)})
			}
			if due := r.samples[nameE2ELDue]; d.name == nameE2EL && r.bounded() && len(due) > 0 {
				curves[len(curves)-1].Name = name + "from sending"
				curves = append(curves, document.Distribution{Name: name + "from the due time", Values: milliseconds(due)})
			}
			limit = cmp.Or(r.Goodput.Limit(d.slo), limit)
		}
		plots = append(plots, document.CDF(d.title, "ms", curves, limit))
	}
	return plots
}

// timelines are the plots over a run's time, with its steady part marked. A point of a rate stands in the
// middle of its bin.
func (p *Report) timelines() (plots []document.Plot) {
	width := p.bin()
	points := func(name string, rates []float64) document.Curve {
		c := document.Curve{Name: name}
		for i, v := range rates {
			c.Add((float64(i)+0.5)*width, v)
		}
		return c
	}
	sent, failed := p.requestRates(width)
	flight := document.Curve{Steps: true}
	for _, s := range thin(p.inFlight().Steps) {
		flight.Add(s.From, float64(s.Requests))
	}
	timeline := func(title string, curves ...document.Curve) {
		c := document.Chart{Title: title, X: document.Axis{Label: "s since the run's start", Max: max(p.Duration, 1e-3)}, Curves: curves, Mark: "steady part"}
		if p.Steady != nil {
			c.Marks = []float64{p.Steady.From, p.Steady.To}
		}
		plots = append(plots, c)
	}
	timeline("Requests in flight", flight)
	timeline("Output tokens a second", points("", p.tokenRate(width)))
	timeline("Requests a second", points("sent", sent), points("failed", failed))
	timeline("TTFT (ms) by the time of sending", p.ttftOverTime())
	return plots
}

// thin keeps of many steps those that a plot can show: of each 1/400 of the time the greatest.
func thin(steps []client.Step) []client.Step {
	if len(steps) <= 2*document.CurvePoints {
		return steps
	}
	span := steps[len(steps)-1].From - steps[0].From
	var kept []client.Step
	last := -1
	for _, s := range steps {
		bin := int((s.From - steps[0].From) / span * document.CurvePoints)
		switch n := len(kept); {
		case bin != last:
			kept, last = append(kept, s), bin
		case s.Requests > kept[n-1].Requests:
			kept[n-1].Requests = s.Requests
		}
	}
	return append(kept, steps[len(steps)-1])
}

// ttftOverTime is the median TTFT of the requests that were sent in each bin: whether the
// server kept up shows here before it shows in a mean.
func (p *Report) ttftOverTime() (c document.Curve) {
	width := p.bin()
	by := map[int][]float64{}
	for i := range p.Records {
		if rec := &p.Records[i]; rec.Failure() == "" {
			bin := int(rec.Sent / width)
			by[bin] = append(by[bin], rec.TTFT()*1e3)
		}
	}
	for _, bin := range slices.Sorted(maps.Keys(by)) {
		c.Add((float64(bin)+0.5)*width, stats.Median(by[bin]))
	}
	return c
}
