//go:build linux

package shm

import (
	"bytes"
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// mappings is how many files of this package this process has mapped.
func mappings(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip("no /proc")
	}
	return strings.Count(string(b), "memfd:kvferry")
}

// TestMap: memory is zero, lazy, sealed and gone when it was released.
func TestMap(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	before := mappings(t)
	for _, size := range []int{1, 4096, 5000, 1 << 40} { // a TiB takes no memory
		mem, release, err := Map(size)
		if err != nil {
			t.Fatal(err)
		}
		if len(mem) != size || mem[0] != 0 || mem[size-1] != 0 {
			t.Errorf("%d bytes: %d of them, not all zero", size, len(mem))
		}
		mem[size-1] = 1
		f, offset := fileOf(mem[size/2:])
		if f == nil || offset != uint64(size/2) {
			t.Fatalf("%d bytes: its middle is at %d", size, offset)
		}
		if err := unix.Ftruncate(f.FD, 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("it shrinks: %v", err)
		}
		for range 2 {
			if err := release(); err != nil {
				t.Error(err)
			}
		}
		if f, _ := fileOf(mem); f != nil {
			t.Error("it is found when it is gone")
		}
	}
	if now := mappings(t); now != before {
		t.Errorf("%d mappings, %d before", now, before)
	}
	for _, size := range []int{0, -1, 1<<63 - 1} {
		if mem, release, err := Map(size); err == nil || mem != nil || release != nil {
			t.Errorf("%d bytes: %d, %v", size, len(mem), err)
		}
	}
	if f, _ := fileOf(make([]byte, 10)); f != nil {
		t.Error("memory of the heap is in a file")
	}
}

