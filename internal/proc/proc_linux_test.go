package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// alive reports whether a process runs: one that nobody has waited for does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// TestDiesWithParent: kill -9 of its parent ends a child that knows nothing of it.
func TestDiesWithParent(t *testing.T) {
	t.Parallel()
	c := role("parent")
	said := make(chan string, 1) // the child's process id
	c.Log = Lines(func(line string) { said <- line })
	parent := start(t, c)
	child := atoi(t, <-said)
	if !alive(child) {
		t.Fatal("there was no child")
	}
	if err := syscall.Kill(parent.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child's end", func() bool { return !alive(child) })
}

// TestGroupIsSwept: what a child leaves of its group ends with it, and by Kill.
func TestGroupIsSwept(t *testing.T) {
	t.Parallel()
	p := start(t, shell("sleep 1000 & echo $!"))
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
	left := atoi(t, p.Tail()[0])
	eventually(t, "the end of what was left", func() bool { return !alive(left) })
	p, left = speaks(t, "sleep 1000 & echo $!; wait")
	p.Kill()
	eventually(t, "the end of what the killed child had started", func() bool { return !alive(left) })
	p, left = speaks(t, "trap : TERM; sleep 1000 & echo $!; wait; cat")
	eventually(t, "the end of what a signal to the group reaches", func() bool {
		p.Signal(syscall.SIGTERM) // again: one that comes before sleep is executed is the shell's, which takes it
		return !alive(left)
	})
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// TestGroupDiesWithParent: kill -9 of its parent ends what a child with Group has started.
func TestGroupDiesWithParent(t *testing.T) {
	t.Parallel()
	c := role("parent of a group")
	said := make(chan string, 1)
	c.Log = Lines(func(line string) { said <- line })
	parent := start(t, c)
	grandchild := atoi(t, <-said)
	if !alive(grandchild) {
		t.Fatal("there was no grandchild")
	}
	if err := syscall.Kill(parent.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the grandchild's end", func() bool { return !alive(grandchild) })
}

// TestGroupHasGrace: what outlives a child with Group that was asked to end may save its work, and
// is killed after Grace.
func TestGroupHasGrace(t *testing.T) {
	t.Parallel()
	const script = `sh -c 'trap "sleep 0.2; echo saved; %s" TERM; echo $$; while :; do sleep 0.02; done' & wait`
	for then, want := range map[string]string{"exit": "<nil>", "trap : TERM": "did not end within 1s and was killed"} {
		said := make(chan string, 2)
		c := shell(fmt.Sprintf(script, then))
		c.Group, c.Stop, c.Log = true, syscall.SIGTERM, Lines(func(line string) { said <- line })
		if then != "exit" {
			c.Grace = time.Second
		}
		p := start(t, c)
		left := atoi(t, <-said)
		if own, err := syscall.Getpgid(p.watcher.cmd.Process.Pid); err != nil || own != p.watcher.cmd.Process.Pid {
			t.Errorf("the watcher is in group %d, where a Ctrl-C reaches it: %v", own, err)
		}
		if err := p.Stop(); fmt.Sprint(err) != want || alive(left) {
			t.Errorf("%s: %v, want %s; is process %d left: %t", then, err, want, left, alive(left))
		}
		if p.watcher.cmd.ProcessState == nil {
			t.Error("the watcher is left")
		}
		if tail := p.Tail(); !slices.Contains(tail, "saved") {
			t.Errorf("%s: %q", then, tail)
		}
	}
}

// speaks starts a child that prints a process id.
func speaks(t *testing.T, script string) (p *Proc, pid int) {
	t.Helper()
	said := make(chan string, 1)
	c := shell(script)
	c.Log = Lines(func(line string) { said <- line })
	p = start(t, c)
	return p, atoi(t, <-said)
}

// TestOutputIsLetGo: a process that has left the group and holds the output open does not
// keep a child from having ended.
func TestOutputIsLetGo(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]string{"0": "<nil>", "3": "exit status 3"} {
		p, left := speaks(t, "setsid sh -c 'echo $$; exec sleep 1000' & read line; exit "+status)
		p.In.Close()
		ended(t, p)
		if err := p.Wait(); fmt.Sprint(err) != want {
			t.Error(err)
		}
		if err := syscall.Kill(left, syscall.SIGKILL); err != nil {
			t.Errorf("it was not left: %v", err)
		}
	}
}

func TestPort(t *testing.T) {
	t.Parallel()
	const table = `  sl  local_address rem_address   st tx_queue rx_queue
   0: 0100007F:3459 00000000:0000 0A 00000000:00000000
   1: 0100007F:345A 0100007F:3459 01 00000000:00000000
`
	if !inTable(table, 0x3459) || inTable(table, 0x345a) || inTable(table, 0x59) || inTable("", 0x3459) {
		t.Error("the kernel's table is not read")
	}
	c := shell("cat")
	c.Port = freePort(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*lookPeriod)
	defer cancel()
	if _, err := Start(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("of a child that does not listen: %v", err)
	}
	for range 20 { // until nobody else takes the port
		port := freePort(t)
		c := role("listens", fmt.Sprintf("127.0.0.1:%d", port))
		c.Port = port
		p, err := Start(t.Context(), c)
		if err == nil {
			if !listens(os.Getpid(), port) {
				t.Error("nothing listens")
			}
			p.Kill()
			return
		}
	}
	t.Error("no child listens")
}

// freePort returns a port at which nothing listens.
func freePort(t *testing.T) int {
	t.Helper()
	for port := 20000 + os.Getpid()%10000; ; port++ {
		if !listens(os.Getpid(), port) {
			return port
		}
	}
}

// TestNamespace: a child runs in the network namespace that it is given, and others do not.
func TestNamespace(t *testing.T) {
	t.Parallel()
	var ns *os.File
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: it stays in the namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			ns, err = os.Open("/proc/thread-self/ns/net")
		}
		made <- err
	}()
	if err := <-made; errors.Is(err, unix.EPERM) {
		t.Skip("SKIPPED: network namespaces take root")
	} else if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	where := func(namespace int) string {
		t.Helper()
		var out strings.Builder
		if err := Run(t.Context(), Cmd{Args: []string{"readlink", "/proc/self/ns/net"}, Out: &out, Namespace: namespace}); err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out.String())
	}
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if other := where(int(ns.Fd())); other == home || !strings.HasPrefix(other, "net:[") {
			t.Fatalf("in %s, as its parent is", other)
		}
		if own := where(0); own != home {
			t.Fatalf("in %s, want %s", own, home)
		}
	}
	if _, err := Start(t.Context(), Cmd{Args: []string{"true"}, Namespace: -1}); !errors.Is(err, unix.EBADF) {
		t.Errorf("in no namespace: %v", err)
	}
}

