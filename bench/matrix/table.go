package matrix

import (
	"fmt"
	"strconv"
	"strings"

	"kvferry/bench/document"
)

// matrixFile has all pairs of a whole run.
const matrixFile = "matrix.json"

// table has a row for each run that a pair's client has reported, and one for each other pair.
// Columns that nobody reports are left out.
func (r *runner) table() document.Table {
	t := document.Table{Title: fmt.Sprintf("%d servers x %d clients", len(r.cfg.File.Servers), len(r.cfg.File.Clients)), Left: 3, Head: []string{"server", "client", "status"}}
	var used []figure
	for _, c := range columns {
		if r.reported(c.key) {
			used = append(used, c)
			t.Head = append(t.Head, c.head)
		}
	}
	for _, p := range r.pairs {
		figures := p.Figures
		if len(figures) == 0 {
			figures = []Figures{{}}
		}
		for _, f := range figures {
			row := []string{p.Server, p.Client, p.word()}
			for _, c := range used {
				text := ""
				if v, ok := f.Values[c.key]; ok {
					text = strconv.FormatFloat(v, 'f', c.digits, 64)
				}
				row = append(row, text)
			}
			t.Add(row...)
		}
	}
	return t
}

// reported says that a client has reported a figure.
func (r *runner) reported(key string) bool {
	for _, p := range r.pairs {
		for _, f := range p.Figures {
			if _, ok := f.Values[key]; ok {
				return true
			}
		}
	}
	return false
}

// word is the pair's status in the table.
func (p *Pair) word() string {
	if p.Status == "" {
		return "not run"
	}
	return p.Status
}

// document returns the report of all pairs.
func (r *runner) document() *document.Document {
	d := &document.Document{
		Title: "kvferry lab matrix", Head: []string{"File: " + r.cfg.File.path, "Each figure is what the client reports, by its own definition."},
		Sections: []document.Section{{Tables: []document.Table{r.table()}}}, Data: r.record(), DataName: matrixFile,
	}
	for _, p := range r.pairs {
		if p.Error != "" {
			d.Notes.Addf(document.Fault, "%s/%s: %s", p.Server, p.Client, strings.Join(strings.Fields(p.Error), " "))
		}
	}
	return d
}

// writeTables writes what is a function of all pairs. It is written after each pair, so that it
// is there however the run ends.
func (r *runner) writeTables() error { return r.document().Write(r.cfg.Out) }

// record is matrix.json.
func (r *runner) record() any {
	return struct {
		File  string  `json:"file"`
		Pairs []*Pair `json:"pairs"`
	}{r.cfg.File.path, r.pairs}
}
