package document

import (
	_ "embed"
	"encoding/json"
	"html/template"
	"io"
)

//go:embed html.tmpl
var text string

var layout = template.Must(template.New("page").Funcs(template.FuncMap{"svg": SVG}).Parse(text))

// WriteHTML writes ReportFile: one file that loads nothing from elsewhere.
func (d *Document) WriteHTML(w io.Writer) error { return layout.Execute(w, d) }

// Above returns the paragraphs below a page's title.
func (d *Document) Above() []string {
	if d.Made == "" {
		return d.Head
	}
	return append([]string{d.Made}, d.Head...)
}

// JSON returns what stands at a page's end, indented.
func (d *Document) JSON() (string, error) {
	v := d.Brief
	if v == nil {
		v = d.Data
	}
	encoded, err := json.MarshalIndent(v, "", "  ")
	return string(encoded), err
}
