package arch

import (
	"go/ast"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// A packageRule returns what is wrong with the files of a directory, or "".
type packageRule func(dir string, files []source) string

var packageRules = map[string]packageRule{
	// What must be said of a hand-off here is one of its properties.
	"no hand-off by name": func(dir string, files []source) string {
		if !slices.Contains([]string{"attempt", "connector", "sim", "node", "proxy"}, dir) {
			return ""
		}
		for _, s := range files {
			if s.test || s.name == "proxy/config.go" { // the default
				continue
			}
			if name := handoffNamed(s); name != "" {
				return s.name + " names " + name + ": ask for a property of package handoff"
			}
		}
		return ""
	},
}

// handoffNamed is the first hand-off that a file names, or "". What package handoff exports is
// one of these words, or a hand-off.
func handoffNamed(s source) (name string) {
	// Migration is no choice: it is what a request takes that runs already.
	words := []string{"None", "Migration", "MigrationLeg", "Carried", "Handoff", "Leg", "Parts", "FullLeg", "PrefillLeg", "DecodeLeg", "Whole", "Layers", "Tensors", "TensorCount", "All", "Names", "List", "Parse"}
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && name == "" {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "handoff" && ast.IsExported(sel.Sel.Name) && !slices.Contains(words, sel.Sel.Name) {
				name = sel.Sel.Name
			}
		}
		return name == ""
	})
	return name
}

// byDirectory sorts files into packages.
func byDirectory(tree []source) map[string][]source {
	dirs := map[string][]source{}
	for _, s := range tree {
		dirs[s.dir] = append(dirs[s.dir], s)
	}
	return dirs
}

// minShared is how many lines a package with one importer has at least: a smaller one is a file of its importer.
const minShared = 800

// alone lists the smaller packages that have one importer and are no file of it, and why.
var alone = map[string]string{
	"engine/modelled":     "an executor of engine: a real GPU's would be beside it",
	"transport/cma":       "one of the rails",
	"handoff/handofftest": "tests a contract",
	"load/tooldraws":      "Python's and numpy's random numbers, which know no loads",

	// Package proxy is taken apart into pure machines, and these go with their halves of it.
	"proxy/adapters": "", "proxy/ahead": "", "proxy/chunks": "", "proxy/cors": "", "proxy/metrics": "", "proxy/migration": "", "proxy/profile": "",
	"proxy/sglang": "", "proxy/tracing": "", "proxy/turn": "", "proxy/unpack": "",
	// The contract of a rail becomes a package, which takes them.
	"transport/account": "", "transport/immediate": "", "transport/bundle": "",
}

// TestPackagesAreShared: a package is code that two others share, or large. What one other package needs, and no
// command does, is a file of that package.
func TestPackagesAreShared(t *testing.T) {
	t.Parallel()
	tree, err := wholeTree()
	if err != nil {
		t.Fatal(err)
	}
	small := lonely(tree)
	for dir, by := range small {
		if _, ok := alone[dir]; !ok {
			t.Errorf("%s has less than %d lines and only %s imports it: make it a file there", dir, minShared, by)
		}
	}
	for dir := range alone {
		if _, ok := small[dir]; !ok {
			t.Errorf("alone has %s, which needs no exception", dir)
		}
	}
}

// lonely returns the packages below minShared lines that one package imports, which is returned with them. Commands
// and internal/cli import what they turn flags into.
func lonely(tree []source) map[string]string {
	lines, importers := map[string]int{}, map[string]map[string]bool{}
	for _, s := range tree {
		if s.test {
			continue
		}
		lines[s.dir] += s.lines
		for _, imp := range s.imports() {
			if pkg, ours := strings.CutPrefix(imp, "kvferry/"); ours {
				if importers[pkg] == nil {
					importers[pkg] = map[string]bool{}
				}
				importers[pkg][s.dir] = true
			}
		}
	}
	small := map[string]string{}
	for pkg, by := range importers {
		for dir := range by {
			if len(by) == 1 && lines[pkg] < minShared && !under(dir, "cmd") && dir != "internal/cli" {
				small[pkg] = dir
			}
		}
	}
	return small
}

// TestLonely: what lonely finds, and what it does not.
func TestLonely(t *testing.T) {
	tree, err := load(fstest.MapFS{
		"a/a.go":      {Data: []byte(`package a; import (_ "kvferry/small"; _ "kvferry/large"; _ "kvferry/shared")`)},
		"b/b.go":      {Data: []byte(`package b; import _ "kvferry/shared"`)},
		"b/b_test.go": {Data: []byte(`package b; import _ "kvferry/small"`)},
		"cmd/c/c.go":  {Data: []byte(`package main; import _ "kvferry/command"`)},
		"small/s.go":  {Data: []byte("package small")}, "shared/s.go": {Data: []byte("package shared")}, "command/s.go": {Data: []byte("package command")},
		"large/s.go": {Data: []byte("package large" + strings.Repeat("\n", minShared))},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := lonely(tree); !maps.Equal(got, map[string]string{"small": "a"}) {
		t.Errorf("%v, want small, of a", got)
	}
}

func TestPackages(t *testing.T) {
	t.Parallel()
	tree, err := wholeTree()
	if err != nil {
		t.Fatal(err)
	}
	dirs := byDirectory(tree)
	for name, check := range packageRules {
		t.Run(name, func(t *testing.T) {
			for _, dir := range slices.Sorted(maps.Keys(dirs)) {
				if fault := check(dir, dirs[dir]); fault != "" {
					t.Errorf("%s: %s", dir, fault)
				}
			}
		})
	}
}

// TestPackageRulesCanFail plants a fault for each rule, and what is allowed beside it.
func TestPackageRulesCanFail(t *testing.T) {
	byName := `package sim; import "kvferry/handoff"; var x = handoff.Layerwise`
	for _, c := range []struct {
		rule  string
		tree  map[string]string
		fault bool
	}{
		{"no hand-off by name", map[string]string{"sim/a.go": byName}, true},
		{"no hand-off by name", map[string]string{"node/a.go": strings.Replace(byName, "Layerwise", "Teleport", 1)}, true},
		{"no hand-off by name", map[string]string{"node/a_test.go": byName, "bench/a.go": byName, "proxy/config.go": byName}, false},
		{"no hand-off by name", map[string]string{"sim/a.go": strings.Replace(byName, "Layerwise", "DecodeLeg", 1)}, false},
	} {
		files := fstest.MapFS{}
		for name, text := range c.tree {
			files[name] = &fstest.MapFile{Data: []byte(text)}
		}
		tree, err := load(files)
		if err != nil {
			t.Fatal(err)
		}
		found := ""
		for dir, files := range byDirectory(tree) {
			found += packageRules[c.rule](dir, files)
		}
		if (found != "") != c.fault {
			t.Errorf("%s: %v: %q", c.rule, slices.Sorted(maps.Keys(c.tree)), found)
		}
	}
}
