//go:build unix && !linux

package pages

import "golang.org/x/sys/unix"

// obtain maps n zero bytes. These systems commit anonymous memory on touch without being
// asked.
func obtain(n int) ([]byte, error) {
	return unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

func giveBack(mem []byte) error { return unix.Munmap(mem) }
