package document

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// A Table is text in columns.
type Table struct {
	Title string
	Head  []string // all empty: the columns need no names
	Left  int      // the first columns, aligned left; the others are aligned right
	Rows  [][]string
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
	if headed(t.Head) {
		line(t.Head)
	}
	for _, row := range t.Rows {
		line(row)
	}
	b.WriteString("\n")
}

// headed is whether any column has a name.
func headed(head []string) bool {
	return slices.ContainsFunc(head, func(s string) bool { return s != "" })
}

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

// An HTMLCell is a cell of an HTMLTable.
type HTMLCell struct {
	Text string
	Left bool
}

// An HTMLTable is a Table for a template; Best is the row to mark, -1 for none.
type HTMLTable struct {
	Title string
	Head  []HTMLCell
	Rows  [][]HTMLCell
	Best  int
}

// Headed is whether any column has a name.
func (t HTMLTable) Headed() bool {
	return slices.ContainsFunc(t.Head, func(c HTMLCell) bool { return c.Text != "" })
}

// HTML is the table for a template, with the row best marked.
func (t Table) HTML(best int) HTMLTable {
	align := func(row []string) []HTMLCell {
		out := make([]HTMLCell, len(row))
		for i, s := range row {
			out[i] = HTMLCell{s, i < t.Left}
		}
		return out
	}
	out := HTMLTable{Title: t.Title, Head: align(t.Head), Best: best}
	for _, row := range t.Rows {
		out.Rows = append(out.Rows, align(row))
	}
	return out
}
