package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)#]+)\)`)
	heading = regexp.MustCompile("(?m)^#+ ")
)

// TestDocs: what the pages link to is there, README.md names each page of docs/, and is short.
func TestDocs(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	named := map[string]bool{}
	examples, err := filepath.Glob("examples/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range slices.Concat(pages, examples, []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md"}) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if !heading.Match(text) {
			t.Errorf("%s has no heading", page)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			to := filepath.Join(filepath.Dir(page), m[1])
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
			named[to] = named[to] || page == "README.md"
		}
		if n := strings.Count(string(text), "\n"); page == "README.md" && n > 150 {
			t.Errorf("README.md has %d lines: what is longer than a look belongs into docs/", n)
		}
	}
	for _, page := range pages {
		if !named[page] {
			t.Errorf("README.md does not name %s", page)
		}
	}
}
