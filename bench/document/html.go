// Package document has the parts of a report: tables as text, Markdown and HTML, plots
// in one style, a page that holds them, and the files of a folder. It knows nothing of
// what is measured.
package document

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strings"
)

//go:embed html.tmpl
var text string

var layout = template.Must(template.New("page").Parse(text))

// A Page is an HTML file that loads nothing from elsewhere.
type Page struct {
	Title   string
	Sub     []string // below the title, a paragraph each
	Verdict string   // in a box of its own
	// Lines are faults, what casts doubt on a figure, and notes: they begin with "* ",
	// "~ " or neither.
	Lines    []string
	Sections []Section
}

// A Section is plots and, below them, tables.
type Section struct {
	Name   string // its heading, if not empty
	Plots  []*Plot
	Tables []HTMLTable
}

// Write writes the page, with record as indented JSON at its end.
func (p *Page) Write(w io.Writer, record any) error {
	type line struct {
		Text string
		Bad  bool
	}
	type section struct {
		Name   string
		Plots  []template.HTML
		Tables []HTMLTable
	}
	encoded, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return err
	}
	data := struct {
		Title, Verdict, JSON string
		Sub                  []string
		Lines                []line
		Sections             []section
	}{Title: p.Title, Verdict: p.Verdict, JSON: string(encoded), Sub: p.Sub}
	for _, l := range p.Lines {
		data.Lines = append(data.Lines, line{strings.TrimSpace(l), strings.HasPrefix(l, "* ") || strings.HasPrefix(l, "~ ")})
	}
	for _, s := range p.Sections {
		out := section{Name: s.Name, Tables: s.Tables}
		for _, q := range s.Plots {
			svg, err := q.SVG()
			if err != nil {
				return fmt.Errorf("plot %q: %w", q.Title.Text, err)
			}
			out.Plots = append(out.Plots, template.HTML(svg))
		}
		data.Sections = append(data.Sections, out)
	}
	return layout.Execute(w, data)
}
