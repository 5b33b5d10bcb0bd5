package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"kvferry/bench/client"
	"kvferry/bench/page"
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

func (g group) compare(l latency) page.Table {
	t := page.Table{
		Title: g.name + " " + l.name + " (ms)", Left: 2,
		Head: []string{"setting", "hand-off"},
	}
	for _, stat := range []string{"mean", "median", "P99"} {
		t.Head = append(t.Head, stat, "published", "error")
	}
	for _, c := range g.cells {
		row := []string{c.mark(), c.Handoff}
		for i := range 3 {
			cell := []string{"-", "-", "-"}
			if c.Metrics != nil {
				cell[0] = fmt.Sprintf("%.1f", l.of(&c.Metrics.Figures)[i])
			}
			if c.Published != nil {
				cell[1] = fmt.Sprintf("%.1f", l.of(&c.Published.Figures)[i])
			}
			if c.RelErr != nil {
				cell[2] = fmt.Sprintf("%+.1f%%", 100*l.of(c.RelErr)[i])
			}
			row = append(row, cell...)
		}
		t.Rows = append(t.Rows, row)
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

// quiet says how quiet the machine was, false if none of the cells knows.
func (g group) quiet() (page.Table, bool) {
	t := page.Table{
		Title: g.name + " how quiet the machine was", Left: 1,
		Head: []string{"setting", "attempts", "timers late ms", "P99", "over 5 ms %", "CPU % own", "others", "stolen", "run delay %", "behind link %"},
	}
	known := false
	for _, c := range g.cells {
		row := []string{c.mark(), fmt.Sprint(max(1, len(c.Attempts))), "-", "-", "-", "-", "-", "-", "-", "-"}
		if d := c.Disturbance; d != nil {
			known = true
			row[2], row[3], row[4] = fmt.Sprintf("%.2f", d.LateMeanMS), fmt.Sprintf("%.2f", d.LateP99MS), fmt.Sprintf("%.2f", d.LateTimersPct)
			if d.CPU != nil {
				row[5], row[6], row[7] = fmt.Sprintf("%.1f", d.CPU.OwnPct), fmt.Sprintf("%.1f", d.CPU.OthersPct), fmt.Sprintf("%.1f", d.CPU.StealPct)
				if d.CPU.RunDelayPct != nil {
					row[8] = fmt.Sprintf("%.1f", *d.CPU.RunDelayPct)
				}
			}
			if d.BehindLinkPct != nil {
				row[9] = fmt.Sprintf("%.1f", *d.BehindLinkPct)
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t, known
}

func (g group) what() page.Table {
	t := page.Table{
		Title: g.name + " what was " + map[bool]string{true: "computed", false: "measured"}[g.clock == ClockVirtual], Left: 2,
		Head: []string{"setting", "measured and modelled", "requests", "failed", "duration s", "KV moved GB", "blocks checked", "bad"},
	}
	for _, c := range g.cells {
		row := []string{c.mark(), c.Label, "-", "-", "-", "-", "-", "-"}
		if m := c.Metrics; m != nil {
			row = []string{
				c.mark(), c.Label, fmt.Sprint(m.Successful), fmt.Sprint(m.Failed), fmt.Sprintf("%.2f", m.DurationS),
				fmt.Sprintf("%.2f", float64(m.KVBytes)/1e9), fmt.Sprint(m.KVBlocksChecked), fmt.Sprint(m.KVBlocksBad),
			}
			if m.KVUnknown > 0 {
				row[5] = "-"
			}
			if c.Clock == ClockVirtual || m.KVUnknown > 0 { // no bytes moved, none to check; or nobody says
				row[6], row[7] = "-", "-"
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// remarks are the faults of every cell, what disturbed it, and notes, one a line.
func (r *Results) remarks() []string {
	var lines []string
	for i := range r.Cells {
		c := &r.Cells[i]
		for _, f := range c.Faults {
			lines = append(lines, "* "+c.name()+": "+f)
		}
		if c.disturbed() {
			lines = append(lines, "~ "+c.name()+" was disturbed: "+c.Disturbance.String())
		}
		for _, n := range c.Notes {
			lines = append(lines, "  "+c.name()+": "+n)
		}
	}
	return lines
}

// agreement sets the measured cells of each workload beside the virtual ones of
// the same setting: what the two clocks make of the same code. Repeats are
// averaged.
func (r *Results) agreement() []page.Table {
	var tables []page.Table
	for _, v := range r.groups() {
		if v.clock != ClockVirtual {
			continue
		}
		workload := v.cells[0].Workload
		t := page.Table{
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
			t.Rows = append(t.Rows, row)
		}
		if len(t.Rows) > 0 {
			tables = append(tables, t)
		}
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

// WriteTable prints the comparison for a terminal: TTFT and TPOT measured and
// published, what the numbers rest on, faults and notes, and the verdict.
func WriteTable(w io.Writer, r *Results) error {
	var b strings.Builder
	for _, g := range r.groups() {
		g.compare(latencies[0]).WriteText(&b)
		g.compare(latencies[1]).WriteText(&b)
		g.what().WriteText(&b)
	}
	for _, t := range r.agreement() {
		t.WriteText(&b)
	}
	page.WriteLines(&b, r.remarks())
	if v := r.Verdict(); v != "" {
		b.WriteString(v + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// when says when and where the run was.
func (r *Results) when() string {
	return fmt.Sprintf("%s on %s", r.Config.Started.UTC().Format("2006-01-02 15:04 UTC"), r.Machine)
}

// conditions say what was run and what it is compared with, one a line.
func (r *Results) conditions() []string {
	lines := []string{fmt.Sprintf("%d requests a cell, seed %d, %s.", r.Config.NumPrompts, r.Config.Seed, r.Config.Arrivals)}
	if r.Config.Seed == 0 {
		lines = append(lines, lengthsChosen)
	}
	return append(lines, "Published: Mooncake x vLLM on NVIDIA A10, November 2024. error = (measured - published) / published.")
}

// WriteMarkdown writes table.md: the same with inter-token latencies and the
// run's conditions.
func WriteMarkdown(w io.Writer, r *Results) error {
	var b strings.Builder
	b.WriteString("# kvferry reproduce mooncake\n\n")
	fmt.Fprintf(&b, "%s.\n", r.when())
	page.WriteLines(&b, r.conditions())
	b.WriteString("\n")
	for _, g := range r.groups() {
		b.WriteString("## " + g.name + "\n\n")
		for _, l := range latencies {
			g.compare(l).WriteMarkdown(&b)
		}
		g.what().WriteMarkdown(&b)
		if t, known := g.quiet(); known {
			t.WriteMarkdown(&b)
		}
	}
	if tables := r.agreement(); len(tables) > 0 {
		b.WriteString("## Clocks\n\n")
		for _, t := range tables {
			t.WriteMarkdown(&b)
		}
	}
	if remarks := r.remarks(); len(remarks) > 0 {
		b.WriteString("## Faults (*), disturbed rows (~) and notes\n\n")
		for _, line := range remarks {
			b.WriteString("- " + strings.TrimSpace(strings.Replace(line, "* ", "\\* ", 1)) + "\n")
		}
		b.WriteString("\n")
	}
	if v := r.Verdict(); v != "" {
		b.WriteString(v + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
