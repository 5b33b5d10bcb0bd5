package result

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"kvferry/bench/page"
	"kvferry/bench/report"
	"kvferry/internal/config"
)

// Names of the files in the folder of a comparison.
const (
	compareFile = "compare.json"
	tableFile   = "table.md"
	reportFile  = "report.html"
)

// CompareConfig names the results to compare, and configures the intervals of their differences.
type CompareConfig struct {
	Paths      []string // files and folders of results, two or more, or one that has several
	Confidence float64  // of the intervals, in percent: 50 to 99.9
	Draws      int      // 100 to 100,000
	Seed       uint64
	Out        string // folder for compare.json, table.md and report.html; none if empty
	Stdout     io.Writer
}

// Compare reads results, compares them, prints the comparison and writes its files. What is wrong
// with the configuration or a file is a config.Invalid that lists all of it.
func Compare(cfg CompareConfig) error {
	var bad config.Faults
	if len(cfg.Paths) == 0 {
		bad.Check("Paths", errors.New("none given: name two files or folders of results, or one that has several"))
	}
	config.Between(&bad, "Confidence", cfg.Confidence, 50, 99.9)
	config.Between(&bad, "Draws", cfg.Draws, 100, 100_000)
	if cfg.Out != "" {
		bad.Check("Out", page.CheckNew(cfg.Out))
	}
	var sources [][]Run
	for _, path := range cfg.Paths {
		results, err := Read(path)
		bad.Check("Paths", err)
		sources = append(sources, results)
	}
	if err := bad.Err("compare.Config"); err != nil {
		return err
	}
	c, err := NewComparison(sources, cfg.Confidence/100, cfg.Draws, cfg.Seed)
	if err != nil {
		bad.Check("Paths", err)
		return bad.Err("compare.Config")
	}
	if err := c.WriteText(cfg.Stdout); err != nil || cfg.Out == "" {
		return err
	}
	if err := page.WriteFiles(cfg.Out, c.Files()...); err != nil {
		return err
	}
	_, err = fmt.Fprintln(cfg.Stdout, page.Listing(cfg.Out, compareFile, tableFile, reportFile))
	return err
}

// Files are those of a folder.
func (c *comparison) Files() []page.File {
	return []page.File{
		{Name: compareFile, Write: func(w io.Writer) error { return page.WriteJSON(w, c) }},
		{Name: tableFile, Write: c.WriteMarkdown},
		{Name: reportFile, Write: c.WriteHTML},
	}
}

// intervalName is the head of the column of intervals: "95 % interval".
func (c *comparison) intervalName() string {
	return strconv.FormatFloat(100*c.Confidence, 'g', 4, 64) + " % interval"
}

// tables are a group's figures: each result against the first, after all of them side by side
// where there are more than two.
func (c *comparison) tables(g *group) []page.Table {
	var tables []page.Table
	if len(g.Results) > 2 {
		t := page.Table{Title: "All results", Left: 1, Head: []string{""}}
		for _, r := range g.Results {
			t.Head = append(t.Head, r.Name)
		}
		for _, row := range g.Rows {
			cells := []string{row.Label}
			for _, v := range row.Values {
				cells = append(cells, valueText(v))
			}
			t.Rows = append(t.Rows, cells)
		}
		tables = append(tables, t)
	}
	for i, r := range g.Results[1:] {
		t := page.Table{
			Title: r.Name + " against " + letter(0), Left: 1,
			Head: []string{"", letter(0), r.Name, "difference", c.intervalName(), r.Name + " is"},
		}
		for _, row := range g.Rows {
			if row.Values[0] != nil || row.Values[i+1] != nil {
				t.Rows = append(t.Rows, append([]string{row.Label, valueText(row.Values[0]), valueText(row.Values[i+1])}, row.Against[i].cells()...))
			}
		}
		tables = append(tables, t)
	}
	return tables
}

