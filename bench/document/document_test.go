package document_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

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
	table.Best = 2
	page := written(t, &document.Document{Sections: []document.Section{{Tables: []document.Table{table}}}})[document.ReportFile]
	if want := `<tr class="best"><td class="l">r</td><td>10.25</td></tr>`; !strings.Contains(page, want) || strings.Count(page, `class="best"`) != 1 {
		t.Errorf("no %s in\n%s", want, page)
	}
	var csv strings.Builder
	if err := table.WriteCSV(&csv); err != nil || csv.String() != "op,GB/s\nécrire,1\nr,10.25\n" {
		t.Errorf("CSV %q, %v", csv.String(), err)
	}
}

// TestMissing: a value that there is none of is a dash under a head, and nothing where the column has none.
func TestMissing(t *testing.T) {
	half := 0.5
	table := document.Cols[*float64]{
		{"", func(*float64) string { return "" }},
		{"fixed", func(v *float64) string { return document.Fixed(document.Number(v), 1) }},
		{"known", func(v *float64) string { return document.Known(v, func(v float64) string { return fmt.Sprint(v) }) }},
	}.Table("t", 1, []*float64{&half, nil})
	table.Add("x")
	if got, want := fmt.Sprint(table.Rows), "[[ 0.5 0.5] [ - -] [x - -]]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// written returns the contents of a document's files.
func written(t *testing.T, d *document.Document) map[string]string {
	t.Helper()
	got := map[string]string{}
	for _, f := range d.Files() {
		var b strings.Builder
		if err := f.Write(&b); err != nil {
			t.Error(err)
		}
		got[f.Name] = b.String()
	}
	return got
}

// TestPage: what is measured cannot become markup, and plots do. Faults are told from
// notes, and a wide table has a box to scroll in. What has no rows or no points is left out.
func TestPage(t *testing.T) {
	chart := document.Chart{Title: "one point", Curves: []document.Curve{{XYs: plotter.XYs{{X: 1, Y: 1}, {X: 2, Y: math.NaN()}}}}}
	table := document.Table{Title: "<i>", Head: []string{"<i>"}, Rows: [][]string{{"1"}}}
	d := &document.Document{
		Title: "<b>", Notes: document.Notes{{Level: document.Fault, Text: "1 failed <u>"}, {Text: "a note"}}, Data: 1, Brief: map[string]string{"k": "</pre>"},
		Sections: []document.Section{{Name: "<s>", Tables: []document.Table{table, {Title: "no rows"}}}, {Plots: []document.Plot{chart, nil, document.Chart{}, document.Bars{}}}},
	}
	page := written(t, d)[document.ReportFile]
	for _, bad := range []string{"<b>", "<i>", "<u>", "<s>", "</pre>\"", "no rows"} {
		if strings.Contains(page, bad) {
			t.Errorf("%q in the page", bad)
		}
	}
	for _, want := range []string{`<li class="bad">* 1 failed`, `<li>a note`, `<div class="scroll"><table>`, "overflow-x: auto", "min(440px, 100%)"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in the page", want)
		}
	}
	if n := strings.Count(page, "<svg"); n != 1 || strings.Count(page, `<div class="card"><svg`) != n {
		t.Errorf("%d plots, want 1 in a card", n)
	}
}

