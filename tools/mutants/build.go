package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A pkg is a package under mutation, as go list describes it.
type pkg struct {
	Dir, ImportPath, Name, Export      string
	GoFiles, CgoFiles                  []string
	TestGoFiles, XTestGoFiles, Imports []string
	DepOnly                            bool

	files    map[string]*file // those that can be mutated, by absolute name
	mutants  []*mutant
	built    bool
	failed   error // why it cannot be built or tested
	reported bool  // that
	program  string
	skip     string        // the tests that fail without a mutant
	took     time.Duration // by the tests without a mutant
	short    bool
	testDir  string
}

type file struct {
	source  []byte
	mutants []*mutant
}

// list loads the packages that match patterns and finds their mutants. Files with cgo are left out.
func list(ctx context.Context, patterns []string) ([]*pkg, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-export", "-deps", "-json=Dir,ImportPath,Name,Export,GoFiles,CgoFiles,TestGoFiles,XTestGoFiles,DepOnly"}, patterns...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w\n%s", strings.Join(patterns, " "), err, stderr.Bytes())
	}
	exports := make(map[string]string)
	var named []*pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(pkg)
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			named = append(named, p)
		}
	}
	fset := token.NewFileSet()
	imp := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, p := range named {
		if err := p.find(fset, imp); err != nil {
			return nil, fmt.Errorf("%s: %w", p.ImportPath, err)
		}
	}
	return named, nil
}

func (p *pkg) find(fset *token.FileSet, imp types.Importer) error {
	p.files = make(map[string]*file)
	var parsed []*ast.File
	for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
		name = filepath.Join(p.Dir, name)
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, name, source, parser.ParseComments)
		if err != nil {
			return err
		}
		parsed = append(parsed, f)
		if !ast.IsGenerated(f) && slices.Contains(p.GoFiles, filepath.Base(name)) {
			p.files[name] = &file{source: source}
		}
	}
	info := &types.Info{Types: make(map[ast.Expr]types.TypeAndValue), Uses: make(map[*ast.Ident]types.Object), Defs: make(map[*ast.Ident]types.Object)}
	config := types.Config{Importer: imp, FakeImportC: true}
	if _, err := config.Check(p.ImportPath, fset, parsed, info); err != nil {
		return err
	}
	for _, f := range parsed {
		name := fset.Position(f.Package).Filename
		to := p.files[name]
		if to == nil {
			continue
		}
		m := &mutator{fset: fset, info: info, source: to.source, start: fset.File(f.Package).Pos(0)}
		m.find(f)
		to.mutants = m.mutants
		p.mutants = append(p.mutants, m.mutants...)
	}
	for i, m := range p.mutants {
		m.n = i + 1
	}
	return nil
}

// only leaves out all mutants but those of the given lines.
func (p *pkg) only(lines map[string]map[int]bool) {
	unchanged := func(m *mutant) bool { return !lines[m.position.Filename][m.position.Line] }
	p.mutants = slices.DeleteFunc(p.mutants, unchanged)
	for _, f := range p.files {
		f.mutants = slices.DeleteFunc(f.mutants, unchanged)
	}
}

// changed returns the lines of Go files that differ from those of a git revision.
func changed(ctx context.Context, since string) (map[string]map[int]bool, error) {
	top, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return nil, fmt.Errorf("git rev-parse: %w", err)
	}
	diff := exec.CommandContext(ctx, "git", "diff", "-U0", "--no-color", "--no-ext-diff", "--src-prefix=a/", "--dst-prefix=b/", since, "--", "*.go")
	diff.Dir = strings.TrimSpace(string(top))
	out, err := diff.Output()
	if err != nil {
		return nil, fmt.Errorf("git diff %s: %w: is it a revision? A shallow clone may lack it", since, err)
	}
	return changedLines(diff.Dir, string(out)), nil
}

var hunk = regexp.MustCompile(`^@@ -\S+ \+(\d+)(?:,(\d+))? @@`)

func changedLines(dir, diff string) map[string]map[int]bool {
	lines := make(map[string]map[int]bool)
	var of map[int]bool
	for line := range strings.Lines(diff) {
		if name, ok := strings.CutPrefix(line, "+++ b/"); ok {
			of = make(map[int]bool)
			lines[filepath.Join(dir, strings.TrimSpace(name))] = of
		}
		if h := hunk.FindStringSubmatch(line); h != nil {
			first, _ := strconv.Atoi(h[1])
			n, _ := strconv.Atoi(cmp.Or(h[2], "1"))
			for i := range n {
				of[first+i] = true
			}
		}
	}
	return lines
}

//go:embed switch.txt
var switches []byte

// build compiles the package's tests with all mutants, and runs them without any: once to see which mutants they reach, and once for
// the time that they take. It returns the same error again if it failed before.
func (p *pkg) build(ctx context.Context, c config, dir string) error {
	if !p.built {
		p.built = true
		p.short, p.failed = c.short, p.compile(ctx, c, dir)
		if p.failed == nil {
			p.failed = p.measure(ctx, dir)
		}
	}
	return p.failed
}