// without says why figures of a result against the first have no interval: the reasons, each
// with its latencies. That rates and counts have none is said once for all.
func (g *group) without(i int) []string {
	var reasons []string
	labels := map[string][]string{}
	for _, row := range g.Rows {
		d := row.Against[i]
		if d.Why == "" || d.Why == oneValue {
			continue
		}
		if labels[d.Why] == nil {
			reasons = append(reasons, d.Why)
		}
		labels[d.Why] = append(labels[d.Why], strings.TrimSuffix(row.Label, " (ms)"))
	}
	for j, why := range reasons {
		reasons[j] = "no interval for " + strings.Join(labels[why], ", ") + ": " + why
	}
	return reasons
}

// cells are the difference, its interval and the verdict.
func (d *difference) cells() []string {
	if d.Percent == nil {
		return []string{"-", "-", ""}
	}
	percent := signed(*d.Percent) + "%"
	if d.Low == nil {
		return []string{percent, "-", ""}
	}
	return []string{percent, signed(*d.Low) + " to " + signed(*d.High), d.words()}
}

// words are the verdict with its size.
func (d *difference) words() string {
	if d.Verdict == noDifference {
		return d.Verdict
	}
	return fmt.Sprintf("%s by %.1f%%", d.Verdict, math.Abs(*d.Percent))
}

// signed has a decimal, and no minus before a 0.
func signed(v float64) string {
	if text := fmt.Sprintf("%+.1f", v); text != "-0.0" {
		return text
	}
	return "+0.0"
}

// valueText is a figure with as many decimals as say something.
func valueText(v *float64) string {
	switch {
	case v == nil:
		return "-"
	case *v == math.Trunc(*v) && math.Abs(*v) < 1e12:
		return strconv.FormatFloat(*v, 'f', 0, 64)
	}
	return strconv.FormatFloat(*v, 'f', 2, 64)
}

// setupTable is what was run, where any result says so.
func (g *group) setupTable() page.Table {
	t := page.Table{Title: "What was run", Left: len(g.Results) + 1, Head: []string{""}}
	for _, r := range g.Results {
		t.Head = append(t.Head, r.Name)
	}
	add := func(name string, of func(*side) string) {
		row, some := []string{name}, false
		for i := range g.Results {
			text := of(&g.Results[i])
			some = some || text != ""
			row = append(row, text)
		}
		if some {
			t.Rows = append(t.Rows, row)
		}
	}
	add("result", func(s *side) string { return s.Source })
	add("measured by", func(s *side) string { return s.Tool })
	add("requests listed", func(s *side) string { return strconv.Itoa(s.Requests) })
	for _, c := range compared {
		add(c.name, func(s *side) string { return s.Setup[c.key] })
	}
	return t
}

