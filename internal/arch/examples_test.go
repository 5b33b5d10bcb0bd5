package arch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestExamples: each folder of examples/ says what it does, needs and gives. Command lines
// that begin with go run ./cmd/kvferry are run, and what is pasted below one is in what it
// prints: they compute in virtual time, or read a file.
func TestExamples(t *testing.T) {
	t.Parallel()
	folders, err := filepath.Glob("examples/*/README.md")
	if err != nil || len(folders) < 6 {
		t.Fatal(folders, err)
	}
	list, err := os.ReadFile("examples/README.md")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := bin()
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, page := range folders {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"What it does: ", "What it needs: ", "What comes out"} {
			if !strings.Contains(string(text), "\n"+part) {
				t.Errorf("%s does not say: %s", page, part)
			}
		}
		if name := filepath.Base(filepath.Dir(page)); !strings.Contains(string(list), "]("+name+")") {
			t.Errorf("examples/README.md does not list %s", name)
		}
		said := "" // by the last command
		for line := range strings.Lines(string(text)) {
			line, isCode := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "    ")
			command, isCommand := strings.CutPrefix(line, "go run ./cmd/kvferry ")
			switch {
			case !isCode:
			case isCommand:
				args := strings.Fields(command)
				if args[0] != "rail" && args[0] != "profile" { // these write no folder
					args = append(args, "--out", t.TempDir())
				}
				out, err := exec.Command(filepath.Join(dir, "kvferry"), args...).CombinedOutput()
				if err != nil {
					t.Errorf("%s: %s: %v: %s", page, line, err, out)
				}
				said = string(out)
				ran++
			case said != "" && !strings.Contains(said, line+"\n"):
				t.Errorf("%s: the command above it does not print %q, but\n%s", page, line, said)
			}
		}
	}
	if ran < 7 {
		t.Errorf("only %d commands were found in examples/", ran)
	}
}

// TestExampleMatrix runs the example of kvferry lab matrix that needs nothing but this tree's
// programs: two clusters and two loads.
func TestExampleMatrix(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: only Linux has 127.0.0.2 without being told")
	}
	dir, err := bin()
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	out, err := exec.Command(filepath.Join(dir, "kvferry"), "lab", "matrix", "examples/matrix/two-handoffs.yaml", "--out", to).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, pair := range []string{"layerwise/rate-8", "layerwise/burst", "pull/rate-8", "pull/burst"} {
		log, err := os.ReadFile(filepath.Join(to, pair, "server.log"))
		handoff, _, _ := strings.Cut(pair, "/")
		if err != nil || !strings.Contains(string(log), "handoff="+handoff) {
			t.Errorf("%s: %v: %s", pair, err, log)
		}
		if !strings.Contains(string(out), " "+pair+": done") {
			t.Errorf("%s is not done:\n%s", pair, out)
		}
	}
}

// TestVirtualFigures: the tables that docs/virtual-time.md shows are those of its commands.
// A block of the page is one of a command's if the command prints one of its lines; then it
// prints them all.
func TestVirtualFigures(t *testing.T) {
	t.Parallel()
	dir, err := bin()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("docs/virtual-time.md")
	if err != nil {
		t.Fatal(err)
	}
	page := strings.ReplaceAll(string(text), "\\\n", " ")
	printed := map[string]bool{}
	for _, command := range []string{"reproduce mooncake --clock virtual", "sim --request-rate 16 "} {
		_, line, found := strings.Cut(page, "kvferry "+command)
		if !found {
			t.Fatalf("the page has no kvferry %s", command)
		}
		line, _, _ = strings.Cut(line, "\n")
		args := strings.Fields(command + line + " --out " + t.TempDir())
		out, err := exec.Command(filepath.Join(dir, "kvferry"), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("kvferry %s: %v: %s", args, err, out)
		}
		for line := range strings.Lines(string(out)) {
			printed[strings.TrimSpace(line)] = true
		}
	}
	tables := 0
	for block := range strings.SplitSeq(page, "\n\n") {
		if !strings.HasPrefix(block, "    ") {
			continue
		}
		var missing []string
		lines := strings.Split(strings.TrimSpace(block), "\n")
		for _, line := range lines {
			if !printed[strings.TrimSpace(line)] {
				missing = append(missing, line)
			}
		}
		if len(missing) < len(lines) {
			tables++
			for _, line := range missing {
				t.Errorf("docs/virtual-time.md has %q, and its commands do not print that", line)
			}
		}
	}
	if tables < 3 {
		t.Errorf("only %d tables of docs/virtual-time.md are printed by its commands", tables)
	}
}

// TestExampleCluster starts the two scripts of examples/two-machines on two addresses of
// this machine, and asks with the script of examples/curl.
func TestExampleCluster(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: only Linux has 127.0.0.2 without being told")
	}
	for _, program := range []string{"sh", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
	}
	dir, err := bin()
	if err != nil {
		t.Fatal(err)
	}
	// The scripts expect programs in bin/ of the repository, and addresses that are
	// nobody else's: those of this process.
	root := t.TempDir()
	for _, script := range []string{"two-machines/first.sh", "two-machines/second.sh", "curl/completion.sh"} {
		text, err := os.ReadFile("examples/" + script)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(root, "examples", script)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(dir, filepath.Join(root, "bin")); err != nil {
		t.Fatal(err)
	}
	pid := os.Getpid()
	first := fmt.Sprintf("127.%d.%d.%d", 64+pid>>16&31, pid>>8&255, pid&255)
	second := fmt.Sprintf("127.%d.%d.%d", 96+pid>>16&31, pid>>8&255, pid&255)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	script := func(name string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "sh", append([]string{filepath.Join(root, "examples", name)}, args...)...)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = 30 * time.Second
		return cmd
	}
	var logs [2]strings.Builder
	for i, cmd := range []*exec.Cmd{
		script("two-machines/first.sh", first, "--kv-warm-mib", "0"),
		script("two-machines/second.sh", second, first, "--kv-warm-mib", "0"),
	} {
		cmd.Stdout, cmd.Stderr = &logs[i], &logs[i]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Errorf("%s: %v", cmd, err)
			}
			_ = cmd.Wait() // ends with the signal
			if t.Failed() {
				t.Logf("%s:\n%s", cmd, &logs[i])
			}
		}()
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ready := false; !ready; {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+first+":8000/health", nil)
		if err != nil {
			t.Fatal(err)
		}
		if answer, err := http.DefaultClient.Do(req); err == nil {
			ready = answer.StatusCode == http.StatusOK
			answer.Body.Close()
		}
		if ctx.Err() != nil {
			t.Fatal("the cluster does not come up")
		}
		if !ready {
			<-tick.C
		}
	}
	out, err := script("curl/completion.sh", first+":8000").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{`"text":" ravit"`, `"text":" ranan"`, `"kv_blocks_checked":1,"kv_blocks_bad":0,"prefill_node":"prefill-0","decode_node":"decode-0"`, "data: [DONE]"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the completion has no %s:\n%s", want, out)
		}
	}
}