func (p *pkg) compile(ctx context.Context, c config, dir string) error {
	tests, at := c.tests, p.Dir
	if tests == "" {
		if tests = p.ImportPath; len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			return errors.New("it has no tests of its own (-tests names a package whose tests try it)")
		}
	} else if out, err := exec.CommandContext(ctx, "go", "list", "-f={{.Dir}}", tests).Output(); err != nil {
		return fmt.Errorf("-tests %s: %w", tests, err)
	} else {
		at = strings.TrimSpace(string(out))
	}
	p.testDir = at
	p.program = filepath.Join(dir, strings.ReplaceAll(p.ImportPath, "/", "_")+".test")
	work := p.program + ".src"
	if err := os.MkdirAll(work, 0o700); err != nil {
		return err
	}
	// Mutants that do not compile are taken out; the compiler stops after ten errors.
	for range 50 {
		overlay := map[string]string{filepath.Join(p.Dir, "mutant_switch.go"): filepath.Join(work, "mutant_switch.go")}
		text := bytes.Replace(switches, []byte("package mutated"), []byte("package "+p.Name), 1)
		if err := os.WriteFile(filepath.Join(work, "mutant_switch.go"), text, 0o600); err != nil {
			return err
		}
		regions := make(map[string][]region)
		for name, f := range p.files {
			if len(f.mutants) == 0 {
				continue
			}
			to := filepath.Join(work, filepath.Base(name))
			text, changed := apply(f.source, f.mutants)
			if err := os.WriteFile(to, text, 0o600); err != nil {
				return err
			}
			regions[filepath.Base(name)], overlay[name] = changed, to
		}
		text, err := json.Marshal(map[string]any{"Replace": overlay})
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(work, "overlay.json"), text, 0o600); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-gcflags="+p.ImportPath+"=-e", "-overlay", filepath.Join(work, "overlay.json"), "-o", p.program, tests)
		out, err := cmd.CombinedOutput()
		if err == nil {
			return nil
		}
		if !drop(regions, string(out)) {
			return fmt.Errorf("go test -c: %w\n%s", err, out)
		}
	}
	return errors.New("too many mutants that do not compile")
}

var place = regexp.MustCompile(`(?m)^(?:\S*/)?([^/\s:]+\.go):(\d+):`)

// drop takes out the mutants of the places that a compiler complains of, and reports whether there were any.
func drop(regions map[string][]region, said string) (any bool) {
	for _, at := range place.FindAllStringSubmatch(said, -1) {
		line, _ := strconv.Atoi(at[2])
		for _, r := range regions[at[1]] {
			if r.first <= line && line <= r.last {
				for _, m := range r.mutants {
					any = any || !m.dropped
					m.dropped = true
				}
			}
		}
	}
	return any
}

var failing = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// measure runs the tests without a mutant. Those that fail then, such as tests that count allocations, are left out.
func (p *pkg) measure(ctx context.Context, dir string) error {
	reached := p.program + ".reached"
	for range 3 {
		began := time.Now()
		out, err := p.tests(ctx, 10*time.Minute, "KVFERRY_MUTANT=-1", "KVFERRY_MUTANTS_REACHED="+reached)
		p.took = time.Since(began)
		if err == nil {
			break
		}
		found := failing.FindAllStringSubmatch(out, -1)
		if found == nil || ctx.Err() != nil {
			return fmt.Errorf("its tests fail without a mutant: %w\n%s", err, tail(out))
		}
		for _, f := range found {
			p.skip = strings.TrimPrefix(p.skip+"|^"+regexp.QuoteMeta(f[1])+"$", "|")
		}
		if _, err := p.tests(ctx, 10*time.Minute); err == nil {
			break
		}
	}
	said, err := os.ReadFile(reached)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	is := make(map[int]bool)
	for _, n := range strings.Fields(string(said)) {
		i, _ := strconv.Atoi(n)
		is[i] = true
	}
	for _, m := range p.mutants {
		m.reached = is[m.n]
	}
	return nil
}

func tail(s string) string { return s[max(0, len(s)-2000):] }

// kills reports whether the tests fail with a mutant, or take much longer than without it.
func (p *pkg) kills(ctx context.Context, m *mutant) (bool, error) {
	if !m.reached || m.dropped {
		return false, nil
	}
	_, err := p.tests(ctx, 3*p.took+10*time.Second, fmt.Sprintf("KVFERRY_MUTANT=%d", m.n))
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return false, err
	}
	return err != nil, nil
}

// tests runs the tests for at most limit. All that they started ends with them.
func (p *pkg) tests(ctx context.Context, limit time.Duration, env ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.program, "-test.failfast", "-test.timeout=0", fmt.Sprintf("-test.short=%v", p.short))
	if p.skip != "" {
		cmd.Args = append(cmd.Args, "-test.skip="+p.skip)
	}
	cmd.Dir, cmd.Env = p.testDir, append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	return string(out), err
}
