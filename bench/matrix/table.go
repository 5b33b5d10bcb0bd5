package matrix

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"kvferry/bench/page"
)

// Names of the files of a whole run.
const (
	matrixFile = "matrix.json"
	tableFile  = "table.md"
	reportFile = "report.html"
)

// table has a row for each run that a pair's client has reported, and one for each other pair.
// Columns that nobody reports are left out.
func (r *runner) table() page.Table {
	t := page.Table{Title: fmt.Sprintf("%d servers x %d clients", len(r.cfg.File.Servers), len(r.cfg.File.Clients)), Left: 3, Head: []string{"server", "client", "status"}}
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
				text := "-"
				if v, ok := f.Values[c.key]; ok {
					text = strconv.FormatFloat(v, 'f', c.digits, 64)
				}
				row = append(row, text)
			}
			t.Rows = append(t.Rows, row)
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

// faults are what went wrong, a line a pair.
func (r *runner) faults() (lines []string) {
	for _, p := range r.pairs {
		if p.Error != "" {
			lines = append(lines, fmt.Sprintf("* %s/%s: %s", p.Server, p.Client, strings.Join(strings.Fields(p.Error), " ")))
		}
	}
	return lines
}

// writeTables writes what is a function of all pairs. It is written after each pair, so that it
// is there however the run ends.
func (r *runner) writeTables() error {
	faults := r.faults()
	return page.WriteFiles(
		r.cfg.Out,
		page.File{Name: matrixFile, Write: func(w io.Writer) error {
			enc := json.NewEncoder(w)
			enc.SetIndent("", "  ")
			enc.SetEscapeHTML(false)
			return enc.Encode(r.record())
		}},
		page.File{Name: tableFile, Write: func(w io.Writer) error {
			var b strings.Builder
			r.table().WriteMarkdown(&b)
			page.WriteLines(&b, faults)
			_, err := io.WriteString(w, b.String())
			return err
		}},
		page.File{Name: reportFile, Write: func(w io.Writer) error {
			p := page.Page{
				Title:    "kvferry lab matrix",
				Sub:      []string{"File: " + r.cfg.File.path, "Each figure is what the client reports, by its own definition."},
				Lines:    faults,
				Sections: []page.Section{{Tables: []page.HTMLTable{r.table().HTML(-1)}}},
			}
			return p.Write(w, r.record())
		}},
	)
}

// record is matrix.json.
func (r *runner) record() any {
	return struct {
		File  string  `json:"file"`
		Pairs []*Pair `json:"pairs"`
	}{r.cfg.File.path, r.pairs}
}
