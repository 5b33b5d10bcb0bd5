package kvferry

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// These tests hold the tree to its layout. They read the files themselves: go
// test notices a changed file that a test opened, but not one that a child
// process such as go list read, and would repeat "ok (cached)".

// A layer says what the files of a directory may import besides the standard library:
// packages of this module, and libraries with what is below them. Its tests may import
// what is below those packages too, and the packages of tests.
type layer struct{ module, libraries, tests []string }

const (
	grpc     = "google.golang.org/grpc"
	protobuf = "google.golang.org/protobuf"
	xsys     = "golang.org/x/sys"
	cobra    = "github.com/spf13/cobra"
	pflag    = "github.com/spf13/pflag"
)

var layers = map[string]layer{
	".":                       {},
	"clock":                   {libraries: []string{xsys}},
	"clock/clocktest":         {module: []string{"clock"}},
	"config":                  {},
	"version":                 {},
	"kvcache":                 {module: []string{"config"}},
	"load":                    {module: []string{"kvcache", "config"}},
	"load/loadtest":           {module: []string{"load"}},
	"engine":                  {module: []string{"kvcache", "config"}},
	"engine/batching":         {module: []string{"engine", "kvcache", "config"}},
	"engine/enginetest":       {module: []string{"engine", "kvcache"}},
	"engine/modelled":         {module: []string{"engine", "kvcache", "clock"}, tests: []string{"engine/batching"}},
	"placement":               {module: []string{"kvcache"}},
	"transport/selection":     {},
	"transport":               {module: []string{"transport/selection", "clock", "config"}, libraries: []string{xsys}},
	"transport/topology":      {module: []string{"config"}, libraries: []string{"github.com/jaypipes/ghw", "github.com/Mellanox/rdmamap"}},
	"transport/nic":           {module: []string{"transport"}, libraries: []string{"github.com/vishvananda/netlink"}},
	"transport/connection":    {module: []string{"transport"}},
	"transport/socket":        {module: []string{"transport", "transport/connection"}, libraries: []string{xsys}},
	"transport/tcp":           {module: []string{"transport", "transport/connection", "transport/nic", "transport/socket", "config"}, libraries: []string{xsys}},
	"transport/cma":           {module: []string{"transport", "transport/socket", "config"}, libraries: []string{xsys}},
	"transport/rdma":          {module: []string{"transport", "transport/connection", "transport/nic", "config"}, libraries: []string{"github.com/Mellanox/rdmamap"}},
	"transport/rails":         {module: []string{"transport", "transport/connection", "transport/nic", "transport/tcp", "transport/cma", "transport/rdma", "transport/topology", "config"}},
	"transport/transporttest": {module: []string{"transport", "transport/connection", "clock/clocktest", "clock"}},
	"handoff":                 {},
	"handoff/handofftest":     {module: []string{"handoff"}},
	"attempt":                 {module: []string{"handoff"}},
	"connector":               {module: []string{"handoff", "engine", "kvcache"}, tests: []string{"engine/batching"}},
	"proto":                   {libraries: []string{grpc, protobuf}},
	"node": {
		module:    []string{"clock", "config", "version", "kvcache", "engine", "engine/batching", "engine/modelled", "transport", "transport/rails", "transport/topology", "handoff", "connector", "proto"},
		libraries: []string{grpc, protobuf, "golang.org/x/sync"},
		tests:     []string{"proxy", "proxy/openai"},
	},
	"proxy": { // knows nodes by what they say over gRPC only
		module:    []string{"proxy/admission", "proxy/health", "proxy/openai", "clock", "config", "version", "kvcache", "placement", "handoff", "attempt", "proto"},
		libraries: []string{grpc, protobuf, "github.com/prometheus"},
	},
	"proxy/admission": {},
	"proxy/health":    {module: []string{"proto"}},
	"proxy/openai":    {module: []string{"proto"}, tests: []string{"engine"}},
	"daemon":          {module: []string{"config", "engine", "handoff", "node", "proto", "proxy", "transport", "transport/rails", "transport/topology", "placement"}, libraries: []string{pflag}},
	"sim":             {module: []string{"kvcache", "load", "engine", "handoff", "attempt", "connector", "placement", "config", "engine/batching"}},
	"cluster":         {module: []string{"daemon", "node", "proxy", "config", "engine", "handoff", "kvcache", "proto"}, tests: []string{"load", "bench/client", "sim"}},
	"bench": { // sees a real cluster through its HTTP API only
		module:    []string{"clock", "config", "kvcache", "load", "engine", "handoff", "placement", "sim", "bench/client", "bench/figure", "bench/machine", "bench/page"},
		libraries: []string{"gonum.org/v1/plot", "github.com/schollz/progressbar/v3"},
	},
	"bench/client":            {module: []string{"load", "clock", "kvcache", "config", "bench/figure"}}, // a library: it needs no other
	"bench/client/clienttest": {},
	"bench/figure":            {},
	"bench/machine":           {module: []string{"clock", "engine", "bench/figure"}, libraries: []string{xsys, "github.com/jaypipes/ghw"}},
	"bench/page":              {libraries: []string{"gonum.org/v1/plot"}},
	"bench/recovery":          {module: []string{"config", "transport"}},
	"bench/serving":           {module: []string{"load", "bench/client", "bench/figure", "bench/machine"}},
	"bench/simulation": {
		module:    []string{"config", "load", "engine", "handoff", "placement", "sim", "bench/figure", "bench/page"},
		libraries: []string{"gonum.org/v1/plot", "github.com/schollz/progressbar/v3"},
	},
	"bench/transfer": { // no cluster: two transfer engines
		module:    []string{"bench/figure", "bench/machine", "bench/page", "bench/recovery", "kvcache", "transport", "transport/connection", "transport/rails", "transport/topology", "transport/transporttest", "clock", "config"},
		libraries: []string{"gonum.org/v1/plot", "github.com/schollz/progressbar/v3"},
	},
	"bench/nics":  {module: []string{"bench", "bench/machine", "bench/page", "bench/recovery", "bench/transfer", "config", "transport", "lab/nics"}}, // kvbench on the hosts of the NIC lab
	"cmd/proxy":   {module: []string{"command", "command/commandtest", "daemon"}, libraries: []string{cobra}},
	"cmd/prefill": {module: []string{"command", "command/commandtest", "daemon", "proto"}, libraries: []string{cobra}},
	"cmd/decode":  {module: []string{"command", "command/commandtest", "daemon", "proto"}, libraries: []string{cobra}},
	"cmd/kvbench": {
		module:    []string{"bench", "bench/nics", "bench/page", "bench/recovery", "bench/serving", "bench/simulation", "bench/transfer", "cluster", "command", "command/commandtest", "config", "daemon", "engine", "handoff", "load", "node", "placement", "sim", "transport", "transport/rails", "transport/topology"},
		libraries: []string{cobra, pflag, "golang.org/x/term"},
	},
	"cmd/kvlab":           {module: []string{"command", "command/commandtest", "config", "lab", "lab/nics"}, libraries: []string{cobra, pflag}},
	"command":             {module: []string{"config", "version"}, libraries: []string{cobra, pflag}},
	"command/commandtest": {module: []string{"command"}, libraries: []string{cobra, pflag}},
	"lab":                 {module: []string{"config"}, libraries: []string{xsys}}, // boots programs, knows none
	"lab/nics": {
		module:    []string{"config", "lab"},
		libraries: []string{xsys, "github.com/vishvananda/netlink", "github.com/vishvananda/netns"},
	},
}

