package descriptor

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kvferry/transport/access"
)

// memfd is one of a size, until the test ends.
func memfd(t *testing.T, size int64, flags int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|flags)
	if err == nil {
		t.Cleanup(func() { _ = unix.Close(fd) })
		err = unix.Ftruncate(fd, size)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestMap: a part of a memfd, at any offset, is mapped and found; it is its file's bytes, cannot shrink,
// and stays when the caller has closed the descriptor, until it is released.
func TestMap(t *testing.T) {
	for _, c := range []struct {
		offset int64
		length int
	}{{0, 1}, {0, 40_000}, {1, 39_999}, {4096, 4096}, {5000, 20_000}, {39_999, 1}} {
		fd := memfd(t, 40_000, unix.MFD_ALLOW_SEALING)
		other, err := unix.Dup(fd)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(other)
		mem, release, err := Map(fd, c.offset, c.length)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fd)
		mem[0], mem[c.length-1] = 1, 2
		var b [1]byte
		if _, err := unix.Pread(other, b[:], c.offset+int64(c.length)-1); err != nil || b[0] != 2 {
			t.Errorf("%+v: byte %d in the file: %v", c, b[0], err)
		}
		if err := unix.Ftruncate(other, 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("%+v: it shrinks: %v", c, err)
		}
		m, offset := Of(mem[c.length/2:])
		if m == nil || !m.Mapped || offset != c.offset+int64(c.length/2) || m.ID == 0 {
			t.Fatalf("%+v: its middle is at %d of %+v", c, offset, m)
		}
		if flags, err := unix.FcntlInt(uintptr(m.FD), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%+v: the descriptor stays open when a program is executed: %v", c, err)
		}
		for range 2 {
			if err := release(); err != nil {
				t.Error(err)
			}
		}
		if m, _ := Of(mem); m != nil {
			t.Errorf("%+v: it is found when it is gone", c)
		}
	}
	if m, _ := Of(make([]byte, 10)); m != nil {
		t.Error("memory of the heap is behind a descriptor")
	}
}

// TestMapErrors: what is no memfd, could shrink, is too short or not to be written is refused, and leaves no descriptor open.
func TestMapErrors(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(8192); err != nil {
		t.Fatal(err)
	}
	sealable := memfd(t, 8192, unix.MFD_ALLOW_SEALING)
	sealed := memfd(t, 8192, unix.MFD_ALLOW_SEALING)
	if _, err := unix.FcntlInt(uintptr(sealed), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err != nil {
		t.Fatal(err)
	}
	reader, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", memfd(t, 8192, unix.MFD_ALLOW_SEALING)), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(reader)
	before := descriptors(t)
	for _, c := range []struct {
		name    string
		open    func(int, int64, int) ([]byte, func() error, error)
		fd      int
		offset  int64
		length  int
		invalid bool
		text    string
	}{
		{"a file", Map, int(file.Fd()), 0, 4096, true, "no memfd"},
		{"one without seals", Map, memfd(t, 8192, 0), 0, 4096, true, "MFD_ALLOW_SEALING"},
		{"one to be read", Map, reader, 0, 4096, true, "may shrink"},
		{"one that must not be written", Map, sealed, 0, 4096, false, "mapping"},
		{"beyond the end", Map, sealable, 4096, 4097, true, "byte 8193 of 8192"},
		{"an empty one", Map, memfd(t, 0, unix.MFD_ALLOW_SEALING), 0, 1, true, "byte 1 of 0"},
		{"nothing of it", Map, sealable, 0, 0, true, "0 bytes"},
		{"before its start", Map, sealable, -1, 10, true, "offset -1"},
		{"a sum that overflows", Map, sealable, math.MaxInt64 - 5, 10, true, "offset 9223372036854775802"},
		{"no descriptor", Map, -1, 0, 10, true, "descriptor -1"},
		{"a closed one", Map, 1 << 19, 0, 10, false, "bad file descriptor"},
		{"beyond the end, reserved", Reserve, sealable, 4096, 4097, true, "byte 8193 of 8192"},
		{"nothing, reserved", Reserve, sealable, 0, 0, true, "0 bytes"},
		{"more than there are addresses", Reserve, memfd(t, 0, 0), 0, math.MaxInt64 - 1<<20, false, "mapping"},
	} {
		mem, release, err := c.open(c.fd, c.offset, c.length)
		if err == nil || mem != nil || release != nil || errors.Is(err, access.ErrInvalid) != c.invalid || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %d bytes, %v", c.name, len(mem), err)
		}
	}
	if now := descriptors(t); now != before+3 { // made in the list
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
}

// descriptors is how many this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

// TestReserve: addresses of a part begin at the same place of a page as the part does, take no memory and cannot be touched.
func TestReserve(t *testing.T) {
	fd := memfd(t, 1<<40, unix.MFD_ALLOW_SEALING)
	for _, offset := range []int64{0, 1, 5000, 1 << 20, 1<<39 + 77} {
		mem, release, err := Reserve(fd, offset, 1<<38)
		if err != nil {
			t.Fatal(err)
		}
		if page := uintptr(os.Getpagesize()); address(mem)%page != uintptr(offset)%page {
			t.Errorf("offset %d is at %#x", offset, address(mem))
		}
		if m, at := Of(mem[100:200]); m == nil || m.Mapped || at != offset+100 {
			t.Errorf("offset %d: byte 100 is at %d of %+v", offset, at, m)
		}
		if n, err := unix.Write(memfd(t, 0, 0), mem[:1]); !errors.Is(err, unix.EFAULT) { // as the kernel touches it
			t.Errorf("offset %d: %d bytes are read: %v", offset, n, err)
		}
		if err := release(); err != nil {
			t.Error(err)
		}
	}
}

// TestHugePages: a memfd of huge pages is mapped from the border of one on, and given back whole.
func TestHugePages(t *testing.T) {
	fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		t.Skipf("SKIPPED: no huge pages: %v", err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 4<<20); err != nil {
		t.Fatal(err)
	}
	mem, release, err := Map(fd, 3<<20, 1000)
	if errors.Is(err, unix.ENOMEM) {
		t.Skip("SKIPPED: no huge pages are free: sysctl vm.nr_hugepages=8")
	}
	if err != nil {
		t.Fatal(err)
	}
	mem[999] = 1
	if err := release(); err != nil {
		t.Error(err)
	}
}

// TestLend: who was given the descriptor is told when the memory is released, unless it has returned it; and then nobody
// is given it any more.
func TestLend(t *testing.T) {
	mem, release, err := Map(memfd(t, 4096, unix.MFD_ALLOW_SEALING), 0, 4096)
	if err != nil {
		t.Fatal(err)
	}
	m, _ := Of(mem)
	told := map[string]int{}
	for _, holder := range []string{"a", "b"} {
		fd, err := m.Lend(holder, func() {
			if !m.Gone() {
				t.Error("told before it is gone")
			}
			told[holder]++
		})
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fd)
	}
	m.Return("b")
	if m.Gone() {
		t.Error("gone before it is released")
	}
	if err := release(); err != nil {
		t.Error(err)
	}
	if told["a"] != 1 || told["b"] != 0 {
		t.Errorf("told %v", told)
	}
	if _, err := m.Lend("c", nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("lent when it is gone: %v", err)
	}
}
