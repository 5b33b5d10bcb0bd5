package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"kvferry/bench"
	"kvferry/bench/client"

	"kvferry/load"
)

// patience bounds every wait of a test. It is no measure of speed: the machine may be
// busy with other tests.
const patience = time.Minute

// await calls try until it is nil.
func await(t *testing.T, what string, try func() error) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(patience)
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// readRecords are those that results.jsonl in dir has now.
func readRecords(dir string) ([]bench.Record, error) {
	f, err := os.Open(filepath.Join(dir, "results.jsonl"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return bench.ReadRecords(f)
}

// childrenOf are the processes whose parent is pid.
func childrenOf(t *testing.T, pid int) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// The command in parentheses may hold anything; state and parent follow.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if child, _ := strconv.Atoi(filepath.Base(filepath.Dir(name))); fields[1] == strconv.Itoa(pid) {
			pids = append(pids, child)
		}
	}
	return pids
}

// alive is false of a process that has ended, waited for or not.
func alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.HasPrefix(string(text[bytes.LastIndexByte(text, ')')+1:]), " Z")
}

// spawn runs kvferry as a process of its own, which is killed with the test at the latest.
func spawn(t *testing.T, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	cmd = exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), mainEnv+"=1")
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, stdout, stderr
}

// awaitRecords waits until dir has the records of n requests, and returns those there are.
func awaitRecords(t *testing.T, dir string, n int) (records []bench.Record) {
	t.Helper()
	await(t, fmt.Sprintf("%d requests to end", n), func() (err error) {
		if records, err = readRecords(dir); err == nil && len(records) < n {
			err = fmt.Errorf("%d records", len(records))
		}
		return err
	})
	return records
}

// awaitEnd waits until processes that kvferry started have ended.
func awaitEnd(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		await(t, "all processes to end", func() error {
			if alive(pid) {
				return fmt.Errorf("process %d outlives kvferry", pid)
			}
			return nil
		})
	}
}

// TestSignals sends kvferry a signal in the middle of a cell: what had ended is on
// disk, what was in flight is interrupted, and no daemon is left.
func TestSignals(t *testing.T) {
	t.Parallel()
	// Where the tests run under nohup, kvferry would too, and ignore a hangup. What this
	// process handles is not ignored in its children.
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangup) })
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			// A request takes more than a second, and 8 a second come: some are in flight
			// at any time.
			dir := t.TempDir()
			cmd, stdout, stderr := spawn(t, "reproduce", "mooncake", "--profile", profileFile(t, 32000, 200), "--settings", "layerwise", "--clock", "real", "--out", dir)
			before := awaitRecords(t, dir, 5)
			daemons := childrenOf(t, cmd.Process.Pid)
			if len(daemons) != 3 {
				t.Errorf("%d daemons, want 3", len(daemons))
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // its status is looked at below
			awaitEnd(t, daemons)
			after, err := readRecords(dir)
			if err != nil {
				t.Fatal(err)
			}
			status := map[string]int{}
			for _, r := range after {
				status[r.Status]++
			}
			if status[client.StatusOK] < len(before) || len(after) >= load.PublishedPrompts || status[client.StatusFailed] > 0 {
				t.Errorf("%d records before the signal, %v after it", len(before), status)
			}
			if sig == syscall.SIGKILL {
				if got := cmd.ProcessState.Sys().(syscall.WaitStatus); got.Signal() != sig {
					t.Errorf("ended by %v", got)
				}
				return
			}
			if code := cmd.ProcessState.ExitCode(); code != ExitInterrupted || !strings.Contains(stderr.String(), "interrupted; what was measured is kept") {
				t.Errorf("exit %d: %s", code, stderr.String())
			}
			var summary bench.Summary
			text, err := os.ReadFile(filepath.Join(dir, "summary.json"))
			if err == nil {
				err = json.Unmarshal(text, &summary)
			}
			if err != nil || len(summary.Rows) != 1 || !summary.Rows[0].Interrupted {
				t.Fatalf("summary.json: %v: %s", err, text)
			}
			m := summary.Rows[0].Metrics
			if m.Successful != status[client.StatusOK] || m.Interrupted != status[client.StatusInterrupted] || m.Interrupted == 0 || m.Failed > 0 {
				t.Errorf("records %v, metrics %+v", status, m)
			}
			if !strings.Contains(stdout.String(), "256/q8 TTFT (ms)") || !strings.Contains(stdout.String(), "in flight") {
				t.Errorf("stdout:\n%s", stdout.String())
			}
		})
	}
}

// TestNohup: a run that was told to outlive its terminal does.
func TestNohup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sh := exec.Command("sh", "-c", `trap "" HUP; exec "$0" "$@"`, os.Args[0], "reproduce", "mooncake", "--profile", profileFile(t, 32000, 20), "--settings", "nondisagg",
		"--num-prompts", "12", "--retries-disturbed", "0", "--clock", "real", "--out", dir)
	sh.Env = append(os.Environ(), mainEnv+"=1")
	var stderr bytes.Buffer
	sh.Stderr = &stderr
	if err := sh.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sh.Process.Kill() })
	awaitRecords(t, dir, 1)
	if err := sh.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := sh.Wait(); err != nil {
		t.Errorf("%v: %s", err, stderr.String())
	}
	if records, err := readRecords(dir); err != nil || len(records) != 12 {
		t.Errorf("%d records, %v", len(records), err)
	}
}

// TestBadOutput: a cluster whose results and log cannot be kept is measured all the
// same.
func TestBadOutput(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := command(t.Context(), "reproduce", "mooncake", "--profile", profileFile(t, 32000, 1), "--settings", "layerwise", "--num-prompts", "4", "--retries-disturbed", "0", "--out", filepath.Join(file, "out"))
	if code != ExitFailed || strings.Count(stderr, "not a directory") != 1 || !strings.Contains(stderr, "1/1 256/q8 layerwise: 4 ok") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if !strings.Contains(stdout, "256/q8 TTFT (ms)") {
		t.Errorf("stdout:\n%s", stdout)
	}
}

// TestDiskFull runs on a disk of 16 KiB: the table is printed all the same, the error
// once.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Skipf("needs root, to mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		// A process that another test has just forked, and that runs no program yet, still has our files open.
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	code, stdout, stderr := command(t.Context(), "reproduce", "mooncake", "--settings", "nondisagg", "--proxy", serveHTTP(t, ok), "--num-prompts", "60", "--retries-disturbed", "0", "--out", dir)
	if code != ExitFailed || strings.Count(stderr, "no space left on device") != 1 || !strings.Contains(stderr, "kvferry: results are not kept") {
		t.Errorf("exit %d\n%s", code, stderr)
	}
	if !strings.Contains(stdout, "256/q8 TTFT (ms)") || strings.Contains(stdout, "no space") || strings.Contains(stdout, "results:") {
		t.Errorf("stdout:\n%s", stdout)
	}
	records, err := readRecords(dir)
	if err != nil || len(records) < 10 || len(records) >= 60 {
		t.Errorf("%d records on the disk, %v", len(records), err)
	}
}
