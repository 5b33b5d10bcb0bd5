// Package page has the parts of a report: tables as text, Markdown and HTML, plots
// in one style, and a page that holds them. It knows nothing of what is measured.
package page

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"

	"gonum.org/v1/plot"
)

//go:embed page.html.tmpl
var text string

var layout = template.Must(template.New("page").Parse(text))

// A Page is an HTML file that loads nothing from elsewhere.
type Page struct {
	Title  string
	Sub    []string
	Best   string
	Lines  []string
	Plots  []template.HTML // Write adds those it is given
	Tables []HTMLTable
	JSON   string // Write sets it
}

// Write writes the page with plots, and record as indented JSON at its end.
func (p *Page) Write(w io.Writer, plots []*plot.Plot, record any) error {
	for _, q := range plots {
		svg, err := InlineSVG(q)
		if err != nil {
			return fmt.Errorf("plots: %w", err)
		}
		p.Plots = append(p.Plots, template.HTML(svg))
	}
	encoded, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return err
	}
	p.JSON = string(encoded)
	return layout.Execute(w, p)
}
