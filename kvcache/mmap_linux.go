package kvcache

import "syscall"

// MapMemory maps n zero bytes outside the Go heap, as a slab has them and a NIC needs
// them; UnmapMemory gives them back. MAP_NORESERVE: the kernel's overcommit heuristic
// would refuse a slab larger than free memory and swap although most of it is
// never touched.
//
// Huge pages where the kernel has them: a virtual machine's first touch of a page
// goes through to its host, and 14 MB in pages of 4 KiB took 50 ms of it, ten
// times as long as the transfer that landed there.
func MapMemory(n int) ([]byte, error) {
	mem, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err == nil {
		_ = syscall.Madvise(mem, syscall.MADV_HUGEPAGE) // EINVAL where they are not built in
	}
	return mem, err
}

// UnmapMemory gives back what MapMemory returned.
func UnmapMemory(mem []byte) error { return syscall.Munmap(mem) }
