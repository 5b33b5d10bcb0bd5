package kvcache

import "syscall"

// mapMemory maps n zero bytes. MAP_NORESERVE: the kernel's overcommit heuristic
// would refuse a slab larger than free memory and swap although most of it is
// never touched.
func mapMemory(n int) ([]byte, error) {
	return syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
}

func unmapMemory(mem []byte) error { return syscall.Munmap(mem) }
