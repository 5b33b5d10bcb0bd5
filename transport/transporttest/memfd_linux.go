package transporttest

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Memfd is a memfd and all of it, mapped, until the test ends.
func Memfd(t testing.TB, size int) (f *os.File, mem []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	if err == nil {
		mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		t.Fatal(err)
	}
	f = os.NewFile(uintptr(fd), "memfd")
	t.Cleanup(func() {
		_ = unix.Munmap(mem)
		_ = f.Close()
	})
	return f, mem
}
