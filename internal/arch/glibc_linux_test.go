package arch

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

var (
	library = regexp.MustCompile(`(/\S+) \(0x`) // of ldd: "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f...)"
	glibc   = regexp.MustCompile(`^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv))\.so\.[0-9]+$`)
)

// TestGlibcOnly: programs need glibc and nothing else. In a root directory that has only that, not
// even /proc, a daemon says what its flags are, and kvferry moves bytes over TCP. A rail over RDMA
// says what it lacks.
func TestGlibcOnly(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: not root, which chroot takes")
	}
	dir, err := bin()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, name := range programs {
		program := filepath.Join(dir, name)
		if err := os.Link(program, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("ldd", program).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "not a dynamic executable") { // as without cgo
			t.Fatalf("ldd %s: %v: %s", program, err, out)
		}
		for _, m := range library.FindAllStringSubmatch(string(out), -1) {
			if !glibc.MatchString(filepath.Base(m[1])) {
				t.Errorf("%s needs %s, which is not of glibc", name, m[1])
			}
			place(t, m[1], filepath.Join(root, m[1]))
		}
	}
	bare := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: root}
		return cmd
	}
	for _, name := range programs {
		if out, err := bare("/"+name, "--help").CombinedOutput(); err != nil || !strings.Contains(string(out), "Usage:") {
			t.Errorf("%s --help: %v: %s", name, err, out)
		}
	}

	server := bare("/kvferry", "rail", "bench", "--rail", "127.0.0.1:0", "--server", "--once", "--listen", "127.0.0.1:0", "--segment", "4m")
	stdout, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	server.Stderr = &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	_, at, found := strings.Cut(line, "serving clients at ")
	if !found {
		t.Fatalf("%q, %v: %s", line, server.Wait(), &log)
	}
	client := bare("/kvferry", "rail", "bench", "--rail", "127.0.0.1:0", "--segment", "4m", "--block", "64k", "--iters", "8", "--check", strings.Fields(at)[0])
	out, err := client.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "write") {
		t.Errorf("kvferry rail bench: %v: %s", err, out)
	}
	if err := server.Wait(); err != nil {
		t.Errorf("kvferry rail bench --server: %v: %s", err, &log)
	}

	lacks := "apt-get install libibverbs1"
	if out, err := exec.Command("go", "env", "CGO_ENABLED").Output(); err != nil || strings.TrimSpace(string(out)) != "1" {
		lacks = "CGO_ENABLED=1"
	}
	out, err = bare("/kvferry", "rail", "bench", "--rail", "rdma/mlx5_0", "--server").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "rdma/mlx5_0") || !strings.Contains(string(out), lacks) {
		t.Errorf("a rail over RDMA: %v, want %q: %s", err, lacks, out)
	}
}

// place copies a library.
func place(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}
