//go:build linux

package shm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

func TestMain(m *testing.M) {
	switch transporttest.Role() {
	case "":
		os.Exit(m.Run())
	case "target":
		beTarget()
	case "nobody":
		beNobody()
	case "intruder":
		beIntruder()
	case transport.Write.String():
		beInitiator(transport.Write)
	case transport.Read.String():
		beInitiator(transport.Read)
	}
}

// patience bounds every wait for something that must happen. It is no measure of
// speed: the machine may be busy.
const patience = time.Minute

// movedLen is what is moved over and over while a process is stopped or killed.
const movedLen = 8 << 20

// others is in memory that was taken back.
const others = 9

// beTarget lends memory until it is killed.
func beTarget() {
	mem, _, err := Map(movedLen)
	transporttest.Lend(transporttest.Must(New(Config{Name: "shm/0"})), transporttest.Must(mem, err))
}

// beInitiator moves bytes until it is killed, or the key is bad.
func beInitiator(op transport.Op) {
	var addr string
	var key uint64
	transporttest.Must(fmt.Fscan(os.Stdin, &addr, &key))
	r := transporttest.Must(New(Config{Name: "shm/0"}))
	ep := transporttest.Must(r.Dial(context.Background(), addr))
	local := bytes.Repeat([]byte{1}, movedLen)
	if op == transport.Read {
		local = local[:runBytes] // one announcement: what comes after it sees nothing of the one before
	}
	done := make(chan error)
	for i := 0; ; i++ {
		s := transport.NewSlice(op, local, transport.Key(key), 0, func(_ *transport.Slice, err error) { done <- err })
		_, err := ep.Post([]*transport.Slice{s})
		if err == nil {
			err = <-done
		}
		if err != nil {
			fmt.Println("ended:", err)
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}
		if i == 0 {
			fmt.Println("busy")
		}
		if op == transport.Read && bytes.IndexByte(local, others) >= 0 {
			fmt.Println("what is somebody else's was read, and counts")
			os.Exit(1)
		}
	}
}

// left are the files of this package that the process has open or mapped, and what there is of it in
// /dev/shm.
func left(t *testing.T) (all []string) {
	t.Helper()
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.Contains(to, "memfd:kvferry") {
			all = append(all, to)
		}
	}
	named, _ := filepath.Glob("/dev/shm/*kvferry*")
	for range mappings(t) {
		all = append(all, "a mapping")
	}
	return append(all, named...)
}

// TestKilledTarget: what is on its way to a process that is killed ends at once, and nothing of its
// memory is left.
func TestKilledTarget(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	child, addr, key := transporttest.StartTarget(t)
	r := newRail(t)
	defer r.Close()
	own := len(left(t)) // the rail's bell
	ep, err := r.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	local := make([]byte, movedLen)
	begun := false
	for deadline := time.Now().Add(patience); ; {
		s := transport.NewSlice(transport.Write, local, key, 0, func(_ *transport.Slice, err error) { ended <- err })
		if _, err = ep.Post([]*transport.Slice{s}); err == nil {
			err = <-ended
		}
		if err != nil {
			break
		}
		if !begun { // it is mapped: now it is killed, with copies under way
			begun = true
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("copies to a killed process never end")
		}
	}
	if !begun || !errors.Is(err, transport.ErrUnreachable) {
		t.Errorf("killed after a first copy (%t): %v", begun, err)
	}
	_ = child.Wait()
	if _, err := r.Dial(t.Context(), addr); !errors.Is(err, transport.ErrUnreachable) {
		t.Errorf("dial of the killed process: %v", err)
	}
	if err := ep.Close(); err != nil {
		t.Error(err)
	}
	if some := left(t); len(some) > own {
		t.Errorf("its memory is left: %v", some)
	}
}

// A busyPeer is a process that copies all the time, from or to a region here.
type busyPeer struct {
	t     *testing.T
	r     *Rail
	log   *clocktest.Log
	mem   []byte
	key   transport.Key
	child *exec.Cmd
	out   *bufio.Reader
	s     *served
}

func newBusyPeer(t *testing.T, op transport.Op, allocate transport.Allocator) *busyPeer {
	t.Helper()
	available(t)
	transporttest.CheckLeaks(t)
	x := &busyPeer{t: t}
	x.r, x.log = loggedRail(t)
	var err error
	t.Cleanup(func() { _ = x.r.Close() })
	x.r.HandleImmediates(func(transport.Key, transport.Imm) error { return nil })
	var release func() error
	if x.mem, release, err = allocate(movedLen); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.r.Close(); _ = release() })
	if x.key, err = x.r.Register(x.mem, transport.Whole(movedLen)); err != nil {
		t.Fatal(err)
	}
	var in io.Writer
	x.child, in, x.out = transporttest.StartRole(t, op.String())
	if _, err := fmt.Fprintln(in, x.r.Addr(), uint64(x.key)); err != nil {
		t.Fatal(err)
	}
	if line, err := x.out.ReadString('\n'); line != "busy\n" {
		t.Fatal(line, err)
	}
	x.r.mu.Lock()
	for s := range x.r.conns {
		x.s = s
	}
	x.r.mu.Unlock()
	return x
}

