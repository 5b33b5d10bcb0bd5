package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"kvferry/bench/client"
	"kvferry/bench/document"
	"kvferry/bench/observe"
)

// group is the cells of one workload, repeat and clock, which share a table.
type group struct {
	name  string
	clock string
	cells []*Cell
}

// measured is what the table's own figures are called.
func (g group) measured() string {
	if g.clock == ClockVirtual {
		return "virtual"
	}
	return "measured"
}

func (r *Results) groups() []group {
	var groups []group
	at := map[string]int{}
	for i := range r.Cells {
		c := &r.Cells[i]
		name := c.Workload
		if c.Repeat > 0 {
			name += fmt.Sprintf(" #%d", c.Repeat+1)
		}
		if c.Clock == ClockVirtual {
			name += " virtual"
		}
		if _, ok := at[name]; !ok {
			at[name] = len(groups)
			groups = append(groups, group{name: name, clock: c.Clock})
		}
		g := &groups[at[name]]
		g.cells = append(g.cells, c)
	}
	return groups
}

// latency is one of the three things compared, with its figures by name.
type latency struct {
	name string
	of   func(*client.Figures) [3]float64 // mean, median, P99 in ms
}

var latencies = []latency{
	{"TTFT", func(f *client.Figures) [3]float64 { return [...]float64{f.MeanTTFTMS, f.MedianTTFTMS, f.P99TTFTMS} }},
	{"TPOT", func(f *client.Figures) [3]float64 { return [...]float64{f.MeanTPOTMS, f.MedianTPOTMS, f.P99TPOTMS} }},
	{"ITL", func(f *client.Figures) [3]float64 { return [...]float64{f.MeanITLMS, f.MedianITLMS, f.P99ITLMS} }},
}

func (g group) compare(l latency) document.Table {
	t := document.Table{Title: l.name + " (ms)", Left: 2, Head: []string{"setting", "hand-off"}}
	for _, stat := range []string{"mean", "median", "P99"} {
		t.Head = append(t.Head, stat, "published", "error")
	}
	for _, c := range g.cells {
		row := []string{c.mark(), c.Handoff}
		for i := range 3 {
			figure := func(of *client.Figures, format string, scale float64) string {
				return document.Known(of, func(f client.Figures) string { return fmt.Sprintf(format, scale*l.of(&f)[i]) })
			}
			row = append(row, figure(c.measured(), "%.1f", 1), figure(c.published(), "%.1f", 1), figure(c.RelErr, "%+.1f%%", 100))
		}
		t.Add(row...)
	}
	return t
}

// mark is the setting's name, with a star where the cell must not be trusted and a
// tilde where it was disturbed.
func (c *Cell) mark() string {
	marks := ""
	if len(c.Faults) > 0 || c.Interrupted {
		marks += "*"
	}
	if c.disturbed() {
		marks += "~"
	}
	return strings.TrimSpace(c.Setting + " " + marks)
}

// measured returns the cell's own figures, nil if it has none.
func (c *Cell) measured() *client.Figures {
	if c.Metrics == nil {
		return nil
	}
	return &c.Metrics.Figures
}

// published returns what was published of the cell, nil if nothing comparable was.
func (c *Cell) published() *client.Figures {
	if c.Published == nil {
		return nil
	}
	return &c.Published.Figures
}

// quiet returns the table of what disturbed the machine. It has no rows if no cell has a Disturbance.
func (g group) quiet() document.Table {
	if !slices.ContainsFunc(g.cells, func(c *Cell) bool { return c.Disturbance != nil }) {
		return document.Table{}
	}
	of := func(digits int, f func(*observe.Disturbance) float64) func(*Cell) string {
		return func(c *Cell) string {
			return document.Known(c.Disturbance, func(d observe.Disturbance) string { return document.Fixed(f(&d), digits) })
		}
	}
	cpu := func(f func(*observe.CPUUse) float64) func(*Cell) string {
		return of(1, func(d *observe.Disturbance) float64 {
			if d.CPU == nil {
				return math.NaN()
			}
			return f(d.CPU)
		})
	}
	t := document.Cols[*Cell]{
		{"setting", (*Cell).mark},
		{"attempts", func(c *Cell) string { return strconv.Itoa(max(1, len(c.Attempts))) }},
		{"timers late ms", of(2, func(d *observe.Disturbance) float64 { return d.LateMeanMS })},
		{"P99", of(2, func(d *observe.Disturbance) float64 { return d.LateP99MS })},
		{"over 5 ms %", of(2, func(d *observe.Disturbance) float64 { return d.LateTimersPct })},
		{"CPU % own", cpu(func(u *observe.CPUUse) float64 { return u.OwnPct })},
		{"others", cpu(func(u *observe.CPUUse) float64 { return u.OthersPct })},
		{"stolen", cpu(func(u *observe.CPUUse) float64 { return u.StealPct })},
		{"run delay %", cpu(func(u *observe.CPUUse) float64 { return document.Number(u.RunDelayPct) })},
		{"behind link %", of(1, func(d *observe.Disturbance) float64 { return document.Number(d.BehindLinkPct) })},
	}.Table("how quiet the machine was", 1, g.cells)
	t.Detail = true
	return t
}

