package document

import (
	"encoding/csv"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A Table is text in columns.
type Table struct {
	Title  string
	Head   []string // all empty: the columns need no names
	Left   int      // the first columns, aligned left; the others are aligned right
	Rows   [][]string
	Best   int  // row to mark in the page, from 1; 0: none
	Detail bool // in the files alone: a terminal has no room for it
}

// Cols are the columns of a table whose rows are made of values of type R: what stands above, and
// the cell of a row. An empty cell of a column that has a head says that there is no value, and is a dash.
type Cols[R any] []struct {
	Head string
	Cell func(R) string
}

// Table returns a table with a row for each of rows.
func (c Cols[R]) Table(title string, left int, rows []R) Table {
	t := Table{Title: title, Left: left}
	for _, column := range c {
		t.Head = append(t.Head, column.Head)
	}
	for _, r := range rows {
		cells := make([]string, len(c))
		for i, column := range c {
			cells[i] = column.Cell(r)
		}
		t.Add(cells...)
	}
	return t
}

// Add appends a row. An empty cell of a column that has a head is a dash, and so are those that are missing.
func (t *Table) Add(cells ...string) {
	cells = append(cells, make([]string, max(0, len(t.Head)-len(cells)))...)
	for i, head := range t.Head {
		if cells[i] == "" && head != "" {
			cells[i] = "-"
		}
	}
	t.Rows = append(t.Rows, cells)
}

// Fixed returns v with n decimals, and "" if v is NaN or infinite.
func Fixed(v float64, n int) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return ""
	}
	return strconv.FormatFloat(v, 'f', n, 64)
}

// Number returns what v points to, and NaN if v is nil.
func Number(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}

// Known returns text of what v points to, and "" if v is nil.
func Known[T any](v *T, text func(T) string) string {
	if v == nil {
		return ""
	}
	return text(*v)
}

func (t Table) widths() []int {
	w := make([]int, len(t.Head))
	for _, row := range append([][]string{t.Head}, t.Rows...) {
		for i, s := range row {
			w[i] = max(w[i], utf8.RuneCountInString(s))
		}
	}
	return w
}

// WriteText appends the table for a terminal, with its title above and an empty
// line below.
func (t Table) WriteText(b *strings.Builder) {
	w := t.widths()
	line := func(row []string) {
		var l strings.Builder
		for i, s := range row {
			fill := strings.Repeat(" ", w[i]-utf8.RuneCountInString(s))
			if i > 0 {
				l.WriteString("  ")
			}
			if i < t.Left {
				l.WriteString(s + fill)
			} else {
				l.WriteString(fill + s)
			}
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	b.WriteString(t.Title + "\n")
	if t.Headed() {
		line(t.Head)
	}
	for _, row := range t.Rows {
		line(row)
	}
	b.WriteString("\n")
}

// Headed reports whether any column has a name.
func (t Table) Headed() bool {
	return slices.ContainsFunc(t.Head, func(s string) bool { return s != "" })
}

// Marked reports whether the i-th row, from 0, is the one to mark.
func (t Table) Marked(i int) bool { return i == t.Best-1 }

// Text is what WriteText appends.
func (t Table) Text() string {
	var b strings.Builder
	t.WriteText(&b)
	return b.String()
}

// WriteMarkdown appends the table for a Markdown file.
func (t Table) WriteMarkdown(b *strings.Builder) {
	escape := strings.NewReplacer("|", `\|`, "\n", " ")
	line := func(row []string) {
		b.WriteString("|")
		for _, s := range row {
			b.WriteString(" " + escape.Replace(s) + " |")
		}
		b.WriteString("\n")
	}
	b.WriteString("### " + t.Title + "\n\n")
	line(t.Head)
	b.WriteString("|" + strings.Repeat(" :--- |", t.Left) + strings.Repeat(" ---: |", len(t.Head)-t.Left) + "\n")
	for _, row := range t.Rows {
		line(row)
	}
	b.WriteString("\n")
}

// WriteCSV writes the head and the rows, without the title.
func (t Table) WriteCSV(w io.Writer) error {
	return csv.NewWriter(w).WriteAll(append([][]string{t.Head}, t.Rows...))
}
