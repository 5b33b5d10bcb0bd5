package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestRun runs mutants on a package whose tests miss known changes.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example\n\ngo 1.26\n",
		"m.go": `package m

import "strings"

type limit uint16

const most limit = 8

func inside(n limit, closed bool) bool {
	if closed {
		return false
	}
	return n > 0 && n < most+1
}

func rest(s string, from, to int) (out string) {
	for i := from; i < to; i++ {
		out += s[i : i+1]
	}
	return strings.ReplaceAll(out, "a", s[:from])
}

func between(a, b int) int { return b - a }

func span(a, b int) int { return between(a, b) }

func count(xs []int, seen map[int]bool) (n int) {
	for _, x := range xs {
		if !seen[x] {
			n++
			note(seen, x)
		}
	}
	return n
}

func note(seen map[int]bool, x int) { seen[x] = true }

func unused(a int) int { return a << 1 }

type flags bool

func both(a, b bool) flags { return flags(a == b) }

func halts(n int) (steps int) {
	for n != 0 {
		n--
		steps++
	}
	return steps
}
`,
		"m_test.go": `package m

import "testing"

func TestAll(t *testing.T) {
	if !inside(1, false) || inside(0, false) || inside(1, true) { // nothing near the other end
		t.Error("inside")
	}
	if rest("banana", 1, 4) != "bnb" {
		t.Error(rest("banana", 1, 4))
	}
	if span(1, 3) != 2 || count([]int{1, 2}, map[int]bool{}) != 2 || !bool(both(true, true)) || bool(both(true, false)) || halts(3) != 3 {
		t.Error("span, count, both")
	}
}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	var out strings.Builder
	if err := run(t.Context(), []string{"-limit", "10m", "."}, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	last := lines[len(lines)-1]
	lines = lines[:len(lines)-1]
	slices.Sort(lines)
	want := []string{
		"m.go:13:20: survived: n < most+1 becomes n <= most+1",
		"m.go:31:4: survived: note(seen, x) is left out",
		"m.go:39:33: not reached: a << 1 becomes a >> 1",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("mutants that live:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	counts := regexp.MustCompile(`^seed 1: (\d+) mutants of (\d+) tried in 1 packages: (\d+) killed, 2 survived, 1 in code that no test reaches$`).FindStringSubmatch(last)
	if counts == nil || counts[1] != counts[2] || counts[3] < "1" {
		t.Errorf("last line: %s", last)
	}
}

// TestApply nests mutants, and sets them side by side.
func TestApply(t *testing.T) {
	source := []byte("a < b && f(c, d)")
	m := []*mutant{{n: 1}, {n: 2}, {n: 3}, {n: 4, dropped: true}}
	m[0].edits = []edit{{m[0], 0, 16, "X(" + on + "," + original + ")"}}
	m[1].edits = []edit{{m[1], 0, 5, "Y(" + on + "," + original + ")"}}
	m[2].edits = []edit{{m[2], 11, 12, "Z(" + original + ")"}, {m[2], 14, 15, "Z(" + original + ")"}}
	m[3].edits = []edit{{m[3], 0, 1, "W"}}
	got, regions := apply(source, m)
	if want := "X(mutantIsOn(1),Y(mutantIsOn(2),a < b) && f(Z(c), Z(d)))"; string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if len(regions) != 1 || regions[0].first != 1 || !drop(map[string][]region{"x.go": regions}, "dir/x.go:1:7: no\n") || !m[1].dropped || m[3].edits == nil {
		t.Errorf("%+v", regions)
	}
	if drop(map[string][]region{"x.go": regions}, "dir/x.go:1:7: no\ny.go:1: no\nx.go:9:1: no\n") {
		t.Error("what is dropped is dropped again")
	}
}

func TestChangedLines(t *testing.T) {
	lines := changedLines("/top", "+++ b/a/b.go\n@@ -1,2 +3,2 @@ func\n+x\n@@ -9 +10 @@\n@@ -20,3 +20,0 @@\n")
	if got := lines["/top/a/b.go"]; len(got) != 3 || !got[3] || !got[4] || !got[10] {
		t.Errorf("%v", lines)
	}
}
