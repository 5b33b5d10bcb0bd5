package cma

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// TestCopy: pieces of all sizes, many and few, arrive where they belong.
func TestCopy(t *testing.T) {
	available(t)
	rng := rand.New(rand.NewPCG(1, 2))
	from := make([]byte, 40<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(from) // never fails
	m := memory{pid: os.Getpid()}
	for _, c := range []struct{ pieces, most int }{
		{1, 1}, {1, 3 * partBytes}, {1, 33 << 20}, {3, partBytes}, {500, 16 << 10}, {3 * 1024, 7}, {3 * 1024, 6000}, {0, 1},
	} {
		dst := make([][]byte, c.pieces)
		at := make([]uint64, c.pieces)
		want := make([][]byte, c.pieces)
		for i := range dst {
			n := 1 + rng.IntN(c.most)
			if c.pieces == 1 {
				n = c.most
			}
			off := rng.IntN(len(from) - n)
			dst[i], at[i], want[i] = make([]byte, n), addressOf(from[off:]), from[off:off+n]
		}
		if err := m.Copy(dst, at); err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		for i := range dst {
			if !bytes.Equal(dst[i], want[i]) {
				t.Fatalf("%+v: piece %d went astray", c, i)
			}
		}
		for i := range m.parts {
			if m.parts[i].Len() != 0 {
				t.Fatalf("%+v: part %d is left over", c, i)
			}
		}
	}
}

// TestCopyFaults: memory that is not mapped, in part or whole, and processes that have
// ended are errors, and the next copy is none the worse.
func TestCopyFaults(t *testing.T) {
	available(t)
	page := os.Getpagesize()
	mapped, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mapped) }()
	if err := unix.Mprotect(mapped[page:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	m := memory{pid: os.Getpid()}
	for name, at := range map[string]uint64{"nothing": 8, "half": addressOf(mapped) + uint64(page)/2, "beyond": 1<<64 - 8} {
		if err := m.Copy([][]byte{make([]byte, 8), make([]byte, page)}, []uint64{addressOf(mapped), at}); !errors.Is(err, unix.EFAULT) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := m.Copy([][]byte{make([]byte, page)}, []uint64{addressOf(mapped)}); err != nil {
		t.Error(err)
	}
	gone := memory{pid: 1 << 30}
	if err := gone.Copy([][]byte{make([]byte, 8)}, []uint64{addressOf(mapped)}); !errors.Is(err, unix.ESRCH) || !strings.Contains(err.Error(), "it has ended") {
		t.Errorf("no process: %v", err)
	}
}