// exceptions are single files that may import more than their layer.
var exceptions = map[string][]string{
	// Block tables to requests: the one place where the hand-offs meet the
	// transport; the state machines know none.
	"connector/descriptor.go":      {"transport"},
	"connector/descriptor_test.go": {"transport"},
}

// emulated are tests that run on the hosts of the RoCE lab, as both ends of a
// connection and beside perftest, and not in make test: they may sleep.
var emulated = []string{"transport/rdma/lab_test.go", "transport/rdma/perftest_test.go"}

const (
	maxLines     = 500 // a file that takes longer than one sitting is two files
	maxMainLines = 250 // flags to a Config, then Run: nothing there is worth importing
)

var (
	vague     = regexp.MustCompile(`^(utils?|common|helpers?|misc|shared|base|lib|internal)$`)
	openEnded = regexp.MustCompile(`\b(TODO|FIXME|XXX)\b(\([^)]+\))?`)
)

// A source is one Go file of the tree.
type source struct {
	name, dir string // "proxy/flight.go", "proxy"
	lines     int
	test      bool
	generated bool
	syntax    *ast.File
}

// imports returns the paths that the file imports.
func (s source) imports() []string {
	var paths []string
	for _, spec := range s.syntax.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

// load parses every Go file of the module in tree, leaving out what the go
// command leaves out: testdata, hidden directories and nested modules.
func load(tree fs.FS) ([]source, error) {
	var all []source
	return all, fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != ".":
			_, err := fs.Stat(tree, path.Join(name, "go.mod"))
			if err == nil || d.Name() == "testdata" || strings.ContainsRune("._", rune(d.Name()[0])) {
				return fs.SkipDir
			}
			return nil
		case d.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // an editor's temporary file
		} else if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		all = append(all, source{
			name: name, dir: path.Dir(name), lines: strings.Count(string(text), "\n"),
			test: strings.HasSuffix(name, "_test.go"), generated: ast.IsGenerated(syntax), syntax: syntax,
		})
		return nil
	})
}

