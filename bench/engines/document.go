package engines

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"kvferry/bench/page"
)

// Files of a run, besides page.RecordsFile, which has the samples or trials.
const (
	summaryFile = "summary.json"
	reportFile  = "report.html"
	tableFile   = "table.md"
)

// A document is what a run came to as people read it, and what its files have.
type document struct {
	title   string
	started time.Time
	head    string // what was run where
	tables  []page.Table
	notes   []string                     // below the tables
	plots   func() ([]*page.Plot, error) // nil: none
	records func(io.Writer) error
	data    any // in summary.json, and in the report
}

// print prints the tables, and where the files are.
func (d *document) print(cfg Config) error {
	var b strings.Builder
	b.WriteString(d.head + "\n\n")
	for _, t := range d.tables {
		t.WriteText(&b)
	}
	for _, line := range d.notes {
		b.WriteString(line + "\n")
	}
	_, err := fmt.Fprint(cfg.Stdout, b.String(), page.Listing(cfg.Out, page.RecordsFile, summaryFile, reportFile, tableFile), "\n")
	return err
}

// write writes the files.
func (d *document) write(dir string) error {
	return page.WriteFiles(
		dir,
		page.File{Name: page.RecordsFile, Write: d.records},
		page.File{Name: summaryFile, Write: func(w io.Writer) error { return page.WriteJSON(w, d.data) }},
		page.File{Name: reportFile, Write: d.writeHTML},
		page.File{Name: tableFile, Write: d.writeMarkdown},
	)
}

func (d *document) writeHTML(w io.Writer) error {
	var section page.Section
	if d.plots != nil {
		var err error
		if section.Plots, err = d.plots(); err != nil {
			return err
		}
	}
	for _, t := range d.tables {
		section.Tables = append(section.Tables, t.HTML(-1))
	}
	p := page.Page{
		Title: d.title, Sub: []string{"Measured " + d.started.UTC().Format("2006-01-02 15:04 UTC") + ".", d.head}, Lines: d.notes,
		Sections: []page.Section{section},
	}
	return p.Write(w, d.data)
}

func (d *document) writeMarkdown(w io.Writer) error {
	var b strings.Builder
	for _, t := range d.tables {
		t.WriteMarkdown(&b)
	}
	for _, line := range d.notes {
		b.WriteString(line + "\n\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// records writes a line of JSON for each.
func records[T any](w io.Writer, all []T) error {
	enc := json.NewEncoder(w)
	for _, one := range all {
		if err := enc.Encode(one); err != nil {
			return err
		}
	}
	return nil
}
