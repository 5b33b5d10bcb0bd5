package arch

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// listing returns the packages in the order of doc.go. A package may import those below it, and the package whose
// directory it lies in: a rail imports transport.
var listing = sync.OnceValues(func() ([]string, error) {
	doc, err := os.ReadFile("doc.go")
	var dirs []string
	for line := range strings.Lines(string(doc)) {
		if row, ok := strings.CutPrefix(line, "//\t"); ok {
			names, _, _ := strings.Cut(row, "   ")
			dirs = append(dirs, strings.Split(names, ", ")...)
		}
	}
	return dirs, err
})

// only lists what the packages of some folders may import, of this module and where that is less than all below them in
// doc.go: packages, folders that end in "/...", or "..." for all. The row of the nearest folder counts. A package may import its own
// folder's; tests, and packages of tests, may import what is below them in doc.go.
var only = map[string][]string{
	"proto":        {},
	"fabric":       {},
	"internal":     {},
	"internal/cli": {"..."},
	"handoff":      {"internal/config"},
	"attempt":      {"handoff"},
	"kvcache":      {"internal/config"},
	"placement":    {"kvcache", "internal/config"},
	"load":         {"kvcache", "internal/config", "internal/knob"},
	"tokenizer":    {"kvcache", "load", "internal/config", "internal/model"},
	"engine":       {"kvcache", "internal/..."},
	"connector":    {"engine", "handoff", "kvcache"}, // a pure machine: it moves nothing itself
	"transport":    {"fabric", "internal/clock", "internal/config"},
	"bindings":     {"transport/...", "internal/config"},
	"kvtransfer":   {"kvcache", "transport", "transport/pacing", "internal/..."},
	"node":         {"connector", "engine", "handoff", "kvcache", "kvtransfer", "proto", "transport/...", "internal/..."},
	"proxy":        {"attempt", "engine/eos", "handoff", "kvcache", "load", "placement", "proto", "tokenizer", "internal/..."}, // it knows nodes by gRPC
	"sim":          {"attempt", "connector", "engine", "engine/batching", "engine/eos", "fabric", "handoff", "kvcache", "load/...", "placement", "internal/config"},
	"lab":          {"internal/..."},                                                                                                                                                           // it runs programs and knows none
	"bench":        {"cluster", "proxy/serverinfo", "engine/...", "handoff", "kvcache", "kvtransfer", "lab/...", "load/...", "placement", "sim", "tokenizer", "transport/...", "internal/..."}, // it knows clusters by HTTP
	"bench/client": {"bench/stats", "proxy/serverinfo", "kvcache", "load/...", "internal/..."},                                                                                                 // a library: it needs no other part of bench
}

// exceptions are single files that may import more than their folder.
var exceptions = map[string][]string{
	// Which engine a node has is chosen in one place; the rest knows it by its interfaces.
	"node/config.go":              {"engine/batching", "engine/modelled"},
	"node/byzantine/byzantine.go": {"handoff/handofftest"}, // it is every hand-off's worst peer
}

// libraries lists the folders that may import a library, tests not counted.
var libraries = map[string][]string{
	"google.golang.org/grpc":             {"proto", "node", "proxy"},
	"google.golang.org/protobuf":         {"proto", "node", "proxy", "internal/otlp"},
	"golang.org/x/sys":                   {"transport", "lab", "bench", "internal/clock", "internal/proc", "proxy/ahead"},
	"golang.org/x/sync":                  {"node"},
	"golang.org/x/term":                  {"internal/cli"},
	"golang.org/x/text":                  {"tokenizer"},
	"github.com/dlclark/regexp2/v2":      {"tokenizer"},
	"github.com/nikolalohinski/gonja/v2": {"tokenizer"},
	"github.com/zeebo/xxh3":              {"kvcache"},
	"github.com/jaypipes/ghw":            {"transport/topology", "bench/observe"},
	"github.com/Mellanox/rdmamap":        {"transport/topology", "transport/rdma"},
	"github.com/vishvananda/netlink":     {"transport/nic", "lab/nics"},
	"github.com/vishvananda/netns":       {"lab/nics"},
	"github.com/prometheus":              {"proxy", "bench/observe"},
	"go.opentelemetry.io":                {"internal/otlp", "proxy/tracing", "bench/serve"},
	"github.com/spf13/cobra":             {"internal/cli"},
	"github.com/spf13/pflag":             {"internal/cli", "internal/knob", "cluster", "load", "bench"},
	"github.com/schollz/progressbar/v3":  {"internal/progress"},
	"gonum.org/v1/plot":                  {"bench"},
	"go.yaml.in/yaml/v3":                 {"bench/matrix"},
}

// mayImport returns why a file may not import a package of this module, or "".
func mayImport(s source, pkg string) string {
	dirs, err := listing()
	if err != nil {
		return err.Error()
	}
	at, of := slices.Index(dirs, s.dir), slices.Index(dirs, pkg)
	switch {
	case pkg == s.dir || slices.Contains(exceptions[s.name], pkg):
		return ""
	case of < at && !under(s.dir, pkg) && !(s.test && under(pkg, s.dir)):
		return "imports point down the list in doc.go"
	case s.test || strings.HasSuffix(s.dir, "test"):
		return ""
	}
	folder := s.dir
	for ; strings.Contains(folder, "/"); folder = folder[:strings.LastIndex(folder, "/")] {
		if _, ok := only[folder]; ok {
			break
		}
	}
	allowed, ok := only[folder]
	if !ok || under(pkg, folder) {
		return ""
	}
	for _, a := range allowed {
		if root, all := strings.CutSuffix(a, "/..."); a == "..." || pkg == a || all && under(pkg, root) {
			return ""
		}
	}
	return fmt.Sprintf("%s may import %q, see only", folder, allowed)
}

// TestListing: doc.go lists each directory with Go files once, and no other.
func TestListing(t *testing.T) {
	dirs, err := listing()
	if err != nil {
		t.Fatal(err)
	}
	tree, err := wholeTree()
	if err != nil {
		t.Fatal(err)
	}
	packages := byDirectory(tree)
	for i, dir := range dirs {
		if _, ok := packages[dir]; !ok {
			t.Errorf("doc.go lists %s, which has no Go files", dir)
		}
		if slices.Contains(dirs[:i], dir) {
			t.Errorf("doc.go lists %s twice", dir)
		}
	}
	for folder := range only {
		if !slices.ContainsFunc(dirs, func(d string) bool { return under(d, folder) }) {
			t.Errorf("only has a row for %s, which has no packages", folder)
		}
	}
	for lib, folders := range libraries {
		for _, folder := range folders {
			if !slices.ContainsFunc(tree, func(s source) bool {
				return under(s.dir, folder) && !s.test && slices.ContainsFunc(s.imports(), func(imp string) bool { return under(imp, lib) })
			}) {
				t.Errorf("%s does not import %s, as libraries says it may", folder, lib)
			}
		}
	}
}
