package tcp

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"syscall"
	"testing"
	"time"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// occupied is what the heap's live objects and the goroutines' stacks take, bytes. Memory that
// is free, or the kernel's, is not in it: it does not depend on the machine.
func occupied() int64 {
	for range 3 { // what pools have held goes with the second
		runtime.GC()
	}
	of := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(of)
	return int64(of[0].Value.Uint64() + of[1].Value.Uint64())
}

// enoughFiles skips the test where the process may not have so many open.
func enoughFiles(t testing.TB, n uint64) {
	t.Helper()
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Cur < n {
		t.Skipf("SKIPPED: %d files may be open, and this test needs %d: ulimit -n %[2]d", files.Cur, n)
	}
}

// carry has an endpoint move a batch of small slices, and waits for that.
func carry(t testing.TB, ep transport.Endpoint, op transport.Op, local []byte, key transport.Key, n int) {
	t.Helper()
	var left sync.WaitGroup
	list := make([]*transport.Slice, n)
	size := len(local) / n
	left.Add(n)
	for i := range list {
		list[i] = transport.NewSlice(op, local[i*size:(i+1)*size], key, int64(i*size), func(_ *transport.Slice, err error) {
			if err != nil {
				t.Error(err)
			}
			left.Done()
		})
	}
	if took, err := ep.Post(list); err != nil || took != n {
		t.Fatalf("%d of %d slices posted: %v", took, n, err)
	}
	left.Wait()
}

// settled waits until rails know of no connection any more, and is what is occupied then.
func settled(t testing.TB, routines int, rails ...*Rail) int64 {
	t.Helper()
	known := func() (n int) {
		for _, r := range rails {
			r.tuner.mu.Lock()
			n += len(r.tuner.conns)
			r.tuner.mu.Unlock()
		}
		return n
	}
	for deadline := time.Now().Add(time.Minute); known() > 0 || runtime.NumGoroutine() > routines; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are known, and %d goroutines run, not %d", known(), runtime.NumGoroutine(), routines)
		}
	}
	return occupied()
}

// TestThousandConnections: both ends of a connection that has carried large frames in both directions
// and is at rest now take less than one end may, and what they took is free once they are closed.
// Measured with each end in a process of its own, bytes of heap and stacks a connection, and kB by which
// the process grew:
//
//	                  target          initiator
//	never used        6,100   7 kB    8,500   9 kB
//	used, at rest     9,400  12 kB    9,000  10 kB
//
// before there were pools it was 200,000 for both. The kernel takes 3.5 kB an end besides (Slab of
// /proc/meminfo), and nothing for buffers that are empty.
func TestThousandConnections(t *testing.T) {
	conns := 1000
	if testing.Short() {
		conns = 200
	}
	enoughFiles(t, uint64(2*conns+200))
	transporttest.CheckLeaks(t)
	cfg := Config{Name: "tcp/lo", Listen: "127.0.0.1:0", MaxConns: 2 * conns, ConnsPerPeer: 2 * conns}
	owner, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	owner.HandleImmediates(func(transport.Key, transport.Imm) error { return nil })
	ini := newRail(t, "127.0.0.1:0")
	defer ini.Close()
	mem, local := make([]byte, 1<<20), make([]byte, 1<<20)
	key, err := owner.Register(mem, transport.Whole(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	round := func(before int64) {
		eps := make([]transport.Endpoint, conns)
		for i := range eps {
			if eps[i], err = ini.Dial(t.Context(), owner.Addr()); err != nil {
				t.Fatal(err)
			}
			carry(t, eps[i], transport.Write, local, key, 600) // 512 are a frame
			carry(t, eps[i], transport.Read, local, key, 600)
		}
		each := (occupied() - before) / int64(conns)
		t.Logf("%d bytes a connection at rest, both ends", each)
		if each > restLimit {
			t.Errorf("a connection takes %d bytes at rest, more than %d", each, restLimit)
		}
		for _, ep := range eps {
			carry(t, ep, transport.Write, local[:8], key, 1)
			ep.Close()
		}
	}
	// What goroutines are known by is never freed, but used again: a second round leaves nothing.
	routines := runtime.NumGoroutine()
	round(occupied())
	before := settled(t, routines, ini, owner)
	round(before)
	if left := (settled(t, routines, ini, owner) - before) / int64(conns); left > 256 {
		t.Errorf("%d bytes are left of each connection", left)
	}
}
