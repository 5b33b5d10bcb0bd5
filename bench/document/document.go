// Package document writes reports. A [Document] has what a command returns: tables, plots,
// notes. Text for a terminal, Markdown, HTML and JSON follow from it. The package also writes the
// files of a folder of results. It knows nothing of what is measured.
package document

import (
	"encoding/json"
	"errors"
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

// A Document is the report of a run.
type Document struct {
	Title string
	Made  string   // when and how it came about; in the page alone, so that equal results have equal tables
	Head  []string // what was run and where, a paragraph each
	// HeadInFiles leaves Head out of the text for a terminal, whose reader has just started the run.
	HeadInFiles bool
	Verdict     string // the result in a sentence, or in several lines
	Notes       Notes
	Sections    []Section
	Data        any    // all figures: the file DataName, and the end of the page
	DataName    string // default SummaryFile
	Brief       any    // for the end of the page, if Data is too long for it
	Extra       []File // others of the folder, RecordsFile among them unless it is written as the run goes
}

// A Section is a part of a report.
type Section struct {
	Name   string   // its heading, and on a terminal the beginning of its tables' titles; may be empty
	Lines  []string // above its tables, on a terminal alone
	Plots  []Plot   // in the page alone; nil ones are left out
	Tables []Table  // those without rows are left out
}

// A Level grades a note.
type Level int

// Levels of notes.
const (
	Info  Level = iota // qualifies a figure
	Doubt              // casts doubt on it
	Fault              // makes it unusable
)

// marks precede notes, and stand in tables beside the cells that the notes are about.
var marks = [...]string{Info: "", Doubt: "~ ", Fault: "* "}

// A Note is a remark on the figures.
type Note struct {
	Level Level
	Text  string
}

// String returns the note with its mark: "* " for a fault, "~ " for a doubt.
func (n Note) String() string { return marks[n.Level] + n.Text }

// Notes are the remarks of a report, in order.
type Notes []Note

// Add appends notes of a level.
func (n *Notes) Add(level Level, texts ...string) {
	for _, text := range texts {
		*n = append(*n, Note{level, text})
	}
}

// Addf appends a note of a level.
func (n *Notes) Addf(level Level, format string, args ...any) {
	n.Add(level, fmt.Sprintf(format, args...))
}

// InWords returns the notes a line each, with a word in place of the mark: "fault: ", "disturbed: " or "note: ".
func (n Notes) InWords() string {
	var b strings.Builder
	for _, note := range n {
		b.WriteString([...]string{Info: "note: ", Doubt: "disturbed: ", Fault: "fault: "}[note.Level] + note.Text + "\n")
	}
	return b.String()
}

// When returns what Made says of a start: "Measured 2026-11-28 10:00 UTC.".
func When(made string, started time.Time) string {
	return made + " " + started.UTC().Format("2006-01-02 15:04 UTC") + "."
}

// Files returns the files of the document for a folder of results.
func (d *Document) Files() []File {
	name := d.DataName
	if name == "" {
		name = SummaryFile
	}
	return append([]File{
		{name, func(w io.Writer) error { return WriteJSON(w, d.Data) }},
		{TableFile, d.WriteMarkdown},
		{ReportFile, d.WriteHTML},
	}, d.Extra...)
}

// Write writes the files into a folder; none if dir is empty. Its error is an OutputError.
func (d *Document) Write(dir string) error {
	if dir == "" {
		return nil
	}
	return WriteFiles(dir, d.Files()...)
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

// WriteText writes the document for a terminal: no plots, and no tables that are Detail.
func (d *Document) WriteText(w io.Writer) error {
	var b strings.Builder
	block := func(lines []string) {
		if len(lines) > 0 {
			b.WriteString(strings.Join(lines, "\n") + "\n\n")
		}
	}
	if !d.HeadInFiles {
		block(d.Head)
	}
	for _, s := range d.Sections {
		block(s.Lines)
		for _, t := range s.Tables {
			if len(t.Rows) > 0 && !t.Detail {
				t.Title = strings.TrimSpace(s.Name + " " + t.Title)
				t.WriteText(&b)
			}
		}
	}
	for _, n := range d.Notes {
		b.WriteString(n.String() + "\n")
	}
	if d.Verdict != "" {
		b.WriteString(d.Verdict + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Print prints the document and, if dir is not empty, which of its files, of RecordsFile and of
// LogFile are there.
func (d *Document) Print(w io.Writer, dir string) error {
	if err := d.WriteText(w); err != nil || dir == "" {
		return err
	}
	names := []string{RecordsFile}
	for _, f := range d.Files() {
		if f.Name != RecordsFile {
			names = append(names, f.Name)
		}
	}
	_, err := io.WriteString(w, "\n"+Listing(dir, Present(dir, append(names, LogFile)...)...)+"\n")
	return err
}

// Keep writes the document's files, if dir is not empty, and prints the document. A failure to write does not keep
// it from printing: a full disk costs the files and not the figures.
func (d *Document) Keep(w io.Writer, dir string) error {
	lost := d.Write(dir)
	if lost != nil {
		dir = ""
	}
	return errors.Join(d.Print(w, dir), lost)
}

// WriteMarkdown writes TableFile.
func (d *Document) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	block := func(text string) {
		if text != "" {
			b.WriteString(text + "\n\n")
		}
	}
	block("# " + d.Title)
	block(strings.Join(d.Head, "\n\n"))
	block(d.Verdict)
	for _, s := range d.Sections {
		head := s.Name
		for _, t := range s.Tables {
			if len(t.Rows) == 0 {
				continue
			}
			if head != "" {
				block("## " + head)
				head = ""
			}
			t.WriteMarkdown(&b)
		}
	}
	if len(d.Notes) > 0 {
		block(d.Notes.heading())
	}
	for _, n := range d.Notes {
		b.WriteString("- " + strings.Replace(n.String(), "* ", `\* `, 1) + "\n")
	}
	_, err := io.WriteString(w, strings.TrimRight(b.String(), "\n")+"\n")
	return err
}

// heading returns the heading of the notes in Markdown, which explains the marks if any note has one.
func (n Notes) heading() string {
	for _, note := range n {
		if note.Level != Info {
			return "## Faults (*), disturbances (~) and notes"
		}
	}
	return "## Notes"
}
