package bench

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strings"

	"kvferry/bench/page"
)

//go:embed report.html.tmpl
var reportTemplate string

var reportHTML = template.Must(template.New("report").Parse(reportTemplate))

// WriteHTML writes report.html: plots and tables of every cell in one file that
// loads nothing from elsewhere.
func WriteHTML(w io.Writer, r *Results) error {
	type section struct {
		Name   string
		Plots  []template.HTML
		Tables []page.HTMLTable
	}
	config, err := json.MarshalIndent(struct {
		Config  RunConfig `json:"config"`
		Machine Machine   `json:"machine"`
	}{r.Config, r.Machine}, "", "  ")
	if err != nil {
		return err
	}
	data := struct {
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
			svg, err := page.InlineSVG(p)
			if err != nil {
				return fmt.Errorf("plots of %s: %w", g.name, err)
			}
			s.Plots = append(s.Plots, template.HTML(svg))
		}
		for _, t := range []page.Table{g.compare(latencies[0]), g.compare(latencies[1]), g.compare(latencies[2]), g.what()} {
			t.Title = strings.TrimPrefix(t.Title, g.name+" ")
			s.Tables = append(s.Tables, t.HTML(-1))
		}
		data.Groups = append(data.Groups, s)
	}
	if tables := r.agreement(); len(tables) > 0 {
		s := section{Name: "Clocks"}
		for _, t := range tables {
			s.Tables = append(s.Tables, t.HTML(-1))
		}
		data.Groups = append(data.Groups, s)
	}
	return reportHTML.Execute(w, data)
}
