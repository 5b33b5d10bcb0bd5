//go:build unix && !linux

package pages

import "golang.org/x/sys/unix"

// Map maps n zero bytes. These systems commit anonymous memory on touch without being
// asked.
func Map(n int) ([]byte, error) {
	return unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

// Unmap gives them back.
func Unmap(mem []byte) error { return unix.Munmap(mem) }
