package document

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// Files of a document, beside RecordsFile.
const (
	SummaryFile = "summary.json"
	TableFile   = "table.md"
	ReportFile  = "report.html"
)

// A Document is what a run came to, as it is printed and as its files have it.
type Document struct {
	Title   string // of the page
	Made    string // what was done: "Measured" or "Computed"
	Started time.Time
	Head    string // what was run, and where
	Tables  []Table
	Notes   []string                // below the tables; see [Page].Lines
	Plots   func() ([]*Plot, error) // nil: none
	Data    any                     // in SummaryFile, and in the page
}

// Files are the document's in the folder of results. A run has RecordsFile besides.
func (d *Document) Files() []File {
	return []File{
		{SummaryFile, func(w io.Writer) error { return WriteJSON(w, d.Data) }},
		{TableFile, d.WriteMarkdown},
		{ReportFile, d.writeHTML},
	}
}

// Records is RecordsFile with a line of JSON for each of all.
func Records[T any](all []T) File {
	return File{RecordsFile, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		for _, one := range all {
			if err := enc.Encode(one); err != nil {
				return err
			}
		}
		return nil
	}}
}

// WriteLines writes lines to b, each with a newline.
func WriteLines(b *strings.Builder, lines []string) {
	for _, line := range lines {
		b.WriteString(line + "\n")
	}
}

// Print prints the document and, if its files and RecordsFile are in a folder, where that is.
func (d *Document) Print(w io.Writer, dir string) error {
	var b strings.Builder
	b.WriteString(d.Head + "\n\n")
	for _, t := range d.Tables {
		t.WriteText(&b)
	}
	WriteLines(&b, d.Notes)
	if dir != "" {
		b.WriteString(Listing(dir, RecordsFile, SummaryFile, TableFile, ReportFile) + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteMarkdown writes TableFile.
func (d *Document) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n\n", d.Title, d.Head)
	for _, t := range d.Tables {
		t.WriteMarkdown(&b)
	}
	for _, line := range d.Notes {
		b.WriteString(line + "\n\n")
	}
	_, err := io.WriteString(w, strings.TrimSuffix(b.String(), "\n"))
	return err
}

func (d *Document) writeHTML(w io.Writer) error {
	var section Section
	if d.Plots != nil {
		var err error
		if section.Plots, err = d.Plots(); err != nil {
			return err
		}
	}
	for _, t := range d.Tables {
		section.Tables = append(section.Tables, t.HTML(-1))
	}
	p := Page{
		Title: d.Title, Sub: []string{d.Made + " " + d.Started.UTC().Format("2006-01-02 15:04 UTC") + ".", d.Head}, Lines: d.Notes,
		Sections: []Section{section},
	}
	return p.Write(w, d.Data)
}
