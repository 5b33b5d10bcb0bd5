package document_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/bench/document"
)

func TestTable(t *testing.T) {
	table := document.Table{Title: "rates", Left: 1, Head: []string{"op", "GB/s"}, Rows: [][]string{{"écrire", "1"}, {"r", "10.25"}}}
	if got, want := table.Text(), "rates\nop       GB/s\nécrire      1\nr       10.25\n\n"; got != want {
		t.Errorf("text\n%q, want\n%q", got, want)
	}
	var b strings.Builder
	document.Table{Title: "a", Left: 1, Head: []string{"x", "y"}, Rows: [][]string{{"1|2", "3\n4"}}}.WriteMarkdown(&b)
	if got, want := b.String(), "### a\n\n| x | y |\n| :--- | ---: |\n| 1\\|2 | 3 4 |\n\n"; got != want {
		t.Errorf("markdown\n%q, want\n%q", got, want)
	}
	if h := table.HTML(1); h.Best != 1 || !h.Rows[1][0].Left || h.Rows[1][1].Left || h.Rows[1][1].Text != "10.25" {
		t.Errorf("%+v", h)
	}
}

// TestPage: what is measured cannot become markup, and plots do. Faults are told from
// notes, and a wide table has a box to scroll in.
func TestPage(t *testing.T) {
	empty := document.NewPlot("nothing yet")
	empty.X.Max, empty.Y.Max = 1, 1
	table := document.Table{Head: []string{"<i>"}}.HTML(-1)
	p := document.Page{
		Title: "<b>", Lines: []string{"* 1 failed <u>", "  a note"},
		Sections: []document.Section{{Name: "<s>", Tables: []document.HTMLTable{table}}, {Plots: []*document.Plot{empty}}},
	}
	var b bytes.Buffer
	if err := p.Write(&b, map[string]string{"k": "</pre>"}); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<b>", "<i>", "<u>", "<s>", "</pre>\""} {
		if strings.Contains(b.String(), bad) {
			t.Errorf("%q in the page", bad)
		}
	}
	for _, want := range []string{`<li class="bad">* 1 failed`, `<li>a note`, `<div class="scroll"><table>`, "overflow-x: auto", "min(440px, 100%)", "<svg"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in the page", want)
		}
	}
}

// TestWriteFiles: a file that cannot be written leaves the one before, and does not
// keep others from being written. The error is one, however many there were.
func TestWriteFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	put := func(text string, fail error) error {
		write := func(fail error) func(w io.Writer) error {
			return func(w io.Writer) error {
				_, _ = io.WriteString(w, text)
				return fail
			}
		}
		return document.WriteFiles(dir, document.File{Name: "a.txt", Write: write(fail)}, document.File{Name: "b.txt", Write: write(fail)}, document.File{Name: "c.txt", Write: write(nil)})
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	if err := errors.Join(put("one", nil), put("two", nil)); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	err := put("three", broken)
	if lost := (*document.OutputError)(nil); !errors.As(err, &lost) || !errors.Is(err, broken) || !strings.Contains(err.Error(), "a.txt") || strings.Contains(err.Error(), "b.txt") {
		t.Error(err)
	}
	files, _ := os.ReadDir(dir)
	if a, c := read("a.txt"), read("c.txt"); a != "two" || c != "three" || len(files) != 3 {
		t.Errorf("%q, %q, %d files", a, c, len(files))
	}
	// Where a folder stands in the way nothing is left behind.
	if err := os.Mkdir(filepath.Join(dir, "d.txt"), 0o755); err != nil {
		t.Fatal(err)
	}
	err = document.WriteFiles(dir, document.File{Name: "d.txt", Write: func(io.Writer) error { return nil }})
	if lost := (*document.OutputError)(nil); !errors.As(err, &lost) {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "d.txt.tmp")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("part of a file is left: %v", err)
	}
	// The folder cannot be made.
	err = document.WriteFiles(filepath.Join(dir, "a.txt", "below"))
	if lost := (*document.OutputError)(nil); !errors.As(err, &lost) || !strings.Contains(err.Error(), "results are not kept: mkdir") {
		t.Error(err)
	}
}

// TestCheckNew: a folder with results of any command is none for another run; its error says
// which and what to do. One with other files is.
func TestCheckNew(t *testing.T) {
	if err := document.CheckNew(""); err == nil || err.Error() != "none given: name a folder for the results" {
		t.Error(err)
	}
	dir := t.TempDir()
	for _, fine := range []string{dir, filepath.Join(dir, "none")} {
		if err := document.CheckNew(fine); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"notes.txt", "daemons.log", document.RecordsFile, "summary.json", "sweep.json", "compare.json", "matrix.json", "table.md", "report.html"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		err, want := document.CheckNew(dir), dir+`": it has results already (`+name+`): name another folder, or remove them`
		if other := name == "notes.txt" || name == "daemons.log"; (err == nil) != other || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDocument: what is printed and what the files have is the same, and the folder is named only
// if it has them.
func TestDocument(t *testing.T) {
	d := &document.Document{
		Title: "a run", Made: "Computed", Head: "of what", Notes: []string{"* bad", "good"}, Data: []int{7},
		Tables: []document.Table{{Title: "rates", Left: 1, Head: []string{"op", "GB/s"}, Rows: [][]string{{"r", "1"}}}},
	}
	var plain, where strings.Builder
	if err := errors.Join(d.Print(&plain, ""), d.Print(&where, "out")); err != nil {
		t.Fatal(err)
	}
	want := "of what\n\nrates\nop  GB/s\nr      1\n\n* bad\ngood\n"
	if listing := "results: out/{results.jsonl,summary.json,table.md,report.html}\n"; plain.String() != want || where.String() != want+listing {
		t.Errorf("printed\n%s\nand\n%s", &plain, &where)
	}
	got := map[string]string{}
	for _, f := range append(d.Files(), document.Records([]int{1, 2})) {
		var b strings.Builder
		if err := f.Write(&b); err != nil {
			t.Error(err)
		}
		got[f.Name] = b.String()
	}
	for name, want := range map[string]string{
		document.RecordsFile: "1\n2\n", document.SummaryFile: "[\n  7\n]\n",
		document.TableFile: "# a run\n\nof what\n\n### rates\n\n| op | GB/s |\n| :--- | ---: |\n| r | 1 |\n\n* bad\n\ngood\n",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	for _, want := range []string{"<title>a run", "Computed 0001-01-01", `<li class="bad">* bad`} {
		if !strings.Contains(got[document.ReportFile], want) {
			t.Errorf("%q is not in the page", want)
		}
	}
}
