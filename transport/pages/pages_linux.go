package pages

import "golang.org/x/sys/unix"

// obtain maps n zero bytes. MAP_NORESERVE: the kernel's overcommit heuristic would refuse
// a pool larger than free memory and swap although most of it is never touched.
//
// Huge pages where the kernel has them: a virtual machine's first touch of a page goes
// through to its host, and 14 MB in pages of 4 KiB took 50 ms of it, ten times as long as
// the transfer that landed there.
func obtain(n int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err == nil {
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // EINVAL where they are not built in
	}
	return mem, err
}

func giveBack(mem []byte) error { return unix.Munmap(mem) }