// A rule returns what is wrong with a file, or "".
type rule func(source) string

var rules = map[string]rule{
	"imports point down": func(s source) string {
		return eachImport(s, func(imp string) string {
			pkg, ours := strings.CutPrefix(imp, "kvferry/")
			ok := !ours || pkg == s.dir || slices.Contains(layers[s.dir].module, pkg) ||
				slices.Contains(exceptions[s.name], pkg) || s.test && (below(pkg, s.dir) || slices.Contains(layers[s.dir].tests, pkg))
			if ok || strings.HasPrefix(pkg, "cmd/") {
				return ""
			}
			return "imports point down; see layers here and the list in doc.go"
		})
	},
	"nothing imports a command": func(s source) string {
		return eachImport(s, func(imp string) string {
			if !under(imp, "kvferry/cmd") {
				return ""
			}
			return "what is worth importing does not belong in a command"
		})
	},
	"no gRPC in the data plane": func(s source) string {
		return eachImport(s, func(imp string) string {
			if !under(s.dir, "transport") || !under(imp, grpc) && !under(imp, protobuf) {
				return ""
			}
			return "KV bytes move over rails; only nodes and their proxy speak gRPC"
		})
	},
	"few libraries": func(s source) string {
		return eachImport(s, func(imp string) string {
			host, _, _ := strings.Cut(imp, "/")
			if s.test || !strings.Contains(host, ".") ||
				slices.ContainsFunc(layers[s.dir].libraries, func(l string) bool { return under(imp, l) }) {
				return ""
			}
			return "not a library of this layer"
		})
	},
	"every directory has a layer": func(s source) string {
		if _, ok := layers[s.dir]; !ok {
			return "say in layers what the directory may import"
		}
		return ""
	},
	"commands are package main": func(s source) string {
		if main := s.syntax.Name.Name == "main"; main != under(s.dir, "cmd") {
			return "package main belongs below cmd, and nothing else does"
		}
		return ""
	},
	"short files": func(s source) string {
		if s.generated || s.lines <= maxLines {
			return ""
		}
		return fmt.Sprintf("%d lines, at most %d", s.lines, maxLines)
	},
	"short main functions": func(s source) string {
		if path.Base(s.name) != "main.go" || s.lines <= maxMainLines {
			return ""
		}
		return fmt.Sprintf("%d lines, at most %d: a command turns flags into a Config and runs it", s.lines, maxMainLines)
	},
	"nouns of the field": func(s source) string {
		stem := strings.TrimSuffix(strings.TrimSuffix(path.Base(s.name), ".go"), "_test")
		for _, name := range append(strings.Split(s.dir, "/"), stem, strings.TrimSuffix(s.syntax.Name.Name, "_test")) {
			if vague.MatchString(name) {
				return name + " says nothing about what is inside"
			}
		}
		return ""
	},
	"no sleep in tests": func(s source) string {
		if s.test && (mentions(s.syntax, "time", "Sleep") || naps(s)) {
			return "time.Sleep, or <-time.After alone: wait for an event, or use testing/synctest"
		}
		return ""
	},
	"no open ends": func(s source) string {
		for _, group := range s.syntax.Comments {
			for _, m := range openEnded.FindAllStringSubmatch(group.Text(), -1) {
				if m[2] == "" {
					return m[1] + " without its reason in parentheses"
				}
			}
		}
		return ""
	},
}

