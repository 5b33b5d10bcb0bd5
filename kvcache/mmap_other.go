//go:build unix && !linux

package kvcache

import "syscall"

// mapMemory maps n zero bytes. These systems commit anonymous memory on touch
// without being asked.
func mapMemory(n int) ([]byte, error) {
	return syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
}

func unmapMemory(mem []byte) error { return syscall.Munmap(mem) }
