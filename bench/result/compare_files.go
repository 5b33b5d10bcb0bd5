package result

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"kvferry/bench/document"
	"kvferry/internal/config"
)

// compareFile holds the comparison, in the folder of its files.
const compareFile = "compare.json"

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
		bad.Check("Out", document.CheckNew(cfg.Out))
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
	return c.document().Keep(cfg.Stdout, cfg.Out)
}

// intervalName is the head of the column of intervals: "95 % interval".
func (c *comparison) intervalName() string {
	return strconv.FormatFloat(100*c.Confidence, 'g', 4, 64) + " % interval"
}

// tables are a group's figures: each result against the first, after all of them side by side
// where there are more than two.
func (c *comparison) tables(g *group) []document.Table {
	var tables []document.Table
	if len(g.Results) > 2 {
		t := document.Table{Title: "All results", Left: 1, Head: []string{""}}
		for _, r := range g.Results {
			t.Head = append(t.Head, r.Name)
		}
		for _, row := range g.Rows {
			cells := []string{row.Label}
			for _, v := range row.Values {
				cells = append(cells, valueText(v))
			}
			t.Add(cells...)
		}
		tables = append(tables, t)
	}
	for i, r := range g.Results[1:] {
		t := document.Table{
			Title: r.Name + " against " + letter(0), Left: 1,
			Head: []string{"", letter(0), r.Name, "difference", c.intervalName(), r.Name + " is"},
		}
		for _, row := range g.Rows {
			if row.Values[0] != nil || row.Values[i+1] != nil {
				t.Add(append([]string{row.Label, valueText(row.Values[0]), valueText(row.Values[i+1])}, row.Against[i].cells()...)...)
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
		return nil
	}
	percent := signed(*d.Percent) + "%"
	if d.Low == nil {
		return []string{percent}
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
		return ""
	case *v == math.Trunc(*v) && math.Abs(*v) < 1e12:
		return strconv.FormatFloat(*v, 'f', 0, 64)
	}
	return strconv.FormatFloat(*v, 'f', 2, 64)
}

// setupTable is what was run, where any result says so.
func (g *group) setupTable() document.Table {
	t := document.Table{Title: "What was run", Left: len(g.Results) + 1, Head: []string{""}, Detail: true}
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
			t.Add(row...)
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

// notes returns what qualifies the tables of a group: what was not alike, then which figures have no interval.
func (g *group) notes() (notes document.Notes) {
	notes.Add(document.Doubt, g.Differs...)
	for i, r := range g.Results[1:] {
		for _, why := range g.without(i) {
			notes.Add(document.Info, r.Name+" against "+letter(0)+": "+why)
		}
	}
	return notes
}

// how says what the intervals are.
func (c *comparison) how() string {
	return fmt.Sprintf("Intervals: bootstrap over requests, up to %d draws, seed %d, the middle %g %% of the differences. They say what other requests of these runs would have changed, not what another run of the same server would: repeat a run before a small difference is believed. Rates and counts are one value a run, and have no interval.",
		c.Draws, c.Seed, 100*c.Confidence)
}

// document returns the report of a comparison, with the distributions of all results in one plot.
func (c *comparison) document() *document.Document {
	d := &document.Document{Title: "kvferry compare", Data: c, DataName: compareFile}
	if len(c.Alone) > 0 {
		d.Notes.Add(document.Doubt, "not compared, for not every file has it: "+strings.Join(c.Alone, ", "))
	}
	var verdicts []string
	for i := range c.Groups {
		g := &c.Groups[i]
		prefix := ""
		if g.Name != "" {
			prefix = g.Name + ": "
		}
		s := document.Section{Name: g.Name, Tables: append([]document.Table{g.setupTable()}, c.tables(g)...)}
		for _, r := range g.Results {
			s.Lines = append(s.Lines, fmt.Sprintf("%s = %s (%s, %d requests listed)", r.Name, r.Source, r.Tool, r.Requests))
		}
		for _, l := range g.distributions {
			s.Plots = append(s.Plots, document.CDF(l.label+", cumulative share", "ms", l.curves, 0))
		}
		d.Sections = append(d.Sections, s)
		for _, n := range g.notes() {
			d.Notes.Add(n.Level, prefix+n.Text)
		}
		for _, v := range g.verdicts() {
			verdicts = append(verdicts, prefix+v)
		}
	}
	d.Notes.Add(document.Info, c.how())
	d.Verdict = strings.Join(verdicts, "\n")
	return d
}
