package report

import (
	"fmt"
	"slices"
	"strings"

	"kvferry/bench/client"
	"kvferry/bench/document"
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

// Document returns the report of one command's runs: a single run, or one per clock. A terminal gets a tool's
// layout instead.
func Document(reports ...*Report) *document.Document {
	summary := Summary{Rows: []Row{}}
	d := &document.Document{Title: title}
	all := document.Section{Name: "Distributions", Plots: distributions(reports)}
	if len(reports) > 1 {
		all.Tables = append(all.Tables, Clocks(reports))
	}
	d.Sections = append(d.Sections, all)
	var verdicts []string
	for _, p := range reports {
		d.Head = append(d.Head, p.heads()...)
		verdict := p.verdict()
		for _, n := range p.remarks() {
			if len(reports) > 1 {
				n.Text = p.name() + ": " + n.Text
			}
			d.Notes = append(d.Notes, n)
		}
		if len(reports) > 1 {
			verdict = p.name() + ": " + verdict
		}
		verdicts = append(verdicts, verdict)
		d.Sections = append(d.Sections,
			document.Section{Name: p.heading("Over the run's time", reports), Plots: append(p.timelines(), p.Plots...)},
			document.Section{Name: p.heading("Figures", reports), Tables: append(p.tables(), p.setupTable())})
		summary.Rows = append(summary.Rows, p.Row())
		summary.Config, summary.Machine = p.Setup.Config, p.Setup.Machine
	}
	d.Verdict, d.Data = strings.Join(verdicts, "\n"), summary
	return d
}

// heading has the clock's name where there are several.
func (p *Report) heading(text string, reports []*Report) string {
	if len(reports) > 1 {
		return text + " (" + p.name() + ")"
	}
	return text
}

// Clocks sets the runs of one command side by side: one row a figure, and how far each run is from
// the first in percent.
func Clocks(reports []*Report) document.Table {
	first := reports[0]
	t := document.Table{Title: "Side by side", Left: 1, Head: []string{""}}
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
			row = append(row, document.Fixed(v, 2))
			if j > 0 {
				row = append(row, difference(v, f.value))
			}
		}
		t.Add(row...)
	}
	return t
}

// difference is of v from base in percent; nothing where base is 0.
func difference(v, base float64) string {
	if base == 0 {
		return ""
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
