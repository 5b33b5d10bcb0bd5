package kvferry

import (
	"fmt"
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

// This test holds the tree to its layout. It reads the files itself: the result
// of go list would be served stale from the test cache.

// A layer says what the non-test files of a directory may import besides the
// standard library: packages of this module, and path prefixes of others.
type layer struct{ module, others []string }

const (
	grpc     = "google.golang.org/grpc"
	protobuf = "google.golang.org/protobuf"
	xsys     = "golang.org/x/sys/"
)

var layers = map[string]layer{
	".":                       {},
	"clock":                   {others: []string{xsys}},
	"kvcache":                 {},
	"engine":                  {module: []string{"kvcache"}},
	"transport":               {module: []string{"clock"}, others: []string{xsys}},
	"transport/tcp":           {module: []string{"transport", "clock"}, others: []string{xsys}},
	"transport/transporttest": {module: []string{"transport", "clock"}},
	"connector":               {module: []string{"engine", "kvcache"}},
	"proto":                   {others: []string{grpc, protobuf}},
	"node": {
		module: []string{"clock", "kvcache", "engine", "transport", "transport/tcp", "connector", "proto"},
		others: []string{grpc, protobuf, "github.com/spf13/pflag", "github.com/prometheus/", "golang.org/x/sync/"},
	},
	"cluster":     {module: []string{"node", "engine", "proto"}},
	"bench":       {module: []string{"clock"}, others: []string{"gonum.org/v1/plot", "github.com/jaypipes/ghw", "github.com/schollz/progressbar/", "golang.org/x/sys/unix"}},
	"cmd/proxy":   {module: []string{"node"}, others: []string{"github.com/spf13/"}},
	"cmd/prefill": {module: []string{"node", "proto"}, others: []string{"github.com/spf13/"}},
	"cmd/decode":  {module: []string{"node", "proto"}, others: []string{"github.com/spf13/"}},
	"cmd/kvbench": {module: []string{"bench", "cluster", "engine", "node"}, others: []string{"github.com/spf13/", "golang.org/x/term"}},
}

// exceptions are single files that may import more than their layer.
var exceptions = map[string][]string{
	"connector/descriptor.go": {"transport"}, // block tables to requests: the state machines know no transport
}

const (
	maxLines     = 700
	maxMainLines = 250
)

var (
	vagueName = regexp.MustCompile(`^(utils?|common|helpers?|misc|shared|base|lib)$`)
	sleeps    = regexp.MustCompile(`\btime\.Sleep\(`)
	openEnded = regexp.MustCompile(`\b(TODO|FIXME|XXX)\b(?:\([^)]+\))?`)
	generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
)

// faults returns what is wrong with the tree, a line each.
func faults(tree fs.FS) (out []string) {
	fault := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if d.IsDir() {
			if name != "." && strings.HasPrefix(base, ".") || base == "testdata" || name == "tools" || name == "bin" || name == "kvbench-out" {
				return fs.SkipDir
			}
			if vagueName.MatchString(base) {
				fault("%s: the name says nothing: call a package by a noun of the field", name)
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") {
			return nil
		}
		src, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		if generated.Match(src) {
			return nil
		}
		test := strings.HasSuffix(base, "_test.go")
		if n := strings.Count(string(src), "\n"); n > maxLines {
			fault("%s: %d lines: at most %d", name, n, maxLines)
		} else if base == "main.go" && n > maxMainLines {
			fault("%s: %d lines: main packages turn flags into a Config, at most %d", name, n, maxMainLines)
		}
		if stem := strings.TrimSuffix(strings.TrimSuffix(base, ".go"), "_test"); vagueName.MatchString(stem) {
			fault("%s: the name says nothing", name)
		}
		if test && name != "arch_test.go" && sleeps.Match(src) {
			fault("%s: time.Sleep in a test: wait for an event, or use testing/synctest", name)
		}
		if name != "arch_test.go" {
			for _, m := range openEnded.FindAll(src, -1) {
				if !strings.Contains(string(m), "(") {
					fault("%s: %s without a reason in parentheses", name, m)
				}
			}
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
		if err != nil {
			fault("%s: %v", name, err)
			return nil
		}
		dir := path.Dir(name)
		allowed, ok := layers[dir]
		if !ok {
			fault("%s: directory %s has no layer in arch_test.go: say what it may import", name, dir)
			return nil
		}
		for _, spec := range f.Imports {
			imp, _ := strconv.Unquote(spec.Path.Value)
			if reason := forbidden(imp, name, dir, test, allowed); reason != "" {
				fault("%s imports %s: %s", name, imp, reason)
			}
		}
		return nil
	})
	if err != nil {
		fault("%v", err)
	}
	return out
}

func forbidden(imp, file, dir string, test bool, l layer) string {
	if pkg, ok := strings.CutPrefix(imp, "kvferry/"); ok {
		switch {
		case strings.HasPrefix(pkg, "cmd/"):
			return "nothing imports a command"
		case pkg == dir || slices.Contains(l.module, pkg) || slices.Contains(exceptions[file], pkg):
			return ""
		case test && below(pkg, dir):
			return ""
		}
		return "imports point down; see doc.go"
	}
	if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
		return "" // the standard library
	}
	if strings.HasPrefix(dir, "transport") && strings.HasPrefix(imp, grpc) {
		return "the data plane imports no gRPC"
	}
	for _, p := range l.others {
		if strings.HasPrefix(imp, p) {
			return ""
		}
	}
	if test {
		return "" // tests may use libraries that the product does not
	}
	return "not a library of this package; see layers in arch_test.go"
}