// TestMapFile: memory of somebody else's memfd is mapped by peers too, from where in the file it begins; and let go of
// when it is released.
func TestMapFile(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	r := newRail(t)
	defer r.Close()
	f, file := transporttest.Memfd(t, 1<<16)
	mem, release, err := transport.MapFile(int(f.Fd()), 5000, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	key, err := r.Register(mem, transport.Whole(10_000))
	if err != nil {
		t.Fatal(err)
	}
	x := connect(t, r)
	x.greet()
	a, given := x.ask(key)
	if given < 0 || a.file == 0 || a.offset != 5000 || a.length != 10_000 {
		t.Fatalf("descriptor %d, %+v", given, a)
	}
	theirs, err := mapPeer(given)
	if err != nil {
		t.Fatal(err)
	}
	theirs[a.offset] = 7
	if mem[0] != 7 || file[5000] != 7 {
		t.Error("the peer has mapped other memory")
	}
	if err := errors.Join(unix.Munmap(theirs), r.Deregister(key), release()); err != nil {
		t.Error(err)
	}
	if f, _ := x.hear(); f.typ != typeForget || f.file != a.file {
		t.Errorf("when it was released the peer was told %+v", f)
	}
}

// TestHugePages: memory is on huge pages where there are enough, all of which are taken at once, and the peer
// maps them; and on others where there are not.
func TestHugePages(t *testing.T) {
	available(t)
	const size = 3 << 20 // two pages
	mem, release, err := Map(size)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	f, _ := fileOf(mem)
	if !huge(f.FD) {
		t.Skip("SKIPPED: no huge pages are free: sysctl vm.nr_hugepages=8")
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.FD, &st); err != nil {
		t.Fatal(err)
	}
	if st.Blksize != 2<<20 || st.Size != 4<<20 || st.Blocks*512 != 4<<20 {
		t.Errorf("pages of %d bytes, a file of %d, %d of them taken", st.Blksize, st.Size, st.Blocks*512)
	}
	mem[size-1] = 3
	fd, err := unix.Dup(f.FD)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := mapPeer(fd)
	if err != nil {
		t.Fatal(err)
	}
	if b := newMapping(theirs).at(0, size); b[size-1] != 3 {
		t.Error("the peer has other memory")
	}
	if err := unix.Munmap(theirs); err != nil {
		t.Error(err)
	}
	most, free, err := Map(1 << 40)
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	if f, _ := fileOf(most); huge(f.FD) {
		t.Error("a TiB of huge pages")
	}
}

// TestUnsealed: memory that its owner could shrink is not mapped.
func TestUnsealed(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	for _, flags := range []int{unix.MFD_CLOEXEC, unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING} {
		fd, err := unix.MemfdCreate("unsealed", flags)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Ftruncate(fd, controlSize); err != nil {
			t.Fatal(err)
		}
		if _, err := mapPeer(fd); !errors.Is(err, transport.ErrProtocol) {
			t.Errorf("mapped: %v", err)
		}
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[1])
	if _, err := mapPeer(pipe[0]); !errors.Is(err, transport.ErrProtocol) {
		t.Errorf("a pipe is mapped: %v", err)
	}
}

// TestLetGo: memory that its owner has released goes from the peers that mapped it too, while their
// connections live on.
func TestLetGo(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	a, b := newRail(t), newRail(t)
	defer a.Close()
	defer b.Close()
	ep, err := a.Dial(t.Context(), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	before := mappings(t)
	local := bytes.Repeat([]byte{7}, 4096)
	for range 3 {
		mem, release, err := Map(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		key, err := b.Register(mem, transport.Whole(1<<20))
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		if n, err := ep.Post([]*transport.Slice{transport.NewSlice(transport.Write, local, key, 0, func(_ *transport.Slice, err error) { ended <- err })}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if err := <-ended; err != nil || !bytes.Equal(mem[:4096], local) {
			t.Fatalf("%v, or it is not there", err)
		}
		if now := mappings(t); now != before+2 {
			t.Errorf("%d mappings at both ends, %d before: it was not mapped", now, before)
		}
		if err := b.Deregister(key); err != nil {
			t.Error(err)
		}
		if err := release(); err != nil {
			t.Error(err)
		}
		for deadline := time.Now().Add(patience); mappings(t) != before; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("%d mappings, %d before", mappings(t), before)
			}
		}
	}
}

// TestTouch: the bytes of a copy are had as they are, wherever it begins and ends, and no pages beside
// them are taken.
func TestTouch(t *testing.T) {
	available(t)
	const size = 4 << 20
	page := int64(os.Getpagesize())
	for _, c := range [][][2]int64{ // offset, length
		{{0, size}},
		{{1, granule}, {1, granule}},
		{{granule / 2, 3 * granule}, {0, 5 * granule}, {2 * granule, granule}},
		{{size - granule - 1, granule}, {size - granule - 1, granule + 1}},
		{{5, 10}, {page - 1, 2}},
		{{3 * granule, granule}, {6 * granule, granule}, {2*granule + 3, 7*granule - 5}},
	} {
		mem, release, err := Map(size)
		if err != nil {
			t.Fatal(err)
		}
		f, _ := fileOf(mem)
		fd, err := unix.Dup(f.FD)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := mapPeer(fd)
		if err != nil {
			t.Fatal(err)
		}
		m, used := newMapping(theirs), make([]bool, size/page)
		for _, r := range c {
			b := m.at(r[0], r[1])
			if int64(len(b)) != r[1] {
				t.Fatalf("%v: %d bytes", r, len(b))
			}
			b[0], b[len(b)-1] = 5, 6
			if mem[r[0]+r[1]-1] != 6 || r[1] > 1 && mem[r[0]] != 5 {
				t.Errorf("%v is elsewhere", r)
			}
			for at := r[0] / page; at*page < r[0]+r[1]; at++ {
				used[at] = true
			}
		}
		var st unix.Stat_t
		if err := unix.Fstat(f.FD, &st); err != nil {
			t.Fatal(err)
		}
		most := int64(0)
		for _, u := range used {
			if u {
				most++
			}
		}
		if st.Blocks*512 > most*page && page == 4096 && !huge(f.FD) && !hugeShared() {
			t.Errorf("%v takes %d bytes, of %d that are used", c, st.Blocks*512, most*page)
		}
		if err := errors.Join(unix.Munmap(theirs), release()); err != nil {
			t.Error(err)
		}
	}
}

// hugeShared says whether shared memory may come in pages larger than what is touched.
func hugeShared() bool {
	b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
	return err == nil && !strings.Contains(string(b), "[never]") && !strings.Contains(string(b), "[deny]")
}

// withoutFiles has this process have no descriptor left, until the returned function is called.
func withoutFiles(t *testing.T) (enough func()) {
	t.Helper()
	var had unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &had); err != nil {
		t.Fatal(err)
	}
	set := func(files uint64) {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: had.Max}); err != nil {
			t.Fatal(err)
		}
	}
	set(1)
	return func() { set(had.Cur) }
}

// TestWithoutFiles: where one of the two processes has no descriptor left, the connection is lost, and the
// slice may be tried again: neither is its key bad, nor has the peer broken the protocol.
func TestWithoutFiles(t *testing.T) {
	available(t)
	a, b := newRail(t), newRail(t)
	defer a.Close()
	_, key := lend(t, b)
	ep := dial(t, a, b.Addr())
	done := make(chan error, 1)
	enough := withoutFiles(t)
	_, err := ep.Post([]*transport.Slice{transport.NewSlice(transport.Write, make([]byte, 64), key, 0, func(_ *transport.Slice, err error) { done <- err })})
	if err == nil {
		err = ends(t, done, "a slice")
	}
	enough()
	if !errors.Is(err, transport.ErrUnreachable) {
		t.Errorf("the target has no files left: %v", err)
	}

	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns[i] = c.(*net.UnixConn)
	}
	for _, fails := range []bool{true, false} {
		if err := send(conns[0], []byte{1}, 0); err != nil {
			t.Fatal(err)
		}
		enough := func() {}
		if fails {
			enough = withoutFiles(t)
		}
		var b [8]byte
		fd := -1
		_, err := receive(conns[1], b[:], &fd)
		enough()
		if errors.Is(err, unix.EMFILE) != fails || errors.Is(err, transport.ErrProtocol) || (fd < 0) != fails {
			t.Errorf("no files left %v: descriptor %d, %v", fails, fd, err)
		}
		_ = unix.Close(fd)
	}
}
