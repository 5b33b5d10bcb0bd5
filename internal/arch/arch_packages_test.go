package arch

import (
	"go/ast"
	"maps"
	"os"
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

func TestPackages(t *testing.T) {
	t.Parallel()
	tree, err := load(os.DirFS("."))
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
