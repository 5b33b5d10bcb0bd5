//go:build unix && !linux

package kvcache

import "syscall"

// MapMemory maps n zero bytes outside the Go heap; UnmapMemory gives them back. These
// systems commit anonymous memory on touch without being asked.
func MapMemory(n int) ([]byte, error) {
	return syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
}

// UnmapMemory gives back what MapMemory returned.
func UnmapMemory(mem []byte) error { return syscall.Munmap(mem) }
