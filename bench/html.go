package bench

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strings"
)

//go:embed report.html.tmpl
var reportTemplate string

var reportHTML = template.Must(template.New("report").Parse(reportTemplate))

// WriteHTML writes report.html: plots and tables of every cell in one file that
// loads nothing from elsewhere.
func WriteHTML(w io.Writer, r *Results) error {
	type text struct {
		Text string
		Left bool
	}
	type table struct {
		Title string
		Head  []text
		Rows  [][]text
	}
	type section struct {
		Name   string
		Plots  []template.HTML
		Tables []table
	}
	config, err := json.MarshalIndent(struct {
		Config  RunConfig `json:"config"`
		Machine Machine   `json:"machine"`
	}{r.Config, r.Machine}, "", "  ")
	if err != nil {
		return err
	}
	page := struct {
		Started, Machine, Verdict, ConfigJSON string
		Config                                RunConfig
		Remarks                               []string
		Groups                                []section
	}{
		Started:    r.Config.Started.UTC().Format("2006-01-02 15:04 UTC"),
		Machine:    r.Machine.String(),
		Verdict:    r.Verdict(),
		ConfigJSON: string(config),
		Config:     r.Config,
		Remarks:    r.remarks(),
	}
	align := func(g grid, row []string) []text {
		out := make([]text, len(row))
		for i, s := range row {
			out[i] = text{s, i < g.left}
		}
		return out
	}
	for _, g := range r.groups() {
		s := section{Name: g.name}
		plots, err := g.plots()
		if err != nil {
			return fmt.Errorf("plots of %s: %w", g.name, err)
		}
		for _, p := range plots {
			svg, err := inlineSVG(p)
			if err != nil {
				return fmt.Errorf("plots of %s: %w", g.name, err)
			}
			s.Plots = append(s.Plots, template.HTML(svg))
		}
		for _, t := range []grid{g.compare(latencies[0]), g.compare(latencies[1]), g.compare(latencies[2]), g.what()} {
			x := table{Title: strings.TrimPrefix(t.title, g.name+" "), Head: align(t, t.head)}
			for _, row := range t.rows {
				x.Rows = append(x.Rows, align(t, row))
			}
			s.Tables = append(s.Tables, x)
		}
		page.Groups = append(page.Groups, s)
	}
	if tables := r.agreement(); len(tables) > 0 {
		s := section{Name: "Clocks"}
		for _, t := range tables {
			x := table{Title: t.title, Head: align(t, t.head)}
			for _, row := range t.rows {
				x.Rows = append(x.Rows, align(t, row))
			}
			s.Tables = append(s.Tables, x)
		}
		page.Groups = append(page.Groups, s)
	}
	return reportHTML.Execute(w, page)
}
