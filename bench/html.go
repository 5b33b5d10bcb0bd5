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

type htmlCell struct {
	Text string
	Left bool
}

// htmlTable is a grid for a template; Best is the row to mark, -1 for none.
type htmlTable struct {
	Title string
	Head  []htmlCell
	Rows  [][]htmlCell
	Best  int
}

func (g grid) html(best int) htmlTable {
	align := func(row []string) []htmlCell {
		out := make([]htmlCell, len(row))
		for i, s := range row {
			out[i] = htmlCell{s, i < g.left}
		}
		return out
	}
	t := htmlTable{Title: g.title, Head: align(g.head), Best: best}
	for _, row := range g.rows {
		t.Rows = append(t.Rows, align(row))
	}
	return t
}

// WriteHTML writes report.html: plots and tables of every cell in one file that
// loads nothing from elsewhere.
func WriteHTML(w io.Writer, r *Results) error {
	type section struct {
		Name   string
		Plots  []template.HTML
		Tables []htmlTable
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
			t.title = strings.TrimPrefix(t.title, g.name+" ")
			s.Tables = append(s.Tables, t.html(-1))
		}
		page.Groups = append(page.Groups, s)
	}
	if tables := r.agreement(); len(tables) > 0 {
		s := section{Name: "Clocks"}
		for _, t := range tables {
			s.Tables = append(s.Tables, t.html(-1))
		}
		page.Groups = append(page.Groups, s)
	}
	return reportHTML.Execute(w, page)
}