// what returns the table of what was measured or computed. In virtual time no bytes move, so none are checked,
// and a server may not report how many moved.
func (g group) what() document.Table {
	t := document.Table{
		Title: "what was " + map[bool]string{true: "computed", false: "measured"}[g.clock == ClockVirtual], Left: 2,
		Head: []string{"setting", "measured and modelled", "requests", "failed", "duration s", "KV moved GB", "blocks checked", "bad"},
	}
	for _, c := range g.cells {
		row := []string{c.mark(), c.Label}
		if m := c.Metrics; m != nil {
			row = append(row, strconv.Itoa(m.Successful), strconv.Itoa(m.Failed), document.Fixed(m.DurationS, 2))
			if m.KVUnknown == 0 {
				row = append(row, document.Fixed(float64(m.KVBytes)/1e9, 2))
			}
			if m.KVUnknown == 0 && c.Clock != ClockVirtual {
				row = append(row, fmt.Sprint(m.KVBlocksChecked), fmt.Sprint(m.KVBlocksBad))
			}
		}
		t.Add(row...)
	}
	return t
}

// remarks returns the faults of every cell, what disturbed it, and its notes.
func (r *Results) remarks() (notes document.Notes) {
	for i := range r.Cells {
		name := r.Cells[i].name()
		notes = append(notes, r.Cells[i].remarks(name+": ", name+" was disturbed: ")...)
	}
	return notes
}

// remarks returns the cell's faults, what disturbed it, and its notes. Each text begins with before, but the
// disturbance with disturbed.
func (c *Cell) remarks(before, disturbed string) (notes document.Notes) {
	for _, f := range c.Faults {
		notes.Add(document.Fault, before+f)
	}
	if c.disturbed() {
		notes.Add(document.Doubt, disturbed+c.Disturbance.String())
	}
	for _, n := range c.Notes {
		notes.Add(document.Info, before+n)
	}
	return notes
}

// agreement sets the measured cells of each workload beside the virtual ones of
// the same setting: what the two clocks make of the same code. Repeats are
// averaged.
func (r *Results) agreement() []document.Table {
	var tables []document.Table
	for _, v := range r.groups() {
		if v.clock != ClockVirtual {
			continue
		}
		workload := v.cells[0].Workload
		t := document.Table{
			Title: workload + " clocks: real against virtual (ms)", Left: 1,
			Head: []string{"setting", "mean TTFT real", "virtual", "difference", "mean TPOT real", "virtual", "difference"},
		}
		for _, c := range v.cells {
			var ttft, tpot, n float64
			for i := range r.Cells {
				m := &r.Cells[i]
				if m.Workload == workload && m.Setting == c.Setting && m.Clock == ClockReal && m.Metrics != nil && !m.Interrupted {
					ttft, tpot, n = ttft+m.Metrics.MeanTTFTMS, tpot+m.Metrics.MeanTPOTMS, n+1
				}
			}
			if n == 0 || c.Metrics == nil || c.Metrics.MeanTTFTMS == 0 || c.Metrics.MeanTPOTMS == 0 {
				continue
			}
			row := []string{c.Setting}
			for _, f := range [][2]float64{{ttft / n, c.Metrics.MeanTTFTMS}, {tpot / n, c.Metrics.MeanTPOTMS}} {
				row = append(row, fmt.Sprintf("%.1f", f[0]), fmt.Sprintf("%.1f", f[1]), fmt.Sprintf("%+.1f%%", 100*(f[0]/f[1]-1)))
			}
			t.Add(row...)
		}
		tables = append(tables, t)
	}
	return tables
}

// Verdict says in a sentence what the layer-wise hand-off does against
// non-disaggregated serving, for each workload that has both; "" where none
// has. Of a workload that was measured, the computed figures say nothing new.
func (r *Results) Verdict() string {
	var parts []string
	groups := r.groups()
	for _, g := range groups {
		if g.clock == ClockVirtual && slices.ContainsFunc(groups, func(o group) bool { return o.clock != ClockVirtual }) {
			continue
		}
		var base, ours *client.Metrics
		var disturbed []string
		for _, c := range g.cells {
			switch c.Setting {
			case "nondisagg":
				base = c.Metrics
			case "layerwise":
				ours = c.Metrics
			default:
				continue
			}
			if c.disturbed() {
				disturbed = append(disturbed, c.Setting)
			}
		}
		if base == nil || ours == nil || base.MeanTTFTMS == 0 || ours.MeanTTFTMS == 0 {
			continue
		}
		parts = append(parts, fmt.Sprintf(
			"at %s mean TTFT is %.1f ms against %.1f%s, mean TPOT %.1f ms against %.1f%s and P99 TPOT %.1f ms against %.1f",
			g.name, ours.MeanTTFTMS, base.MeanTTFTMS, times(ours.MeanTTFTMS, base.MeanTTFTMS),
			ours.MeanTPOTMS, base.MeanTPOTMS, times(ours.MeanTPOTMS, base.MeanTPOTMS), ours.P99TPOTMS, base.P99TPOTMS))
		if len(disturbed) > 0 {
			parts[len(parts)-1] += " (~ the machine disturbed " + strings.Join(disturbed, " and ") + ": measure again before you quote this)"
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "layerwise against nondisagg: " + strings.Join(parts, "; ") + "."
}

// times is " (0.85 times)", or nothing where there is no ratio.
func times(ours, base float64) string {
	if base == 0 {
		return ""
	}
	return fmt.Sprintf(" (%.2f times)", ours/base)
}

// when says when and where the run was.
func (r *Results) when() string {
	return fmt.Sprintf("%s on %s.", r.Config.Started.UTC().Format("2006-01-02 15:04 UTC"), r.Machine)
}

// conditions say what was run and what it is compared with, one a line.
func (r *Results) conditions() []string {
	lines := []string{fmt.Sprintf("%d requests a cell, seed %d, %s.", r.Config.NumPrompts, r.Config.Seed, r.Config.Arrivals)}
	if r.Config.Seed == 0 {
		lines = append(lines, lengthsChosen)
	}
	return append(lines, "Published: Mooncake x vLLM on NVIDIA A10, November 2024. error = (measured - published) / published, in sample: the profile was fitted to these tables.")
}
