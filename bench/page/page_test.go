package page_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/bench/page"
)

func TestTable(t *testing.T) {
	table := page.Table{Title: "rates", Left: 1, Head: []string{"op", "GB/s"}, Rows: [][]string{{"écrire", "1"}, {"r", "10.25"}}}
	if got, want := table.Text(), "rates\nop       GB/s\nécrire      1\nr       10.25\n\n"; got != want {
		t.Errorf("text\n%q, want\n%q", got, want)
	}
	var b strings.Builder
	page.Table{Title: "a", Left: 1, Head: []string{"x", "y"}, Rows: [][]string{{"1|2", "3\n4"}}}.WriteMarkdown(&b)
	if got, want := b.String(), "### a\n\n| x | y |\n| :--- | ---: |\n| 1\\|2 | 3 4 |\n\n"; got != want {
		t.Errorf("markdown\n%q, want\n%q", got, want)
	}
	if h := table.HTML(1); h.Best != 1 || !h.Rows[1][0].Left || h.Rows[1][1].Left || h.Rows[1][1].Text != "10.25" {
		t.Errorf("%+v", h)
	}
}

// TestPage: what is measured cannot become markup, and plots do.
func TestPage(t *testing.T) {
	var b bytes.Buffer
	p := page.Page{Title: "<b>", Tables: []page.HTMLTable{page.Table{Head: []string{"<i>"}}.HTML(-1)}}
	if err := p.Write(&b, nil, map[string]string{"k": "</pre>"}); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<b>", "<i>", "</pre>\""} {
		if strings.Contains(b.String(), bad) {
			t.Errorf("%q in the page", bad)
		}
	}
	b.Reset()
	empty := page.NewPlot("nothing yet")
	empty.X.Max, empty.Y.Max = 1, 1
	if svg, err := page.InlineSVG(empty); err != nil || !strings.HasPrefix(svg, "<svg") {
		t.Errorf("%.20q, %v", svg, err)
	}
}

// TestReplace: a file that cannot be written leaves the one before.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	put := func(text string, fail error) error {
		return page.Replace(dir, "a.txt", func(w io.Writer) error {
			_, _ = io.WriteString(w, text)
			return fail
		})
	}
	broken := errors.New("broken")
	if err := errors.Join(put("one", nil), put("two", nil)); err != nil {
		t.Fatal(err)
	}
	if err := put("three", broken); !errors.Is(err, broken) || !strings.Contains(err.Error(), "a.txt") {
		t.Error(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "a.txt"))
	files, _ := os.ReadDir(dir)
	if err != nil || string(text) != "two" || len(files) != 1 {
		t.Errorf("%q, %v, %d files", text, err, len(files))
	}
}
