package cli

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestMatrixSignals stops kvferry lab matrix under its second client: server and client end, with
// all that they started, the first pair is kept, and the command that is printed goes on.
func TestMatrixSignals(t *testing.T) {
	t.Parallel()
	hangup := make(chan os.Signal, 1) // see TestSignals
	signal.Notify(hangup, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangup) })
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file, out, pids := filepath.Join(dir, "m.yaml"), filepath.Join(dir, "out"), filepath.Join(dir, "pids")
			text := fmt.Sprintf(`servers:
  - {name: s, command: "(sleep 1000 & echo $! >> %[1]s); echo $$ >> %[1]s; echo up; exec sleep 1000", ready: {line: up}}
clients:
  - {name: first, command: "echo 1"}
  - {name: second, command: "test -e %[1]s.go || { sleep 1000 & echo $! >> %[1]s; echo $$ >> %[1]s; echo begun; wait; }"}
`, pids)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd, _, stderr := spawn(t, "lab", "matrix", file, "--out", out)
			await(t, "the second client", func() error {
				said, err := os.ReadFile(filepath.Join(out, "s", "second", "stdout"))
				if err == nil && string(said) != "begun\n" {
					err = fmt.Errorf("it says %q", said)
				}
				return err
			})
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // its status is looked at below
			started, err := os.ReadFile(pids)
			if err != nil {
				t.Fatal(err)
			}
			words := strings.Fields(string(started))
			if len(words) != 6 { // two of each server, and two of the client
				t.Errorf("started: %q", words)
			}
			for _, word := range words {
				pid, err := strconv.Atoi(word)
				if err != nil {
					t.Fatal(err)
				}
				awaitEnd(t, []int{pid})
			}
			resume := "kvferry lab matrix " + file + " --out " + out
			if code := cmd.ProcessState.ExitCode(); sig != syscall.SIGKILL &&
				(code != ExitInterrupted || !strings.Contains(stderr.String(), "interrupted; 1 of 2 pairs are done and kept; go on with: "+resume)) {
				t.Errorf("exit %d: %s", code, stderr)
			}
			if err := os.WriteFile(pids+".go", nil, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd, _, stderr = spawn(t, "lab", "matrix", file, "--out", out)
			if err := cmd.Wait(); err != nil || !strings.Contains(stderr.String(), "1 of 2 pairs are done already") || !strings.Contains(stderr.String(), "pair 2/2 s/second: done") {
				t.Errorf("resumed: %v: %s", err, stderr)
			}
		})
	}
}