func (x *busyPeer) signal(sig syscall.Signal) {
	x.t.Helper()
	if err := x.child.Process.Signal(sig); err != nil {
		x.t.Fatal(err)
	}
}

// stop stops the peer in the middle of a copy.
func (x *busyPeer) stop() {
	x.t.Helper()
	for deadline := time.Now().Add(patience); ; x.signal(syscall.SIGCONT) {
		x.signal(syscall.SIGSTOP)
		for { // until all its threads stand
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", x.child.Process.Pid))
			if err != nil {
				x.t.Fatal(err)
			}
			if strings.Contains(string(stat), "State:\tT") {
				break
			}
			runtime.Gosched()
		}
		if a, _ := x.s.announced(); a != 0 {
			return
		}
		if time.Now().After(deadline) {
			x.t.Fatal("it never stops in the middle of a copy")
		}
	}
}

// told waits for a line of the log.
func (x *busyPeer) told(text string) {
	x.t.Helper()
	for deadline := time.Now().Add(patience); !strings.Contains(x.log.String(), text); runtime.Gosched() {
		if time.Now().After(deadline) {
			x.t.Fatalf("the log never says %q: %s", text, x.log.String())
		}
	}
}

func (x *busyPeer) deregister() chan error {
	done := make(chan error, 1)
	go func() { done <- x.r.Deregister(x.key) }()
	return done
}

// ends waits for what must happen.
func ends[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("%s never ends", what)
	}
	return v
}

// unmoved fails if bytes have landed in memory that was cleared.
func (x *busyPeer) unmoved() {
	x.t.Helper()
	if !bytes.Equal(x.mem, make([]byte, movedLen)) {
		x.t.Error("bytes landed after Deregister")
	}
}

// TestStoppedWriter: memory is not given back while a writer stands in the middle of a copy: only when it
// has gone on and ended that, or has died.
func TestStoppedWriter(t *testing.T) {
	for _, end := range []syscall.Signal{syscall.SIGCONT, syscall.SIGKILL} {
		t.Run(end.String(), func(t *testing.T) {
			x := newBusyPeer(t, transport.Write, Map)
			x.stop()
			done := x.deregister()
			x.told("has stopped in the middle of a WRITE")
			if !strings.Contains(x.log.String(), fmt.Sprintf("pid=%d", x.child.Process.Pid)) {
				t.Errorf("the log does not name process %d: %s", x.child.Process.Pid, x.log.String())
			}
			select {
			case err := <-done:
				t.Fatalf("the memory is given back (%v) while a writer may go on", err)
			default:
			}
			x.signal(end)
			if err := ends(t, done, "Deregister"); err != nil {
				t.Error(err)
			}
			clear(x.mem)
			if end == syscall.SIGCONT {
				if line, err := x.out.ReadString('\n'); err != nil || !strings.HasPrefix(line, "ended:") {
					t.Errorf("the writer says %q, %v", line, err)
				}
			}
			x.unmoved()
		})
	}
}

// TestStoppedReader: a reader that has stopped is not waited for, and what it then has does not count.
func TestStoppedReader(t *testing.T) {
	x := newBusyPeer(t, transport.Read, Map)
	x.stop()
	if err := ends(t, x.deregister(), "Deregister"); err != nil {
		t.Error(err)
	}
	for i := range x.mem {
		x.mem[i] = others
	}
	x.signal(syscall.SIGCONT)
	if line, err := x.out.ReadString('\n'); err != nil || !strings.HasPrefix(line, "ended:") {
		t.Errorf("the reader says %q, %v", line, err)
	}
}

// TestCloseBesideStopped: a rail that is closed does not wait for ever for a writer that stands in the middle of
// a copy: its Close, and a Deregister that waits, name it.
func TestCloseBesideStopped(t *testing.T) {
	x := newBusyPeer(t, transport.Write, Map)
	x.r.patience = 2 * stallGrace
	x.stop()
	done := x.deregister()
	x.told("has stopped in the middle of a WRITE")
	want := fmt.Sprintf("process %d has stopped in the middle of a WRITE", x.child.Process.Pid)
	if err := x.r.Close(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Close: %v", err)
	}
	if err := ends(t, done, "Deregister"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Deregister: %v", err)
	}
	if x.s.dead() {
		t.Error("a Deregister that has seen the copy takes the writer for dead")
	}
}

// TestKilledInitiator: a process that is killed in the middle of copies leaves nothing behind, and
// nothing of it lands any more.
func TestKilledInitiator(t *testing.T) {
	for name, allocate := range map[string]transport.Allocator{"mapped": Map, "attached": transport.MapMemory} {
		t.Run(name, func(t *testing.T) {
			x := newBusyPeer(t, transport.Write, allocate)
			if err := x.child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := ends(t, x.deregister(), "Deregister"); err != nil {
				t.Error(err)
			}
			clear(x.mem)
			ends(t, x.s.over, "its connection")
			x.unmoved()
			if some := left(t); len(some) > map[string]int{"mapped": 4, "attached": 2}[name] { // the memory itself and the rail's bell, and their descriptors
				t.Errorf("left behind: %v", some)
			}
		})
	}
}
