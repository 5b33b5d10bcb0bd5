package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"kvferry/bench/client"
	"kvferry/bench/page"
)

// title is the command's name in reports.
const title = "kvferry bench"

// name is a run among those of one command.
func (p *Report) name() string { return p.Clock }

// heads are the lines below the title: what was measured, by whom, on what.
func (p *Report) heads() []string {
	var lines []string
	if p.Label != "" {
		lines = append(lines, p.Label)
	}
	if !p.Started.IsZero() {
		when := p.Started.UTC().Format("2006-01-02 15:04 UTC")
		if p.Setup.Machine != nil {
			when += fmt.Sprintf(" on %v", p.Setup.Machine)
		}
		lines = append(lines, when+".")
	}
	return lines
}

// verdict is the run in a sentence, of our own figures (Metrics) and not a tool's.
func (p *Report) verdict() string {
	m := p.M
	if m.Successful == 0 {
		if n := p.count(func(rec *client.Record) bool { return rec.Fault == client.FaultShort }); n > 0 {
			return fmt.Sprintf("No request succeeded: %d of %d answers ended short.", n, len(p.Records))
		}
		return "Nothing succeeded."
	}
	ttft, tpot, cut := m.Latencies[nameTTFT], m.Latencies[nameTPOT], ""
	if m.Interrupted > 0 {
		cut = fmt.Sprintf(", %d %s cut off,", m.Interrupted, map[bool]string{true: "was", false: "were"}[m.Interrupted == 1])
	}
	s := fmt.Sprintf("%d of %d requests succeeded%s in %.1f s: %.2f requests/s, %.0f output tokens/s. TTFT %.1f ms on average (P99 %.1f), TPOT %.2f ms (P99 %.2f), %.1f requests in flight.",
		m.Successful, len(p.Records), cut, m.DurationS, m.RequestThroughput, m.OutputThroughput, ttft.Mean, ttft.P99, tpot.Mean, tpot.P99, m.Concurrency)
	if m.Goodput != nil {
		s += fmt.Sprintf(" %.1f %% kept the SLO (%s).", 100**m.Attained, p.sloText())
	}
	return s
}

// WriteHTML writes report.html: the runs of one command, which are one, or one of each clock.
func WriteHTML(w io.Writer, reports ...*Report) error {
	out := page.Page{Title: title}
	var verdicts []string
	for _, p := range reports {
		out.Sub = append(out.Sub, p.heads()...)
		out.Lines = append(out.Lines, named(reports, p, p.lines())...)
		verdicts = append(verdicts, named(reports, p, []string{p.verdict()})...)
	}
	out.Verdict = strings.Join(verdicts, " ")
	all := page.Section{Name: "Distributions"}
	var err error
	if all.Plots, err = distributions(reports); err != nil {
		return err
	}
	if len(reports) > 1 {
		all.Tables = append(all.Tables, Clocks(reports).HTML(-1))
	}
	out.Sections = append(out.Sections, all)
	for _, p := range reports {
		over := page.Section{Name: p.heading("Over the run's time", reports)}
		if over.Plots, err = p.timelines(); err != nil {
			return err
		}
		over.Plots = append(over.Plots, p.Plots...)
		figures := page.Section{Name: p.heading("Figures", reports)}
		for _, t := range append(p.tables(), p.setupTable()) {
			figures.Tables = append(figures.Tables, t.HTML(-1))
		}
		out.Sections = append(out.Sections, over, figures)
	}
	var record Summary
	for _, p := range reports {
		record.Rows = append(record.Rows, p.Row())
		record.Config, record.Machine = p.Setup.Config, p.Setup.Machine
	}
	return out.Write(w, record)
}

// heading has the clock's name where there are several.
func (p *Report) heading(text string, reports []*Report) string {
	if len(reports) > 1 {
		return text + " (" + p.name() + ")"
	}
	return text
}

// named puts the clock's name into lines where there are several, behind the mark that a page sorts
// its lines by: * of a fault, ~ of a disturbance.
func named(reports []*Report, p *Report, lines []string) []string {
	if len(reports) < 2 {
		return lines
	}
	var out []string
	for _, line := range lines {
		mark := ""
		if strings.HasPrefix(line, "* ") || strings.HasPrefix(line, "~ ") {
			mark, line = line[:2], line[2:]
		}
		out = append(out, mark+p.name()+": "+strings.TrimSpace(line))
	}
	return out
}

// Clocks sets the runs of one command side by side: one row a figure, and how far each run is from
// the first in percent.
func Clocks(reports []*Report) page.Table {
	first := reports[0]
	t := page.Table{Title: "Side by side", Left: 1, Head: []string{""}}
	for i, p := range reports {
		t.Head = append(t.Head, p.name())
		if i > 0 {
			t.Head = append(t.Head, "difference")
		}
	}
	for i, f := range first.M.figures() {
		row := []string{f.label}
		for j, p := range reports {
			v := p.M.figures()[i].value
			row = append(row, fixed(v, 2))
			if j > 0 {
				row = append(row, difference(v, f.value))
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// difference is of v from base in percent; a dash where base is 0.
func difference(v, base float64) string {
	if base == 0 {
		return "-"
	}
	return fmt.Sprintf("%+.1f%%", 100*(v/base-1))
}

// A labelled figure.
type labelled struct {
	label string
	value float64
}

// figures are those that two runs are compared by, always the same ones in the same order: Clocks
// pairs them by their place. Latencies are milliseconds.
func (m *Metrics) figures() []labelled {
	list := []labelled{{"requests/s", m.RequestThroughput}, {"output tokens/s", m.OutputThroughput}, {"in flight, mean", m.Concurrency}}
	for _, l := range latencyNames {
		if !slices.Contains([]string{nameTTFT, nameTPOT, nameITL, nameE2EL}, l.name) {
			continue // which not every run has
		}
		s := m.Latencies[l.name]
		list = append(list, labelled{"mean " + l.label + " (ms)", s.Mean}, labelled{"median " + l.label + " (ms)", s.Median}, labelled{"P99 " + l.label + " (ms)", s.P99})
	}
	return list
}

// WriteMarkdown writes table.md: the same without plots.
func WriteMarkdown(w io.Writer, reports ...*Report) error {
	var b strings.Builder
	b.WriteString("# " + title + "\n\n")
	if len(reports) > 1 {
		Clocks(reports).WriteMarkdown(&b)
	}
	for _, p := range reports {
		b.WriteString("## " + p.heading("Run", reports) + "\n\n")
		page.WriteLines(&b, p.heads())
		b.WriteString("\n" + p.verdict() + "\n\n")
		if lines := p.lines(); len(lines) > 0 {
			b.WriteString("### Faults (*), disturbances (~) and notes\n\n")
			for _, line := range lines {
				b.WriteString("- " + strings.TrimSpace(strings.Replace(line, "* ", "\\* ", 1)) + "\n")
			}
			b.WriteString("\n")
		}
		for _, t := range append(p.tables(), p.setupTable()) {
			t.WriteMarkdown(&b)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