// verdicts say in a sentence for each result what the differences of means come to.
func (g *group) verdicts() []string {
	var sentences []string
	for i := range g.Results[1:] {
		var parts []string
		for _, row := range g.Rows {
			d := row.Against[i]
			if !slices.Contains([]string{"mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "output_token_throughput"}, row.Figure) || d.Percent == nil {
				continue
			}
			label := strings.TrimSuffix(row.Label, " (ms)")
			switch {
			case d.Verdict == noDifference:
				parts = append(parts, label+" "+noDifference)
			case d.Verdict != "":
				parts = append(parts, fmt.Sprintf("%s %s (%s to %s)", label, d.words(), signed(*d.Low), signed(*d.High)))
			default:
				parts = append(parts, fmt.Sprintf("%s %s%% without an interval", label, signed(*d.Percent)))
			}
		}
		if len(parts) > 0 {
			sentences = append(sentences, letter(i+1)+" against "+letter(0)+": "+strings.Join(parts, ", ")+".")
		}
	}
	return sentences
}

// lines are what is said of a group beside its tables: what was not alike, then what has no
// interval.
func (g *group) lines() []string {
	var lines []string
	for _, d := range g.Differs {
		lines = append(lines, "~ "+d)
	}
	for i, r := range g.Results[1:] {
		for _, why := range g.without(i) {
			lines = append(lines, "  "+r.Name+" against "+letter(0)+": "+why)
		}
	}
	return lines
}

// alone names the results that were not compared; "" if there is none.
func (c *comparison) alone() string {
	if len(c.Alone) == 0 {
		return ""
	}
	return "not compared, for not every file has it: " + strings.Join(c.Alone, ", ")
}

// WriteText prints the comparison for a terminal.
func (c *comparison) WriteText(w io.Writer) error {
	var b strings.Builder
	for i := range c.Groups {
		g := &c.Groups[i]
		if g.Name != "" {
			b.WriteString("== " + g.Name + "\n")
		}
		for _, r := range g.Results {
			fmt.Fprintf(&b, "%s = %s (%s, %d requests listed)\n", r.Name, r.Source, r.Tool, r.Requests)
		}
		b.WriteString("\n")
		for _, t := range c.tables(g) {
			t.WriteText(&b)
		}
		for _, line := range g.lines() {
			b.WriteString(strings.TrimSpace(line) + "\n")
		}
		for _, v := range g.verdicts() {
			b.WriteString(v + "\n")
		}
		b.WriteString("\n")
	}
	if text := c.alone(); text != "" {
		b.WriteString(text + "\n")
	}
	b.WriteString(c.how() + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// how says what the intervals are.
func (c *comparison) how() string {
	return fmt.Sprintf("Intervals: bootstrap over requests, up to %d draws, seed %d, the middle %g %% of the differences. They say what other requests of these runs would have changed, not what another run of the same server would: repeat a run before a small difference is believed. Rates and counts are one value a run, and have no interval.",
		c.Draws, c.Seed, 100*c.Confidence)
}

// WriteMarkdown writes table.md.
func (c *comparison) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# kvferry compare\n\n" + c.how() + "\n\n")
	if text := c.alone(); text != "" {
		b.WriteString(text + "\n\n")
	}
	for i := range c.Groups {
		g := &c.Groups[i]
		if g.Name != "" {
			b.WriteString("## " + g.Name + "\n\n")
		}
		for _, v := range g.verdicts() {
			b.WriteString(v + "\n\n")
		}
		for _, line := range g.lines() {
			b.WriteString("- " + strings.TrimSpace(line) + "\n")
		}
		b.WriteString("\n")
		for _, t := range append([]page.Table{g.setupTable()}, c.tables(g)...) {
			t.WriteMarkdown(&b)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteHTML writes report.html: the same with the distributions of all results in one plot.
func (c *comparison) WriteHTML(w io.Writer) error {
	out := page.Page{Title: "kvferry compare", Sub: []string{c.how()}}
	if text := c.alone(); text != "" {
		out.Lines = append(out.Lines, "~ "+text)
	}
	for i := range c.Groups {
		g := &c.Groups[i]
		prefix := ""
		if g.Name != "" {
			prefix = g.Name + ": "
		}
		for _, line := range g.lines() {
			out.Lines = append(out.Lines, line[:2]+prefix+line[2:])
		}
		for _, v := range g.verdicts() {
			out.Verdict += prefix + v + " "
		}
		if i == 0 || g.Name == "" { // the others are of the same folders
			for _, r := range g.Results {
				out.Sub = append(out.Sub, r.Name+" = "+r.Source)
			}
		}
		s := page.Section{Name: g.Name}
		for _, d := range g.distributions {
			p, err := report.DistributionPlot(d.label+", cumulative share", "ms", d.curves, 0)
			if err != nil {
				return err
			}
			if p != nil {
				s.Plots = append(s.Plots, p)
			}
		}
		for _, t := range append([]page.Table{g.setupTable()}, c.tables(g)...) {
			s.Tables = append(s.Tables, t.HTML(-1))
		}
		out.Sections = append(out.Sections, s)
	}
	out.Verdict = strings.TrimSpace(out.Verdict)
	return out.Write(w, c)
}
