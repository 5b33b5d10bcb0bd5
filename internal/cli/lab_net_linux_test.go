package cli

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"kvferry/lab/nics"
)

// process starts kvferry lab, and returns when the commands of both hosts have printed
// READY. All of their processes have mark in their environment.
func process(t *testing.T, mark string, args ...string) *exec.Cmd {
	t.Helper()
	if err := nics.Check(); err != nil {
		t.Skipf("no lab here: %v", err)
	}
	cmd := exec.Command(os.Args[0], append([]string{"lab", "net", "--rates", "1gbit,1gbit", "--env", "MARK=" + mark}, args...)...)
	cmd.Env = append(os.Environ(), mainEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	for ready := 0; ready < 2; {
		if !lines.Scan() {
			t.Fatal("the lab ended early")
		}
		if strings.Contains(lines.Text(), "READY") {
			ready++
		}
	}
	return cmd
}

// marked returns the processes of this machine that have MARK=mark, by id.
func marked(t *testing.T, mark string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		env, err := os.ReadFile(f)
		if err != nil || !strings.Contains("\x00"+string(env), "\x00MARK="+mark+"\x00") {
			continue // gone, or another's
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// canaries puts a veth into the network namespace of each process, its other end
// in one of the test's own: where it sings until the first is gone.
func canaries(t *testing.T, pids []int) (alive func() int) {
	t.Helper()
	runtime.LockOSThread() // for good: the test's thread is not used again
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	cage, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netns.Set(home); err != nil {
			t.Fatal(err)
		}
		runtime.UnlockOSThread()
	}()
	t.Cleanup(func() { cage.Close() })
	h, err := netlink.NewHandleAt(cage)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	seen := make(map[string]bool)
	for i, pid := range pids {
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil {
			t.Fatal(err)
		}
		if seen[ns] {
			continue
		}
		seen[ns] = true
		attrs := netlink.NewLinkAttrs()
		attrs.Name = fmt.Sprintf("canary%d", i)
		if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "mine", PeerNamespace: netlink.NsPid(pid)}); err != nil {
			t.Fatal(err)
		}
	}
	return func() int {
		links, err := h.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		return len(links) - 1 // lo
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick, end := time.NewTicker(5*time.Millisecond), time.NewTimer(time.Minute)
	defer tick.Stop()
	defer end.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// TestDeath: however the lab ends, what its commands started ends, in the background
// and in sessions of their own too, and so do the hosts' networks.
func TestDeath(t *testing.T) {
	const script = `echo READY; setsid sh -c 'trap "" TERM HUP INT; sleep 1000; sleep 1000' & sleep 1000 & sleep 1000; sleep 1000`
	for _, c := range []struct {
		signal syscall.Signal
		status int
	}{{syscall.SIGKILL, -1}, {syscall.SIGINT, ExitInterrupted}, {syscall.SIGTERM, ExitInterrupted}} {
		t.Run(c.signal.String(), func(t *testing.T) {
			mark := fmt.Sprintf("%d-%d", os.Getpid(), c.signal)
			cmd := process(t, mark, "--", "sh", "-c", script)
			eventually(t, "all five processes of each host", func() bool { return len(marked(t, mark)) == 10 })
			alive := canaries(t, marked(t, mark))
			if n := alive(); n != 2 {
				t.Fatalf("%d canaries, want one for each host", n)
			}
			if err := cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != c.status {
				t.Errorf("exit status %d, want %d", got, c.status)
			}
			eventually(t, "no process is left", func() bool { return len(marked(t, mark)) == 0 })
			eventually(t, "no network namespace is left", func() bool { return alive() == 0 })
		})
	}
}

// TestNICsExit: what the commands end with is what the lab ends with.
func TestNICsExit(t *testing.T) {
	if err := nics.Check(); err != nil {
		t.Skipf("no lab here: %v", err)
	}
	for script, want := range map[string]int{"exit 0": 0, "[ $KVFERRY_LAB_HOST = 1 ] || exit 9": 9, "kill -15 $$": 143} {
		if code, _, stderr := command(t.Context(), "lab", "net", "--rates", "1gbit", "--", "sh", "-c", script); code != want {
			t.Errorf("%s: exit %d, want %d: %s", script, code, want, stderr)
		}
	}
	// How long a busy machine takes until the hosts are up is not known.
	for limit := 200 * time.Millisecond; ; limit *= 2 {
		code, _, stderr := command(t.Context(), "lab", "net", "--rates", "1gbit", "--timeout", limit.String(), "--", "sleep", "1000")
		if code != exitTimeout {
			t.Fatalf("exit %d: %s", code, stderr)
		}
		if strings.Contains(stderr, "host1 runs") {
			break
		}
		if limit > time.Minute {
			t.Fatal(stderr)
		}
	}
	if code, stdout, stderr := command(t.Context(), "lab", "net", "--rates", "1gbit", "--quiet", "--", "hostname"); code != 0 || stderr != "" || !strings.Contains(stdout, "host2| host2\n") {
		t.Errorf("exit %d: %s, %s", code, stdout, stderr)
	}
}