// below reports whether tests of dir may use pkg: what dir may import, and what
// those may, and test twins of either.
func below(pkg, dir string) bool {
	seen := map[string]bool{}
	var visit func(string) bool
	visit = func(d string) bool {
		if seen[d] {
			return false
		}
		seen[d] = true
		next := layers[d].module
		if d == "transport" || d == "transport/tcp" {
			next = append(slices.Clone(next), "transport/transporttest")
		}
		return slices.Contains(next, pkg) || slices.ContainsFunc(next, visit)
	}
	return visit(dir)
}

func TestArchitecture(t *testing.T) {
	for _, f := range faults(os.DirFS(".")) {
		t.Error(f)
	}
	for dir := range layers {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("layer of a directory that is gone: %s", dir)
		}
	}
}

// TestArchitectureCanFail plants one violation of each rule.
func TestArchitectureCanFail(t *testing.T) {
	for name, c := range map[string]struct{ file, src, want string }{
		"up":          {"kvcache/a.go", "package kvcache\nimport _ \"kvferry/engine\"\n", "imports point down"},
		"command":     {"node/a.go", "package node\nimport _ \"kvferry/cmd/proxy\"\n", "nothing imports a command"},
		"data plane":  {"transport/a.go", "package transport\nimport _ \"google.golang.org/grpc\"\n", "no gRPC"},
		"library":     {"engine/a.go", "package engine\nimport _ \"golang.org/x/sync/errgroup\"\n", "not a library"},
		"state":       {"connector/core.go", "package connector\nimport _ \"kvferry/transport\"\n", "imports point down"},
		"client":      {"bench/a.go", "package bench\nimport _ \"kvferry/node\"\n", "imports point down"},
		"test up":     {"kvcache/a_test.go", "package kvcache\nimport _ \"kvferry/node\"\n", "imports point down"},
		"new package": {"sim/a.go", "package sim\n", "no layer"},
		"long":        {"node/a.go", "package node\n" + strings.Repeat("\n", maxLines), "at most 700"},
		"long main":   {"cmd/proxy/main.go", "package main\n" + strings.Repeat("\n", maxMainLines), "flags into a Config"},
		"sleep":       {"node/a_test.go", "package node\n// time.Sleep(1)\n", "time.Sleep in a test"},
		"vague dir":   {"utils/a.go", "package utils\n", "says nothing"},
		"vague file":  {"node/helpers.go", "package node\n", "says nothing"},
		"open":        {"node/a.go", "package node\n// TODO do it\n", "without a reason"},
	} {
		t.Run(name, func(t *testing.T) {
			got := faults(fstest.MapFS{c.file: {Data: []byte(c.src)}})
			if !slices.ContainsFunc(got, func(f string) bool { return strings.Contains(f, c.want) }) {
				t.Errorf("%q not found: %q", c.want, got)
			}
		})
	}
	good := fstest.MapFS{
		"connector/descriptor.go": {Data: []byte("package connector\nimport _ \"kvferry/transport\"\n")},
		"node/a_test.go":          {Data: []byte("package node\nimport _ \"kvferry/transport/transporttest\"\n// TODO(no such NIC here): do it\n")},
	}
	if got := faults(good); len(got) > 0 {
		t.Errorf("a good tree has faults: %q", got)
	}
}
