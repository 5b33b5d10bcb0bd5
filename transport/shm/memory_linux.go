package shm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"kvferry/transport"
	"kvferry/transport/descriptor"
)

// seals are those of every file: who maps it relies on its length, as touching a page beyond the end
// is a SIGBUS.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// A file is a memfd, mapped.
type file struct {
	fd  int
	mem []byte // whole pages
}

// Map is a [transport.Allocator] of memory that peers of this package's rails map: a memfd, sealed
// against changes of its length. (Those of transport.MapFile they map too.) Like transport.MapMemory's it takes address space only until a page
// is touched. It goes when it was released and all peers have let go of it, or ended.
//
// Its pages are huge where enough of 2 MiB were set aside (vm.nr_hugepages); these are taken at once, as one that turns
// out to be missing later, by a limit of a container for example, ends the process that touches it. Or the kernel makes
// them of shared memory (/sys/kernel/mm/transparent_hugepage/shmem_enabled is advise, within_size or always).
func Map(size int) (mem []byte, release func() error, err error) {
	if size < 1 {
		return nil, nil, fmt.Errorf("%w: memory of %d bytes", transport.ErrInvalid, size)
	}
	f, err := newHugeFile(size)
	if err != nil { // none that are set aside, or not enough
		f, err = newFile("kvferry", size, 0)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("shared memory of %d bytes: %w", size, err)
	}
	return f.mem[:size:size], descriptor.Add(f.fd, f.mem, 0, true), nil
}

// newHugeFile makes and maps a file of huge pages, and takes them.
func newHugeFile(size int) (*file, error) {
	f, err := newFile("kvferry", size, unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		return nil, err
	}
	if err := unix.Madvise(f.mem, unix.MADV_POPULATE_WRITE); err != nil {
		return nil, errors.Join(os.NewSyscallError("madvise", err), f.release())
	}
	return f, nil
}

// newFile makes and maps a file of at least size bytes.
func newFile(name string, size, flags int) (*file, error) {
	page := os.Getpagesize()
	if flags&unix.MFD_HUGETLB != 0 {
		page = 2 << 20
	}
	if size > int(^uint(0)>>1)-page {
		return nil, unix.ENOMEM
	}
	size = (size + page - 1) / page * page
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := &file{fd: fd}
	if err = unix.Ftruncate(fd, int64(size)); err != nil {
		err = os.NewSyscallError("ftruncate", err)
	} else if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		err = os.NewSyscallError("fcntl", err)
	} else if f.mem, err = mapShared(fd, size); err == nil {
		return f, nil
	}
	_ = unix.Close(fd)
	return nil, err
}

// mapShared maps a file for reading and writing. Of huge pages that were set aside it is promised what it needs
// now, or it is an error.
func mapShared(fd, size int) ([]byte, error) {
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // EINVAL where they are not built in
	return mem, nil
}

func (f *file) release() error {
	_ = unix.Close(f.fd)
	return unix.Munmap(f.mem)
}

// fileOf is the memfd around memory, and where in it that begins. It is nil for other memory.
func fileOf(mem []byte) (*descriptor.Memory, uint64) {
	m, offset := descriptor.Of(mem)
	if m == nil || !m.Mapped {
		return nil, 0
	}
	return m, uint64(offset)
}

// huge says whether a memfd is of huge pages that were set aside.
func huge(fd int) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && fs.Type == unix.HUGETLBFS_MAGIC
}

// A mapping is a peer's file, mapped here. It is for one goroutine.
type mapping struct {
	mem     []byte
	touched []uint64 // bits: the granules that this process has in its page table
}

// granule is how much of a mapping is had at once. Where pages have 4 KiB, 16 MiB took 22 ms when they were
// touched the first time, of which the copy was 1: each page was a fault of its own.
const granule = 64 << 10

func newMapping(mem []byte) *mapping {
	granules := (len(mem) + granule - 1) / granule
	return &mapping{mem: mem, touched: make([]uint64, (granules+63)/64)}
}

// at is n bytes of the mapping. Their pages are had before they are touched one by one, the first time, if
// there are many: no others, as those that the owner has not used yet would be taken from the machine.
func (m *mapping) at(offset, n int64) []byte {
	end, page := offset+n, int64(os.Getpagesize())
	from := int64(-1)
	for g := offset / granule; n >= granule && g*granule < end; g++ {
		known := m.touched[g/64]&(1<<(g%64)) != 0
		if !known && from < 0 {
			from = max(offset, g*granule)
		}
		if g*granule >= offset && (g+1)*granule <= end {
			m.touched[g/64] |= 1 << (g % 64)
		}
		if last := (g+1)*granule >= end; from >= 0 && (known || last) {
			to := g * granule
			if !known {
				to = end
			}
			// EINVAL before Linux 5.14: then they are had one by one.
			_ = unix.Madvise(m.mem[from/page*page:min((to+page-1)/page*page, int64(len(m.mem)))], unix.MADV_POPULATE_WRITE)
			from = -1
		}
	}
	return m.mem[offset:end]
}

// mapPeer maps a file that a peer has passed, after looking at its seals. It uses fd up.
func mapPeer(fd int) (mem []byte, err error) {
	defer unix.Close(fd)
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || have&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("%w: the peer's memory is not sealed against shrinking (%v)", transport.ErrProtocol, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if st.Size <= 0 || st.Size > 1<<46 {
		return nil, fmt.Errorf("%w: the peer's memory is %d bytes long", transport.ErrProtocol, st.Size)
	}
	return mapShared(fd, int(st.Size))
}
