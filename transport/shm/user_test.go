//go:build linux

package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// beNobody is a rail of another user: it serves, and says how its own dial ended.
func beNobody() {
	transporttest.Must(0, transporttest.BeNobody())
	r := transporttest.Must(New(Config{Name: "shm/0"}))
	fmt.Println(r.Addr())
	var addr string
	transporttest.Must(fmt.Fscan(os.Stdin, &addr))
	_, err := r.Dial(context.Background(), addr)
	fmt.Println(err)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// TestOtherUser: processes of two users do not reach each other, whichever begins: the rails know it by
// the address, and each end by what the kernel says. Nobody maps anything.
func TestOtherUser(t *testing.T) {
	available(t)
	transporttest.NeedsRoot(t)
	transporttest.CheckLeaks(t)
	r := newRail(t)
	defer r.Close()
	before := mappings(t)
	_, in, out := transporttest.StartRole(t, "nobody")
	addr, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	addr = strings.TrimSpace(addr)
	if reach, why := r.Route(addr); reach != transport.NoRoute || !strings.Contains(why, "another user's") {
		t.Errorf("the way to another user: %v, %q", reach, why)
	}
	if _, err := r.Dial(t.Context(), addr); !errors.Is(err, transport.ErrUnreachable) || !strings.Contains(err.Error(), "user 65534") {
		t.Errorf("dial of another user: %v", err)
	}
	if _, err := fmt.Fprintln(in, r.Addr()); err != nil {
		t.Fatal(err)
	}
	if line, err := out.ReadString('\n'); err != nil || !strings.Contains(line, "user 0") {
		t.Errorf("another user's dial ends with %q, %v", line, err)
	}
	if now := mappings(t); now != before {
		t.Errorf("%d mappings, %d before", now, before)
	}
}

// beIntruder is another user's process that says hello, whatever the address says, and what it is answered.
func beIntruder() {
	transporttest.Must(0, transporttest.BeNobody())
	var addr string
	transporttest.Must(fmt.Fscan(os.Stdin, &addr))
	c := transporttest.Must(dialSocket(addr))
	var b [maxMessage]byte
	n, err := 0, send(c, appendHello(nil, transport.NewSecret().Name()), -1)
	if err == nil { // else it was hung up on before
		n, err = receive(c, b[:], nil)
	}
	fmt.Println(n, err)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// TestIntruder: another user that speaks as a rail does is hung up on, and is given nothing.
func TestIntruder(t *testing.T) {
	available(t)
	transporttest.NeedsRoot(t)
	transporttest.CheckLeaks(t)
	r, log := loggedRail(t)
	_, in, out := transporttest.StartRole(t, "intruder")
	if _, err := fmt.Fprintln(in, r.Addr()); err != nil {
		t.Fatal(err)
	}
	if line, err := out.ReadString('\n'); err != nil || !strings.HasPrefix(line, "0 ") {
		t.Errorf("another user is answered %q, %v", line, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "another user's process: uid 65534") {
		t.Errorf("the log: %s", log.String())
	}
}

// TestSealed: a peer that was given memory can change nothing about its length, at which all who have it
// mapped would end, nor seal it for its owner; and the owner cannot either.
func TestSealed(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	r := newRail(t)
	defer r.Close()
	mem, key := lend(t, r)
	x := connect(t, r)
	x.greet()
	_, given := x.ask(key)
	if given < 0 {
		t.Fatal("no file was passed")
	}
	defer unix.Close(given)
	own, _ := fileOf(mem)
	for name, fd := range map[string]int{"the peer": given, "the owner": own.FD} {
		more := 2 * int64(len(mem))
		for _, size := range []int64{0, more} {
			if err := unix.Ftruncate(fd, size); !errors.Is(err, unix.EPERM) {
				t.Errorf("%s makes it %d bytes long: %v", name, size, err)
			}
		}
		if err := unix.Fallocate(fd, 0, 0, more); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s makes it longer: %v", name, err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s seals it: %v", name, err)
		}
	}
	mem[len(mem)-1] = 1 // a SIGBUS, were it gone
}