// TestNothingIsLeft: neither descriptors nor goroutines, however a start goes.
func TestNothingIsLeft(t *testing.T) {
	count := func() [2]int {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return [2]int{len(files), runtime.NumGoroutine()}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	once := func() {
		for _, c := range []Cmd{
			{Args: []string{"/nowhere/no-such-program"}, Hello: true},
			{Args: []string{"/bin/sh", "-c", "exit 3"}, Hello: true},
			{Args: []string{"/bin/sh", "-c", "exit 3"}, Announce: "READY"},
		} {
			if _, err := Start(t.Context(), c); err == nil {
				t.Errorf("%q started", c.Args)
			}
		}
		if _, err := Start(over, Cmd{Args: []string{"/bin/sleep", "1000"}, Hello: true}); err == nil {
			t.Error("a start that was cancelled")
		}
		p, err := Start(t.Context(), Cmd{Args: []string{"/bin/sh", "-c", "echo hello >&3; cat"}, Hello: true})
		if err != nil {
			t.Fatal(err)
		}
		p.Kill()
	}
	once()
	before := count()
	for range 10 {
		once()
	}
	eventually(t, "as many descriptors and goroutines as before", func() bool {
		now := count()
		return now[0] <= before[0] && now[1] <= before[1]
	})
}

func TestUsageOfChild(t *testing.T) {
	t.Parallel()
	p := start(t, shell("cat"))
	if u, err := p.Usage(); err != nil || u.Own+u.Program <= 0 {
		t.Errorf("%+v, %v", u, err)
	}
	p.Kill()
	if u, err := p.Usage(); err == nil {
		t.Errorf("of a child that has ended: %+v", u)
	}
}
