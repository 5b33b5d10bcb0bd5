package arch

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
	"sync"
	"testing"
	"testing/fstest"
)

// These tests hold the tree to its layout. They read the files themselves: go
// test notices a changed file that a test opened, but not one that a child
// process such as go list read, and would repeat "ok (cached)".

// emulated are tests that run on the hosts of the RoCE lab, as both ends of a
// connection and beside perftest, and not in make test: they may sleep.
var emulated = []string{"transport/rdma/lab_test.go", "transport/rdma/perftest_test.go"}

// maxMainLines bounds main.go. It turns flags into a Config and runs it: nothing there is worth importing.
const maxMainLines = 250

var (
	vague     = regexp.MustCompile(`^(utils?|common|helpers?|misc|shared|base|lib)$`)
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

// wholeTree returns this tree, which is parsed once for all tests. They do not change it.
var wholeTree = sync.OnceValues(func() ([]source, error) { return load(os.DirFS(".")) })

// A rule returns what is wrong with a file, or "".
type rule func(source) string

var rules = map[string]rule{
	"imports point down": func(s source) string {
		return eachImport(s, func(imp string) string {
			if pkg, ours := strings.CutPrefix(imp, "kvferry/"); ours && !under(pkg, "cmd") {
				return mayImport(s, pkg)
			}
			return ""
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
			if !under(s.dir, "transport") || !under(imp, "google.golang.org") {
				return ""
			}
			return "KV bytes move over rails; only nodes and their proxy speak gRPC"
		})
	},
	"few libraries": func(s source) string {
		return eachImport(s, func(imp string) string {
			host, _, _ := strings.Cut(imp, "/")
			if s.test || !strings.Contains(host, ".") {
				return ""
			}
			for lib, folders := range libraries {
				if under(imp, lib) && slices.ContainsFunc(folders, func(f string) bool { return under(s.dir, f) }) {
					return ""
				}
			}
			return "libraries does not let this folder import it"
		})
	},
	"every directory is in doc.go": func(s source) string {
		if dirs, err := listing(); err != nil || s.dir != "." && !slices.Contains(dirs, s.dir) {
			return "list the package in doc.go, above those that it imports"
		}
		return ""
	},
	"commands are package main": func(s source) string {
		if main := s.syntax.Name.Name == "main"; main != under(s.dir, "cmd") {
			return "package main belongs below cmd, and nothing else does"
		}
		return ""
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
	t.Parallel()
	tree, err := wholeTree()
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

// TestRulesCanFail plants small bad trees, at least one for each rule.
func TestRulesCanFail(t *testing.T) {
	t.Parallel()
	unproven := map[string]bool{}
	for name := range rules {
		unproven[name] = true
	}
	for _, c := range []struct{ rule, file, text string }{
		{"imports point down", "kvcache/a.go", `package kvcache; import _ "kvferry/engine"`},
		{"imports point down", "kvcache/a_test.go", `package kvcache_test; import _ "kvferry/node"`},
		{"imports point down", "kvtransfer/a.go", `package kvtransfer; import _ "kvferry/engine"`},
		{"imports point down", "kvtransfer/a_test.go", `package kvtransfer; import _ "kvferry/connector"`},
		{"imports point down", "connector/core.go", `package connector; import _ "kvferry/engine/batching"`},
		{"imports point down", "node/worker.go", `package node; import _ "kvferry/engine/modelled"`},
		{"imports point down", "connector/core.go", `package connector; import _ "kvferry/transport"`},
		{"imports point down", "bench/a.go", `package bench; import _ "kvferry/node"`},
		{"imports point down", "proto/a.pb.go", "// Code generated by protoc. DO NOT EDIT.\n" + `package proto; import _ "kvferry/node"`},
		{"nothing imports a command", "node/a_test.go", `package node; import _ "kvferry/cmd/proxy"`},
		{"no gRPC in the data plane", "transport/tcp/a_test.go", `package tcp; import _ "google.golang.org/grpc/codes"`},
		{"few libraries", "engine/a.go", `package engine; import _ "golang.org/x/sync/errgroup"`},
		{"few libraries", "kvcache/a.go", `package kvcache; import _ "golang.org/x/sys/unix"`},
		{"every directory is in doc.go", "engines/a.go", "package engines"},
		{"commands are package main", "node/a.go", "package main"},
		{"commands are package main", "cmd/proxy/a.go", "package proxy"},
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
		{"node/config.go", `package node; import _ "kvferry/engine/modelled"`},
		{"node/a_test.go", `package node_test; import _ "kvferry/transport/transporttest"`},
		{"node/a.go", `package node; import "time"; func f() { time.Sleep(1) }`},
		{"node/a_test.go", `package node; import "time"; func f() { select { case <-time.After(1): } }`},
		{"node/a_test.go", `package node; import "time"; func BenchmarkF() { <-time.After(1) }`},
		{"node/a_test.go", `package node; import ("testing/synctest"; "time"); func f() { synctest.Test(nil, nil); <-time.After(1) }`},
		{"node/a_test.go", "package node // Not time.Sleep; TODO(no second NIC here): fail over"},
		{"proto/a.pb.go", "// Code generated by protoc. DO NOT EDIT.\npackage proto" + strings.Repeat("\n", maxMainLines+1)},
		{"node/testdata/a.go", "package broken {"},
		{"internal/cli/a.go", `package cli; import _ "github.com/spf13/cobra"`},
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
