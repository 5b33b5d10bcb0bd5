package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	_ "kvferry/bindings/capi" // go test runs these tests again when it changes
)

// library is a folder with libkvferry.so and kvferry.h, made for the test.
func library(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: the library is for Linux")
	}
	for _, pattern := range []string{"*.go", "*.[ch]", "testdata/*", "../../bindings/python/*.py", "../../bindings/python/*/*.py", "../../examples/gpu/*"} { // go test sees when they change
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, files, err)
		}
		for _, name := range files {
			if _, err := os.ReadFile(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skipf("SKIPPED: no C compiler: %v", err)
	}
	dir := t.TempDir()
	// The plugin's tests for NIXL build the library too: whoever comes second waits, and finds all compiled.
	lock, err := os.Open("kvferry.h")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	run(t, nil, "go", "build", "-tags", "cshared", "-buildmode=c-shared", "-o", filepath.Join(dir, "libkvferry.so"), ".")
	header, err := os.ReadFile("kvferry.h")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kvferry.h"), header, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// run runs a program that must succeed, and returns what it prints.
func run(t *testing.T, env []string, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// TestLibrary: kvferry.h is C and C++, a program in C finds all as the header says, under the address
// sanitizer and valgrind too, and unittest finds the Python binding as it should be.
func TestLibrary(t *testing.T) {
	dir := library(t)
	compile := func(t *testing.T, out string, flags ...string) string {
		t.Helper()
		out = filepath.Join(dir, out)
		run(t, nil, "gcc", append(flags, "-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"+dir, "-o", out, "testdata/border.c", "-L"+dir, "-lkvferry", "-Wl,-rpath,"+dir)...)
		return out
	}
	t.Run("needs glibc only", func(t *testing.T) {
		f, err := elf.Open(filepath.Join(dir, "libkvferry.so"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		needs, err := f.ImportedLibraries()
		if err != nil || len(needs) == 0 {
			t.Fatal(needs, err)
		}
		for _, name := range needs {
			if !regexp.MustCompile(`^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv))\.so\.[0-9]+$`).MatchString(name) {
				t.Errorf("libkvferry.so needs %s, which is not of glibc", name)
			}
		}
	})
	t.Run("header", func(t *testing.T) {
		for _, language := range []string{"c", "c++"} {
			if language == "c++" {
				if _, err := exec.LookPath("g++"); err != nil {
					t.Skipf("SKIPPED: %v", err)
				}
			}
			run(t, nil, "gcc", "-x", language, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "kvferry.h")
		}
	})
	t.Run("C", func(t *testing.T) {
		run(t, nil, compile(t, "border"))
	})
	t.Run("C with the address sanitizer", func(t *testing.T) {
		probe := exec.Command("gcc", "-fsanitize=address,undefined", "-x", "c", "-", "-o", filepath.Join(dir, "probe"))
		probe.Stdin = strings.NewReader("int main(void) { return 0; }")
		if out, err := probe.CombinedOutput(); err != nil {
			t.Skipf("SKIPPED: gcc has no sanitizers here: %v: %s", err, out)
		}
		run(t, []string{"ASAN_OPTIONS=handle_segv=0"}, compile(t, "border-asan", "-fsanitize=address,undefined", "-fno-sanitize-recover"))
	})
	t.Run("C with valgrind", func(t *testing.T) {
		if _, err := exec.LookPath("valgrind"); err != nil {
			t.Skipf("SKIPPED: no valgrind: %v", err)
		}
		// It takes goroutines' stacks for memory that is none, so that only what C did counts. One error is meant.
		for _, found := range strings.Split(run(t, nil, "valgrind", "--error-limit=no", "--leak-check=full", "--show-leak-kinds=definite", compile(t, "border-valgrind")), "== \n") {
			if strings.Contains(found, "border.c:") && !strings.Contains(found, "check_signals") {
				t.Error(found)
			}
		}
	})
	t.Run("Python", func(t *testing.T) {
		if out, err := exec.Command("python3", "-c", "import ctypes, sys; sys.exit(sys.version_info < (3, 9))").CombinedOutput(); err != nil {
			t.Skipf("SKIPPED: no Python 3.9 or later with ctypes: %v: %s", err, out)
		}
		env := []string{"KVFERRY_LIBRARY=" + filepath.Join(dir, "libkvferry.so"), "PYTHONPATH=../../bindings/python", "PYTHONDONTWRITEBYTECODE=1"}
		t.Log(run(t, env, "python3", "-W", "error", "-m", "unittest", "discover", "-s", "../../bindings/python/tests"))
	})
	t.Run("example with torch", func(t *testing.T) {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
		python := filepath.Join(cache, "kvferry", "vllm", "env", "bin", "python") // of kvferry lab vllm setup
		if _, err := os.Stat(python); err != nil {
			t.Skipf("SKIPPED: no torch, which kvferry lab vllm setup brings: %v", err)
		}
		env := []string{"KVFERRY_LIBRARY=" + filepath.Join(dir, "libkvferry.so"), "PYTHONPATH=../../bindings/python", "PYTHONDONTWRITEBYTECODE=1"}
		out := run(t, env, python, "../../examples/gpu/ferry.py", "--device", "cpu", "--mib", "5", "--chunk-mib", "2", "--rounds", "1")
		if !strings.Contains(out, "the same bytes       4 of 4 times") {
			t.Error(out)
		}
	})
}