// eachImport returns what complain says of the file's imports, the first that it minds.
func eachImport(s source, complain func(imp string) string) string {
	for _, imp := range s.imports() {
		if reason := complain(imp); reason != "" {
			return "imports " + imp + ": " + reason
		}
	}
	return ""
}

// under reports whether a slash-separated path is root or below it.
func under(p, root string) bool { return p == root || strings.HasPrefix(p, root+"/") }

// below reports whether tests of dir may use pkg: all that dir may reach through
// others, and the packages of tests that lie in what is reached.
func below(pkg, dir string) bool {
	seen := map[string]bool{}
	var visit func(string) bool
	visit = func(d string) bool {
		if seen[d] {
			return false
		}
		seen[d] = true
		next := slices.Clone(layers[d].module)
		switch d {
		case "transport", "transport/tcp":
			next = append(next, "transport/transporttest")
		case "clock", "load", "bench/client", "handoff", "engine":
			next = append(next, d+"/"+path.Base(d)+"test")
		}
		return slices.Contains(next, pkg) || slices.ContainsFunc(next, visit)
	}
	return visit(dir)
}

// mentions reports whether the file refers to name in the package imported from
// imp, whatever it calls that package.
func mentions(file *ast.File, imp, name string) (found bool) {
	local := ""
	for _, spec := range file.Imports {
		if spec.Path.Value == strconv.Quote(imp) {
			local = path.Base(imp)
			if spec.Name != nil {
				local = spec.Name.Name
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			found = found || ok && local != "" && x.Name == local && n.Sel.Name == name
		case *ast.Ident:
			found = found || local == "." && n.Name == name
		}
		return !found
	})
	return found
}

// naps reports whether a test waits for time.After alone, in a file without a bubble,
// where that would take no time. A benchmark may: it measures.
func naps(s source) (found bool) {
	if slices.Contains(s.imports(), "testing/synctest") || slices.Contains(emulated, s.name) {
		return false
	}
	cases := make(map[ast.Stmt]bool) // of a select: one event of several
	for _, decl := range s.syntax.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "Benchmark") {
			continue
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CommClause:
				cases[n.Comm] = true
			case *ast.ExprStmt:
				receive, _ := n.X.(*ast.UnaryExpr)
				if receive == nil || cases[n] {
					break
				}
				call, _ := receive.X.(*ast.CallExpr)
				if call == nil {
					break
				}
				f, _ := call.Fun.(*ast.SelectorExpr)
				found = found || f != nil && f.Sel.Name == "After"
			}
			return !found
		})
	}
	return found
}

func TestArchitecture(t *testing.T) {
	tree, err := load(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	for name, check := range rules {
		t.Run(name, func(t *testing.T) {
			for _, s := range tree {
				if fault := check(s); fault != "" {
					t.Errorf("%s: %s", s.name, fault)
				}
			}
		})
	}
}

// TestLayersFollowTheListing holds layers to the list in doc.go: both name the
// same directories, and a package imports what stands below it in the list, or
// the package whose directory it lies in (a rail imports transport).
func TestLayersFollowTheListing(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var listing []string
	for _, line := range strings.Split(string(doc), "\n") {
		if row, ok := strings.CutPrefix(line, "//\t"); ok {
			dirs, _, _ := strings.Cut(row, "   ")
			listing = append(listing, strings.Split(dirs, ", ")...)
		}
	}
	for _, dir := range listing {
		if _, ok := layers[dir]; !ok {
			t.Errorf("doc.go lists %s, which has no layer", dir)
		}
	}
	for dir, l := range layers {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("a layer without its directory: %v", err)
		}
		at := slices.Index(listing, dir)
		if at < 0 && dir != "." {
			t.Errorf("doc.go does not list %s", dir)
		}
		for _, imp := range slices.Concat(l.module, l.tests) {
			if slices.Index(listing, imp) < at && !under(dir, imp) {
				t.Errorf("%s may import %s, which stands above it in doc.go", dir, imp)
			}
		}
	}
}

