package arch

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maxEdited is how many files that are there a new kind of thing may change.
const maxEdited = 2

// TestNewKinds: a new hand-off, rail, placement policy or load is a file, and a line in a list.
// Each folder of testdata/new has one, and its change.txt says where it goes. The go command
// is told to see it there (-overlay) and runs the tests that every one of its kind must pass.
func TestNewKinds(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	changes, err := filepath.Glob("internal/arch/testdata/new/*/change.txt")
	if err != nil || len(changes) == 0 {
		t.Fatal(changes, err)
	}
	for _, name := range changes {
		folder := filepath.Dir(name)
		t.Run(filepath.Base(folder), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			c, err := parseChange(string(text))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			overlay, err := c.overlay(folder, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			for _, args := range c.tests {
				if out, err := exec.Command("go", append([]string{"test", "-count=1", "-vet=off", "-ldflags=-s -w", "-overlay", overlay}, args...)...).CombinedOutput(); err != nil {
					t.Errorf("go test %s: %v\n%s", strings.Join(args, " "), err, out)
				}
			}
			for _, page := range []string{"CONTRIBUTING.md"} {
				if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), folder) {
					t.Errorf("%s does not say that %s has an example: %v", page, folder, err)
				}
			}
		})
	}
}

// TestNewKindMissing: the check is one that can fail: without its line, a new kind is unknown.
func TestNewKindMissing(t *testing.T) {
	for text, want := range map[string]string{
		"into handoff\ntest ./handoff":                                              "no file is edited",
		"edit handoff/handoff.go\n\tLayerwise,\n+\tX,\ntest ./handoff":              "into",
		"into handoff\nedit handoff/handoff.go\n\tLayerwise,\n+\tX,":                "no test",
		"into handoff\nedit handoff/handoff.go\ntest ./handoff":                     "nothing is added",
		"into a\nedit a\nx\n+y\nedit b\nx\n+y\nedit c\nx\n+y\ntest ./a":             "3 files are edited",
		"into handoff\nedit handoff/handoff.go\n\tTeleport,\n+\tX,\ntest ./handoff": "",
	} {
		c, err := parseChange(text)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", text, err, want)
			}
			continue
		}
		if _, err := c.overlay("internal/arch/testdata/new/handoff", t.TempDir()); err == nil || !strings.Contains(err.Error(), "Teleport") {
			t.Errorf("%q: %v, want the line that is not there", text, err)
		}
	}
}

// A change is how a folder of new files gets into the tree.
type change struct {
	into  string               // where the folder's Go files go
	edits map[string][2]string // by file: a line of it, and what comes after
	tests [][]string           // arguments of go test
}

// parseChange reads a change.txt. Lines before "into" are for people.
func parseChange(text string) (change, error) {
	c := change{edits: map[string][2]string{}}
	edited := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		verb, rest, _ := strings.Cut(line, " ")
		switch e := c.edits[edited]; {
		case verb == "into":
			c.into = rest
		case verb == "edit":
			edited = rest
			c.edits[edited] = [2]string{}
		case verb == "test":
			c.tests = append(c.tests, strings.Fields(rest))
		case strings.HasPrefix(line, "+") && edited != "":
			c.edits[edited] = [2]string{e[0], e[1] + line[1:] + "\n"}
		case edited != "":
			c.edits[edited] = [2]string{e[0] + line + "\n", e[1]}
		}
	}
	switch {
	case c.into == "":
		return c, fmt.Errorf("there is no line \"into <folder>\"")
	case len(c.edits) == 0:
		return c, fmt.Errorf("no file is edited")
	case len(c.edits) > maxEdited:
		return c, fmt.Errorf("%d files are edited, at most %d", len(c.edits), maxEdited)
	case len(c.tests) == 0:
		return c, fmt.Errorf("no test is run")
	}
	for file, e := range c.edits {
		if e[1] == "" {
			return c, fmt.Errorf("nothing is added to %s", file)
		}
	}
	return c, nil
}

// overlay writes the edited files to dir, and the list for the go command, whose name it
// returns.
func (c change) overlay(folder, dir string) (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for _, f := range files {
		to := filepath.Join(here, c.into, filepath.Base(f))
		if _, err := os.Stat(to); err == nil {
			return "", fmt.Errorf("%s is there already", to)
		}
		replace[to] = filepath.Join(here, f)
	}
	for i, file := range slices.Sorted(maps.Keys(c.edits)) {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		after, line := c.edits[file][0], c.edits[file][1]
		if n := strings.Count(string(text), after); after != "" && n != 1 {
			return "", fmt.Errorf("%s has %q %d times, want once", file, after, n)
		}
		edited := filepath.Join(dir, fmt.Sprintf("%d-%s", i, filepath.Base(file)))
		if err := os.WriteFile(edited, []byte(strings.Replace(string(text), after, after+line, 1)), 0o644); err != nil {
			return "", err
		}
		replace[filepath.Join(here, file)] = edited
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, list, 0o644)
}
