package nixl

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// sources has go test run these tests again when what they build changes. It skips where nothing can be built.
func sources(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: the plugin is for Linux")
	}
	for _, pattern := range []string{"build", "plugin/*", "testdata/*", "../../cmd/libkvferry/*.go", "../../cmd/libkvferry/*.[ch]", "../capi/*.go"} {
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
	for _, program := range []string{"gcc", "g++"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIPPED: no C++ compiler: %v", err)
		}
	}
}

// built is a folder with libkvferry.so and the plugin. Flags are more of the C++ compiler's.
func built(t *testing.T, flags string) string {
	t.Helper()
	sources(t)
	dir := t.TempDir()
	header, err := os.ReadFile("../../cmd/libkvferry/kvferry.h")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kvferry.h"), header, 0o644); err != nil {
		t.Fatal(err)
	}
	buildLibrary(t, filepath.Join(dir, "libkvferry.so"))
	run(t, []string{"CXXFLAGS=-O0 -g " + flags}, "./build", dir)
	return dir
}

// buildLibrary waits for cmd/libkvferry's tests if they build the library just now: then all is compiled.
func buildLibrary(t *testing.T, name string) {
	t.Helper()
	lock, err := os.Open("../../cmd/libkvferry/kvferry.h")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	run(t, nil, "go", "build", "-tags", "cshared", "-buildmode=c-shared", "-o", name, "../../cmd/libkvferry")
}

// program compiles one of testdata's, as NIXL's core is: its classes can be seen by what it loads.
func program(t *testing.T, dir, name, flags string, with ...string) string {
	t.Helper()
	out := filepath.Join(dir, name)
	args := append(strings.Fields("-std=c++20 -g -Wall -Wextra -Werror -pthread -rdynamic "+flags), "-I../../cmd/libkvferry", "-o", out, "testdata/"+name+".cpp")
	run(t, nil, "g++", append(args, append(with, "-ldl")...)...)
	return out
}

// run runs a program that must succeed.
func run(t *testing.T, env []string, program string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

// TestUnits: ranges of descriptors, which NIXL the plugin fits, settings, which fault hits what.
func TestUnits(t *testing.T) {
	t.Parallel()
	sources(t)
	run(t, nil, program(t, t.TempDir(), "units", "", "plugin/ranges.cpp", "plugin/loader.cpp", "plugin/settings.cpp", "plugin/json.cpp", "plugin/schedule.cpp"))
}

// TestCompare: compare.py says what is wrong with what it is asked, without NIXL.
func TestCompare(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skipf("SKIPPED: compare.py is not tried: %v", err)
	}
	out, err := exec.CommandContext(t.Context(), python, "compare.py", "--posts", "5").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--posts 5 --warm 5: the first --warm posts are not in the figures") {
		t.Errorf("%v: %s", err, out)
	}
}

// sanitized are the flags of the address sanitizer, where the compiler has it.
func sanitized(t *testing.T) string {
	t.Helper()
	const flags = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"
	probe := exec.Command("g++", append(strings.Fields(flags), "-x", "c++", "-", "-o", filepath.Join(t.TempDir(), "probe"))...)
	probe.Stdin = strings.NewReader("int main() { return 0; }")
	if out, err := probe.CombinedOutput(); err != nil {
		t.Logf("without the address sanitizer, which g++ lacks here: %v: %s", err, out)
		return ""
	}
	return flags
}

// TestPlugin: agents of one process and of two, and with faults, with the plugin as NIXL's core calls it.
func TestPlugin(t *testing.T) {
	t.Parallel()
	flags := sanitized(t)
	dir := built(t, flags)
	library := filepath.Join(dir, "libplugin_KVFERRY.so")
	t.Run("one process", func(t *testing.T) {
		t.Parallel()
		run(t, []string{"ASAN_OPTIONS=handle_segv=0"}, program(t, dir, "host", flags), library)
	})
	t.Run("GPU", func(t *testing.T) {
		t.Parallel()
		driver := t.TempDir()
		run(t, nil, "g++", "-shared", "-fPIC", "-o", filepath.Join(driver, "libcuda.so.1"), "testdata/libcuda.cpp")
		gpu := program(t, dir, "gpu", flags)
		for _, gpus := range []string{"2", "0", "-1"} {
			run(t, []string{"ASAN_OPTIONS=handle_segv=0", "LD_LIBRARY_PATH=" + driver, "GPUS=" + gpus}, gpu, library)
		}
	})
	t.Run("faults", func(t *testing.T) {
		t.Parallel()
		run(t, []string{"ASAN_OPTIONS=handle_segv=0"}, program(t, dir, "judge", flags), library, t.TempDir())
	})
	peer := program(t, dir, "peer", flags)
	for _, rails := range []string{"tcp/lo", "127.0.0.1:0,127.0.0.1:0", "cma"} {
		t.Run("two processes, "+rails, func(t *testing.T) {
			t.Parallel()
			env := []string{"ASAN_OPTIONS=handle_segv=0", "KVFERRY_RAILS=" + rails}
			target, initiator := start(t, env, peer, library, "target"), start(t, env, peer, library, "initiator")
			for range 3 {
				initiator.say(target.hear())
			}
			target.say(initiator.hear())
			for who, expected := range map[*process]string{target: "ok", initiator: "stop"} {
				if got := who.hear(); got != expected {
					t.Errorf("%q, not %q", got, expected)
				}
			}
			if err := target.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			initiator.say("")
			if got := initiator.hear(); got != "kill" {
				t.Errorf("%q while the target did not answer", got)
			}
			if err := target.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if got := initiator.hear(); got != "ok" {
				t.Errorf("after the target was killed: %q", got)
			}
		})
	}
}

// A process is one of two agents'.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

func start(t *testing.T, env []string, program string, args ...string) *process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	return &process{t, cmd, in, lines}
}

func (p *process) say(line string) {
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) hear() string {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("%s has ended: %v", p.cmd, p.out.Err())
	}
	return p.out.Text()
}
