package pages

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// three maps three pages, of which the middle one has that protection.
func three(t testing.TB, protection int) []byte {
	t.Helper()
	page := os.Getpagesize()
	mem, release, err := Map(3 * page)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = release() })
	if err := unix.Mprotect(mem[page:2*page], protection); err != nil {
		t.Fatal(err)
	}
	return mem
}

// TestCheck: memory is as its mappings are, by the query of the kernel and by the text of /proc/self/maps.
func TestCheck(t *testing.T) {
	page := os.Getpagesize()
	for _, c := range []struct {
		name             string
		protection       int
		writable, failed bool
	}{
		{"all of it", unix.PROT_READ | unix.PROT_WRITE, true, false},
		{"read-only in the middle", unix.PROT_READ, false, false},
		{"nothing in the middle", unix.PROT_NONE, false, true},
	} {
		mem := three(t, c.protection)
		for _, byText := range []bool{false, true} {
			textOnly = byText
			writable, err := Check(mem[10 : 3*page-10])
			if writable != c.writable || errors.Is(err, ErrGone) != c.failed {
				t.Errorf("%s, by text %v: writable %v, %v", c.name, byText, writable, err)
			}
			if writable, err := Check(mem[:page]); !writable || err != nil {
				t.Errorf("%s, by text %v: the first page: writable %v, %v", c.name, byText, writable, err)
			}
		}
		textOnly = false
	}
	gone, err := unix.MmapPtr(-1, 0, nil, uintptr(3*page), unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.MunmapPtr(gone, uintptr(3*page))
	for _, textOnly = range []bool{false, true} {
		if _, err := Check(unsafe.Slice((*byte)(gone), page)); !errors.Is(err, ErrGone) {
			t.Errorf("unmapped, by text %v: %v", textOnly, err)
		}
	}
	textOnly = false
}

// TestCopy: a copy that meets a protected page is an error, whichever side it is on, with Go's handler of faults and by
// system calls.
func TestCopy(t *testing.T) {
	page := os.Getpagesize()
	good, want := make([]byte, 3*page), bytes.Repeat([]byte("KV"), 3*page/2)
	none, fixed := three(t, unix.PROT_NONE), three(t, unix.PROT_READ)
	for _, by := range []bool{false, true} {
		guarded.Store(by)
		if err := CopyChecked(good, want); err != nil || !bytes.Equal(good, want) {
			t.Errorf("by system calls %v: %v", by, err)
		}
		for name, pair := range map[string][2][]byte{"to nothing": {none, want}, "from nothing": {good, none}, "to read-only memory": {fixed, want}} {
			if err := CopyChecked(pair[0], pair[1]); !errors.Is(err, unix.EFAULT) {
				t.Errorf("%s, by system calls %v: %v", name, by, err)
			}
		}
		if err := CopyChecked(good, fixed); err != nil {
			t.Errorf("from read-only memory, by system calls %v: %v", by, err)
		}
	}
	guarded.Store(false)
}

func BenchmarkCheck(b *testing.B) {
	mem, release, err := Map(1 << 30)
	if err != nil {
		b.Fatal(err)
	}
	defer release()
	crowd := func(n int) {
		for range n { // neighbours that the kernel cannot make one mapping of
			m, err := unix.Mmap(-1, 0, 2*os.Getpagesize(), unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE)
			if err != nil {
				b.Fatal(err)
			}
			_ = unix.Mprotect(m[:os.Getpagesize()], unix.PROT_NONE)
			b.Cleanup(func() { _ = unix.Munmap(m) })
		}
	}
	for _, c := range []struct {
		name string
		more int
		text bool
	}{{"few mappings", 0, false}, {"few, by text", 0, true}, {"10,000", 5000, false}, {"10,000, by text", 0, true}} {
		crowd(c.more)
		b.Run(c.name, func(b *testing.B) {
			textOnly = c.text
			defer func() { textOnly = false }()
			for b.Loop() {
				if _, err := Check(mem); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
