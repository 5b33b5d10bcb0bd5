package bench

import (
	"fmt"
	"io"
	"strings"

	"kvferry/bench/observe"
	"kvferry/bench/page"
)

// WriteHTML writes report.html: plots and tables of every cell in one file that
// loads nothing from elsewhere.
func WriteHTML(w io.Writer, r *Results) error {
	report := page.Page{
		Title: "kvferry reproduce mooncake", Sub: append([]string{r.when()}, r.conditions()...), Verdict: r.Verdict(), Lines: r.remarks(),
	}
	for _, g := range r.groups() {
		s := page.Section{Name: g.name}
		var err error
		if s.Plots, err = g.plots(); err != nil {
			return fmt.Errorf("plots of %s: %w", g.name, err)
		}
		tables := []page.Table{g.compare(latencies[0]), g.compare(latencies[1]), g.compare(latencies[2]), g.what()}
		if t, known := g.quiet(); known {
			tables = append(tables, t)
		}
		for _, t := range tables {
			t.Title = strings.TrimPrefix(t.Title, g.name+" ")
			s.Tables = append(s.Tables, t.HTML(-1))
		}
		report.Sections = append(report.Sections, s)
	}
	if tables := r.agreement(); len(tables) > 0 {
		s := page.Section{Name: "Clocks"}
		for _, t := range tables {
			s.Tables = append(s.Tables, t.HTML(-1))
		}
		report.Sections = append(report.Sections, s)
	}
	return report.Write(w, struct {
		Config  RunConfig       `json:"config"`
		Machine observe.Machine `json:"machine"`
	}{r.Config, r.Machine})
}
