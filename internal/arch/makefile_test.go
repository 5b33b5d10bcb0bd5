package arch

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestProbe: make says before it builds that cgo has no compiler which works, or that cgo is off
// and programs have no RDMA rail. Only what make would do is looked at.
func TestProbe(t *testing.T) {
	t.Parallel()
	const gcc = "gcc"
	for _, program := range []string{"make", gcc} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
	}
	if _, err := os.ReadFile("Makefile"); err != nil { // go test sees when it changes
		t.Fatal(err)
	}
	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	const (
		rail  = "bin/ is there, with the RDMA rail"
		off   = "bin/ is there, without the RDMA rail: cgo is off"
		works = ":\n"
		fails = `echo "the race detector needs cgo, and cgo a C compiler that works`
	)
	for _, c := range []struct {
		name        string
		given       []string
		build, test string // what make says of it
	}{
		{"all is there", []string{"CGO_ENABLED=1", "CC=" + gcc}, rail, works},
		{"a compiler with arguments", []string{"CGO_ENABLED=1", "CC=gcc -O1 -pipe"}, rail, works},
		{"cgo is off", []string{"CGO_ENABLED=0", "CC=" + gcc}, off, works},
		{"another processor", []string{"GOARCH=" + other, "CC=", "CGO_ENABLED="}, off, ""},
		{"no headers of C", []string{"CGO_ENABLED=1", "CC=gcc -nostdinc"}, rail, fails},
		{"no compiler", []string{"CGO_ENABLED=1", "CC=" + filepath.Join(t.TempDir(), "cc")}, rail, fails},
	} {
		for name, cmd := range map[string]*exec.Cmd{
			"in the environment":  exec.Command("make", "-n", "build", "unit"),
			"on the command line": exec.Command("make", append([]string{"-n", "build", "unit"}, c.given...)...),
		} {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MAKEOVERRIDES=") // of a make around this test
				if len(cmd.Args) == 4 {
					cmd.Env = append(cmd.Env, c.given...)
				}
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				for _, want := range []string{c.build, c.test} {
					if !strings.Contains(string(out), want) {
						t.Errorf("does not say %q:\n%s", want, out)
					}
				}
			})
		}
	}
}
