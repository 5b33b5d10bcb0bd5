package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// tcpPair is a connection's two ends.
func tcpPair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); d.Close() })
	return c.(*net.TCPConn), d.(*net.TCPConn)
}

// TestLook has one thread, which moves bulk and never waits: nobody asks the netpoller then. What has
// come meanwhile over a connection of small frames is read within the system calls of bulk.
func TestLook(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	a, b := tcpPair(t)
	small := must(newSocket(b))
	small.light(true)
	defer small.light(false)
	var read atomic.Int64
	ended := make(chan error)
	go func() {
		for {
			buf, n, err := small.first(&streamBuffers)
			if err != nil {
				ended <- err
				return
			}
			streamBuffers.Put(buf)
			read.Add(int64(n))
		}
	}()
	c, d := tcpPair(t)
	out, in := must(newGather(c)), must(newSocket(d))
	bulk := make([]byte, 2*lightBytes)
	rc := must(a.SyscallConn())
	came := func() (seen func() bool) {
		n := read.Load()
		for !small.waits.Load() {
			runtime.Gosched()
		}
		if err := rc.Control(func(fd uintptr) { must(unix.Write(int(fd), []byte{1})) }); err != nil {
			t.Fatal(err)
		}
		return func() bool { return read.Load() > n }
	}
	const rounds = 100
	written, taken := 0, 0
	for range rounds {
		seen := came()
		if err := out.writev([][]byte{bulk}); err != nil {
			t.Fatal(err)
		}
		if seen() {
			written++
		}
		for !seen() {
			runtime.Gosched()
		}
		seen = came()
		for n := 0; n < len(bulk); {
			n += must(in.readv([][]byte{bulk[n:]}, nil))
		}
		if seen() {
			taken++
		}
		for !seen() {
			runtime.Gosched()
		}
	}
	if written < rounds/2 || taken < rounds/2 { // the scheduler is fair, and may let this goroutine go first
		t.Errorf("of %d each, %d were read within a write and %d within a read", rounds, written, taken)
	}
	a.Close()
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// TestLight: a connection is looked at while its frames are small. Nothing is left of those that have
// ended, nor of one whose number another has.
func TestLight(t *testing.T) {
	transporttest.CheckLeaks(t)
	a, b := newRail(t, "127.0.0.1:0"), newRail(t, "127.0.0.1:0")
	mem, local := make([]byte, 1<<20), make([]byte, 1<<20)
	key, err := b.Register(mem, transport.Whole(int64(len(mem))))
	if err != nil {
		t.Fatal(err)
	}
	ep, err := a.Dial(t.Context(), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		bytes  int
		listed int32 // both ends
	}{{4 << 10, 2}, {lightBytes, 2}, {lightBytes + 1, 0}, {1, 2}} {
		done := make(chan error, 1)
		s := transport.NewSlice(transport.Write, local[:c.bytes], key, 0, func(_ *transport.Slice, err error) { done <- err })
		if _, err := ep.Post([]*transport.Slice{s}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if n := sharedLookout.n.Load(); n != c.listed {
			t.Errorf("after %d bytes %d are looked at, want %d", c.bytes, n, c.listed)
		}
	}
	a.Close()
	b.Close()
	if n := sharedLookout.n.Load(); n != 0 || sharedLookout.fd >= 0 {
		t.Errorf("%d are looked at after the end", n)
	}
	c, d := tcpPair(t)
	old := must(newSocket(c))
	old.light(true)
	c.Close()
	other := must(newSocket(d))
	if err := other.rc.Control(func(fd uintptr) { must(0, unix.Dup2(int(fd), int(old.fd))) }); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(old.fd), "the number of c")
	defer f.Close()
	same := must(net.FileConn(f)).(*net.TCPConn)
	defer same.Close()
	next := &socket{c: same, rc: must(f.SyscallConn())}
	next.light(true)
	old.light(false)
	if sharedLookout.of[next.fd] != next || next.fd != old.fd {
		t.Errorf("%d is not looked at any more, which has the number of %d", next.fd, old.fd)
	}
	next.light(false)
	if n := sharedLookout.n.Load(); n != 0 {
		t.Errorf("%d are looked at after the end", n)
	}
}

// TestNotTold: a deadline that is not the lookout's ends a wait, and stays.
func TestNotTold(t *testing.T) {
	_, b := tcpPair(t)
	s := must(newSocket(b))
	s.light(true)
	defer s.light(false)
	b.SetReadDeadline(time.Unix(1, 0))
	for range 2 {
		var late net.Error
		if _, _, err := s.first(&streamBuffers); !errors.As(err, &late) || !late.Timeout() {
			t.Error(err)
		}
	}
}