// TestRulesCanFail plants small bad trees, at least one for each rule.
func TestRulesCanFail(t *testing.T) {
	unproven := map[string]bool{}
	for name := range rules {
		unproven[name] = true
	}
	for _, c := range []struct{ rule, file, text string }{
		{"imports point down", "kvcache/a.go", `package kvcache; import _ "kvferry/engine"`},
		{"imports point down", "kvcache/a_test.go", `package kvcache_test; import _ "kvferry/node"`},
		{"imports point down", "connector/core.go", `package connector; import _ "kvferry/transport"`},
		{"imports point down", "bench/a.go", `package bench; import _ "kvferry/node"`},
		{"imports point down", "proto/a.pb.go", "// Code generated by protoc. DO NOT EDIT.\n" + `package proto; import _ "kvferry/node"`},
		{"nothing imports a command", "node/a_test.go", `package node; import _ "kvferry/cmd/proxy"`},
		{"no gRPC in the data plane", "transport/tcp/a_test.go", `package tcp; import _ "google.golang.org/grpc/codes"`},
		{"few libraries", "engine/a.go", `package engine; import _ "golang.org/x/sync/errgroup"`},
		{"few libraries", "kvcache/a.go", `package kvcache; import _ "golang.org/x/sys/unix"`},
		{"every directory has a layer", "engines/a.go", "package engines"},
		{"commands are package main", "node/a.go", "package main"},
		{"commands are package main", "cmd/proxy/a.go", "package proxy"},
		{"short files", "node/a.go", "package node" + strings.Repeat("\n", maxLines+1)},
		{"short main functions", "cmd/proxy/main.go", "package main" + strings.Repeat("\n", maxMainLines+1)},
		{"nouns of the field", "utils/a.go", "package strings"},
		{"nouns of the field", "node/common/a.go", "package words"},
		{"nouns of the field", "node/helpers_test.go", "package node"},
		{"nouns of the field", "node/a.go", "package util"},
		{"no sleep in tests", "node/a_test.go", `package node; import "time"; func f() { time.Sleep(1) }`},
		{"no sleep in tests", "node/a_test.go", `package node; import t "time"; var nap = t.Sleep`},
		{"no sleep in tests", "node/a_test.go", `package node; import . "time"; func f() { Sleep(1) }`},
		{"no sleep in tests", "node/a_test.go", `package node; import "time"; func f() { <-time.After(1) }`},
		{"no sleep in tests", "node/a_test.go", `package node; import "time"; func f() { select { default: <-time.After(1) } }`},
		{"no open ends", "node/a.go", "package node // TODO: later"},
	} {
		delete(unproven, c.rule)
		if got := faults(t, c.file, c.text); !slices.Contains(got, c.rule) {
			t.Errorf("%s: %q in %s goes unnoticed, broken: %q", c.rule, c.text, c.file, got)
		}
	}
	for name := range unproven {
		t.Errorf("%s: no bad tree shows that this rule can fail", name)
	}

	for _, c := range []struct{ file, text string }{
		{"connector/descriptor.go", `package connector; import _ "kvferry/transport"`},
		{"node/a_test.go", `package node_test; import _ "kvferry/transport/transporttest"`},
		{"node/a.go", `package node; import "time"; func f() { time.Sleep(1) }`},
		{"node/a_test.go", `package node; import "time"; func f() { select { case <-time.After(1): } }`},
		{"node/a_test.go", `package node; import "time"; func BenchmarkF() { <-time.After(1) }`},
		{"node/a_test.go", `package node; import ("testing/synctest"; "time"); func f() { synctest.Test(nil, nil); <-time.After(1) }`},
		{"node/a_test.go", "package node // Not time.Sleep; TODO(no second NIC here): fail over"},
		{"proto/a.pb.go", "// Code generated by protoc. DO NOT EDIT.\npackage proto" + strings.Repeat("\n", maxLines+1)},
		{"node/testdata/a.go", "package broken {"},
		{"cmd/proxy/main.go", `package main; import _ "github.com/spf13/cobra"`},
	} {
		if got := faults(t, c.file, c.text); len(got) > 0 {
			t.Errorf("%q in %s is allowed, but breaks %q", c.text, c.file, got)
		}
	}
}

// faults returns the names of the rules that a tree of one file breaks.
func faults(t *testing.T, file, text string) (broken []string) {
	t.Helper()
	tree, err := load(fstest.MapFS{file: {Data: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range tree {
		for name, check := range rules {
			if check(s) != "" {
				broken = append(broken, name)
			}
		}
	}
	return broken
}
