package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"kvferry/bench"
	"kvferry/bench/document"
	"kvferry/bench/nullserver"
)

// TestServeSignals stops kvferry bench in the middle of a run: what had ended and what was under
// way is on disk and in the report, and the cluster that it started is gone.
func TestServeSignals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		sig  syscall.Signal
		args string
		kids int
	}{
		{"a server of others, Ctrl-C", syscall.SIGINT, "--base-url " + served(t, nullserver.Config{TTFT: 10 * time.Millisecond, ITL: 100 * time.Millisecond}), 0},
		{"a cluster of its own, SIGTERM", syscall.SIGTERM, "--kv-warm-mib 0 --link 10gbit --profile " + profileFile(t, 32000, 50), 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			args := append([]string{"bench", "--out", dir}, strings.Fields(c.args+" --num-prompts 100000 --request-rate 20 --random-input-len 16 --random-output-len 8")...)
			cmd, stdout, stderr := spawn(t, args...)
			awaitRecords(t, dir, 5)
			kids := childrenOf(t, cmd.Process.Pid)
			if len(kids) != c.kids {
				t.Errorf("%d child processes, want %d", len(kids), c.kids)
			}
			if err := cmd.Process.Signal(c.sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // its status is looked at below
			if code := cmd.ProcessState.ExitCode(); code != ExitInterrupted || !strings.Contains(stderr.String(), "interrupted; what was measured is kept") {
				t.Errorf("exit %d\n%s", code, stderr.String())
			}
			awaitEnd(t, kids)
			records, err := readRecords(dir)
			if err != nil || len(records) < 5 {
				t.Fatalf("%d records, %v", len(records), err)
			}
			if !strings.Contains(stdout.String(), "Serving Benchmark Result") {
				t.Errorf("no report of what was done:\n%s", stdout.String())
			}
			if own := strings.Contains(stdout.String(), ", 1 prefill + 1 decode, hand-off layerwise, 1 x 1.25 GB/s a node, placement least-loaded, scheduler "); own != (c.kids > 0) {
				t.Errorf("the cluster is named: %t\n%s", own, stdout.String())
			}
			for _, name := range []string{document.SummaryFile, document.TableFile, document.ReportFile} {
				if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestServeDiskFull: on a disk of 16 KiB the report is printed all the same, the error once.
func TestServeDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Skipf("SKIPPED: needs root, to mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	code, stdout, stderr := command(t.Context(), "bench", "--base-url", served(t, nullserver.Config{}), "--num-prompts", "80", "--random-input-len", "8", "--random-output-len", "8", "--out", dir)
	if code != ExitFailed || strings.Count(stderr, "no space left on device") != 1 || !strings.Contains(stderr, "kvferry: results are not kept") {
		t.Errorf("exit %d\n%s", code, stderr)
	}
	if !strings.Contains(stdout, "Successful requests:                     80") || strings.Contains(stdout, "results:") {
		t.Errorf("stdout:\n%s", stdout)
	}
	var records []bench.Record
	var err error
	if records, err = readRecords(dir); err != nil || len(records) < 5 || len(records) >= 80 {
		t.Errorf("%d records on the disk, %v", len(records), err)
	}
}

// TestPipeReadAgain: a trace that would be read twice, for its longest prompt and for the run, is no pipe.
func TestPipeReadAgain(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"sim --trace ", "bench --clock virtual --trace "} {
		code, _, stderr := command(t.Context(), strings.Fields(args+pipe+" --out "+t.TempDir())...)
		if code != ExitUsage || !strings.Contains(stderr, "kvferry: --trace: it is a pipe, which can be read once") {
			t.Errorf("%s: exit %d, %s", args, code, stderr)
		}
	}
}