// TestBars: values stand above bars, and a series that has none is left out, or of nothing but 0 in a stack.
func TestBars(t *testing.T) {
	series := []document.Series{{Name: "measured", Values: []float64{123.4, 0.5}}, {Name: "published", Values: []float64{math.NaN(), math.NaN()}, Pale: true}, {Name: "zero", Values: []float64{0, 0}}}
	for stacked, want := range map[bool]string{false: "123 0.5 measured zero", true: "measured"} {
		svg, err := document.SVG(document.Bars{Title: "b", Names: []string{"one", "two"}, Series: series, Stacked: stacked})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, text := range []string{"123", "0.5", "measured", "published", "zero"} {
			if strings.Contains(string(svg), ">"+text+"<") {
				got = append(got, text)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("stacked %t: %q, want %s", stacked, got, want)
		}
	}
}

// TestEnds: an axis holds what is drawn, and what a logarithmic one has no place for is not drawn.
func TestEnds(t *testing.T) {
	points := []document.Curve{{XYs: plotter.XYs{{X: 0, Y: -10}, {X: 100, Y: 5}, {X: 1000, Y: 20}}}}
	for _, c := range []struct {
		chart document.Chart
		want  string
	}{
		{document.Chart{Curves: points}, "0 to 1100, -11 to 22"},
		{document.Chart{Curves: points, X: document.Axis{Log: true}}, "76.9 to 1.3e+03, 0 to 22"},
		{document.Chart{Curves: points, Y: document.Axis{Min: -1, Max: 1}}, "0 to 1100, -1 to 1"},
		{document.Chart{Curves: points, X: document.Axis{Ticks: []plot.Tick{{Value: 1}}}}, "0 to 1000, -11 to 22"},
	} {
		from, to, some := c.chart.Ends()
		if got := fmt.Sprintf("%.3g to %.4g, %.3g to %.3g", from.X, to.X, from.Y, to.Y); !some || strings.ReplaceAll(got, "1300", "1.3e+03") != c.want {
			t.Errorf("%s, want %s", got, c.want)
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

// TestDocument: what is printed and what the files have is the same, but that a terminal has no room for
// details, and the files are named only if they are there.
func TestDocument(t *testing.T) {
	d := &document.Document{
		Title: "a run", Made: document.When("Computed", time.Time{}), Head: []string{"of what"}, Verdict: "well", Data: []int{7}, DataName: "seven.json",
		Notes: document.Notes{{Level: document.Fault, Text: "bad"}, {Level: document.Doubt, Text: "odd"}, {Text: "good"}},
		Sections: []document.Section{{Name: "first", Lines: []string{"above"}, Tables: []document.Table{
			{Title: "rates", Left: 1, Head: []string{"op", "GB/s"}, Rows: [][]string{{"r", "1"}}},
			{Title: "more", Detail: true, Head: []string{"x"}, Rows: [][]string{{"1"}}},
			{Title: "none"},
		}}},
		Extra: []document.File{document.Records([]int{1, 2})},
	}
	dir := t.TempDir()
	var plain, where, lost strings.Builder
	if err := errors.Join(d.Keep(&plain, ""), d.Keep(&where, dir)); err != nil {
		t.Fatal(err)
	}
	want := "of what\n\nabove\n\nfirst rates\nop  GB/s\nr      1\n\n* bad\n~ odd\ngood\nwell\n"
	if listing := "\nresults: " + dir + "/{results.jsonl,seven.json,table.md,report.html}\n"; plain.String() != want || where.String() != want+listing {
		t.Errorf("printed\n%s\nand\n%s", &plain, &where)
	}
	if err := d.Keep(&lost, filepath.Join(dir, "seven.json", "below")); !errors.As(err, new(*document.OutputError)) || lost.String() != want {
		t.Errorf("%v, printed\n%s", err, &lost)
	}
	got := written(t, d)
	for name, want := range map[string]string{
		document.RecordsFile: "1\n2\n", "seven.json": "[\n  7\n]\n",
		document.TableFile: "# a run\n\nof what\n\nwell\n\n## first\n\n### rates\n\n| op | GB/s |\n| :--- | ---: |\n| r | 1 |\n\n### more\n\n| x |\n| ---: |\n| 1 |\n\n## Faults (*), disturbances (~) and notes\n\n- \\* bad\n- ~ odd\n- good\n",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	for _, want := range []string{"<title>a run", "Computed 0001-01-01", `<li class="bad">* bad`, "<h2>first", "<h3>more", "above"} {
		if strings.Contains(got[document.ReportFile], want) != (want != "above") {
			t.Errorf("%q is not in the page, or is and should not be", want)
		}
	}
}
