package kvferry

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestProbe: make builds the RDMA rail where libibverbs can be compiled and linked
// with, says so, and builds without it anywhere else. Only what make would do is
// looked at.
func TestProbe(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: the RDMA rail is for Linux")
	}
	gcc := "gcc"
	for _, program := range []string{"make", gcc} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
	}
	if _, err := os.ReadFile("Makefile"); err != nil { // go test sees when it changes
		t.Fatal(err)
	}
	// A libibverbs of this test's own, in folders that the compiler is told of.
	verbs := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		name = filepath.Join(verbs, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return name
	}
	write("infiniband/verbs.h", "#include <stdint.h>\nvoid **ibv_get_device_list(int *n);\n", 0o644)
	source := write("verbs.c", "#include <infiniband/verbs.h>\nvoid **ibv_get_device_list(int *n) { return 0; }\n", 0o644)
	if out, err := exec.Command(gcc, "-I"+verbs, "-shared", "-fPIC", "-o", filepath.Join(verbs, "libibverbs.so"), source).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: the C compiler does not work: %v: %s", err, out)
	}
	with := []string{"CGO_ENABLED=1", "CC=" + gcc, "CGO_CFLAGS=-I" + verbs, "CGO_LDFLAGS=-L" + verbs}
	// Compilers that see less than this machine has, whatever that is.
	noHeader := write("noheader", "#!/bin/sh\ncase \" $* \" in *infiniband*) echo 'infiniband/verbs.h: No such file or directory' >&2; exit 1; esac\nexec gcc \"$@\"\n", 0o755)
	noLibrary := write("nolibrary", "#!/bin/sh\ncase \" $* \" in *' -libverbs '*) echo 'cannot find -libverbs' >&2; exit 1; esac\nexec gcc \"$@\"\n", 0o755)

	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	for _, c := range []struct {
		name  string
		given []string
		says  string // "": it builds the rail
	}{
		{"all is there", with, ""},
		{"a compiler with arguments", append(with, "CC=gcc -O1 -pipe"), ""},
		{"no header", append(with, "CC="+noHeader), "no libibverbs"},
		{"a header and no library", append(with, "CC="+noLibrary), "no libibverbs"},
		{"no header for a compiler with arguments", append(with, "CC="+noHeader+" -O1"), "no libibverbs"},
		{"cgo is off", append(with, "CGO_ENABLED=0"), "cgo is off"},
		{"no headers of C", append(with, "CC=gcc -nostdinc"), "the C compiler compiles nothing"},
		{"no compiler", append(with, "CC="+filepath.Join(verbs, "cc")), "the C compiler compiles nothing"},
		{"another processor", append(with, "GOARCH="+other, "CC=", "CGO_ENABLED="), "cgo is off"},
	} {
		for name, cmd := range map[string]*exec.Cmd{
			"make test, in the environment":   exec.Command("make", "-n", "test"),
			"make build, on the command line": exec.Command("make", append([]string{"-n", "build"}, c.given...)...),
		} {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MAKEOVERRIDES=") // of a make around this test
				if len(cmd.Args) == 3 {
					cmd.Env = append(cmd.Env, c.given...)
				}
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				if rail := strings.Contains(string(out), "-tags rdma"); rail != (c.says == "") {
					t.Errorf("builds with the rail: %v\n%s", rail, out)
				}
				want := "with the RDMA rail"
				if c.says != "" {
					want = "without the RDMA rail: " + c.says
				}
				if !strings.Contains(string(out), want) {
					t.Errorf("does not say %q:\n%s", want, out)
				}
			})
		}
	}
}
