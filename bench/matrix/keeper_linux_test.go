package matrix

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// family is a command with descendants of all kinds, which writes their process ids to a file: one in
// the command's group, one in a session of its own, one whose parent is gone, and one that is all
// of that and ignores signals. deaf is the command's own trap.
func family(t *testing.T, deaf string) (line, pids string) {
	t.Helper()
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	pids = filepath.Join(t.TempDir(), "pids")
	return deaf + `sleep 1000 & echo $! >> ` + pids + `
setsid sleep 1000 & echo $! >> ` + pids + `
(sleep 1000 & echo $! >> ` + pids + `)
(setsid sh -c 'trap "" TERM INT; echo $$ >> ` + pids + `; while :; do sleep 1; done' &)
while [ $(wc -l < ` + pids + `) -lt 4 ]; do sleep 0.02; done
echo $$ >> ` + pids + `
echo all here
wait
`, pids
}

// alive is false of a process that has ended, waited for or not.
func alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.HasPrefix(string(text[bytes.LastIndexByte(text, ')')+1:]), " Z")
}

// members are the processes of a family, once all are there.
func members(t *testing.T, pids string) (all []int) {
	t.Helper()
	await(t, "the family", func() bool {
		text, _ := os.ReadFile(pids)
		all = nil
		for _, line := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(line)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, pid)
		}
		return len(all) == 5
	})
	for _, pid := range all {
		if !alive(pid) {
			t.Fatalf("process %d of %v is not there", pid, all)
		}
	}
	return all
}

// TestNothingLeft: when a process is done, nothing of it is left, whatever ended it: asked to,
// by itself, or deaf to all but kill -9.
func TestNothingLeft(t *testing.T) {
	for name, c := range map[string]struct {
		deaf   string
		ask    bool
		killed bool
	}{
		"asked":     {"", true, true}, // one of the family is deaf
		"all deaf":  {`trap "" TERM; `, true, true},
		"by itself": {"", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			line, pids := family(t, c.deaf)
			if !c.ask {
				line = strings.Replace(line, "\nwait\n", "\nexit 5\n", 1)
				line = strings.Replace(line, "echo all here", "while [ ! -e "+pids+".go ]; do sleep 0.02; done", 1)
			}
			p, err := command{words: []string{"/bin/sh", "-c", line}, within: 300 * time.Millisecond}.start()
			if err != nil {
				t.Fatal(err)
			}
			all := members(t, pids)
			if c.ask {
				p.stop()
			} else {
				writeFile(t, pids+".go", "")
			}
			select {
			case <-p.done:
			case <-time.After(patience):
				t.Fatal("it does not end")
			}
			for _, pid := range all {
				if alive(pid) {
					t.Errorf("process %d of %v is left", pid, all)
				}
			}
			if p.end.Killed != c.killed || p.end.Asked != c.ask || p.end.Error != "" || !c.ask && p.end.Code != 5 {
				t.Errorf("%+v", p.end)
			}
		})
	}
}

// TestGentle: who ends when it is asked to is not killed, also a child that takes its time after
// its parent.
func TestGentle(t *testing.T) {
	said := filepath.Join(t.TempDir(), "said")
	line := `sh -c 'trap "sleep 0.2; echo saved > ` + said + `; exit" TERM; echo ready > ` + said + `; while :; do sleep 0.02; done' & wait`
	p, err := command{words: []string{"/bin/sh", "-c", line}, within: patience}.start()
	if err != nil {
		t.Fatal(err)
	}
	is := func(want string) func() bool {
		return func() bool { text, _ := os.ReadFile(said); return string(text) == want }
	}
	await(t, "the child", is("ready\n"))
	p.stop()
	<-p.done
	if !is("saved\n")() || p.end.Killed {
		t.Errorf("%+v: the child had no time", p.end)
	}
}

// TestKilled: kvferry is killed with -9 under a client. Its keepers end the server and the
// client, with all that they have started, and the next run goes on.
func TestKilled(t *testing.T) {
	serverLine, serverPids := family(t, "")
	clientLine, clientPids := family(t, "")
	path := filepath.Join(t.TempDir(), "m.yaml")
	indent := func(line string) string { return strings.ReplaceAll(line, "\n", "\n      ") }
	writeFile(t, path, fmt.Sprintf(`servers:
  - name: a
    command: |
      %s
    ready: {line: all here}
    stop: {within: 300ms}
clients:
  - name: x
    command: |
      %s
    stop: {within: 300ms}
`, indent(serverLine), indent(clientLine)))
	cmd := exec.Command(os.Args[0], "matrix", path, t.TempDir())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	all := append(members(t, serverPids), members(t, clientPids)...)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	for _, pid := range all {
		await(t, fmt.Sprintf("the end of process %d of %v", pid, all), func() bool { return !alive(pid) })
	}
}

// TestKeeperKilled: a command does not outlive its keeper either, and its end is told.
func TestKeeperKilled(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pid")
	p, err := command{words: []string{"/bin/sh", "-c", "echo $$ > " + pids + "; exec sleep 1000"}, within: patience}.start()
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	await(t, "the command", func() bool {
		text, _ := os.ReadFile(pids)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return pid > 0
	})
	if err := syscall.Kill(p.keeper.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.done
	if p.end.ok() || !strings.Contains(p.end.Error, "its keeper ended") {
		t.Errorf("%+v", p.end)
	}
	await(t, "the command's end", func() bool { return !alive(pid) })
}
