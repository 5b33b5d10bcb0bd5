package shm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"kvferry/transport"
)

// seals are those of every file: who maps it relies on its length, as touching a page beyond the end
// is a SIGBUS.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// A file is memory of this process that others can map.
type file struct {
	id   uint32 // among those of this process
	fd   int
	mem  []byte // whole pages
	huge bool   // of 2 MiB
	base uintptr

	mu    sync.Mutex
	gone  bool
	lends map[*served]struct{} // that have been given it
}

// files are those that are mapped, for finding the one around some memory.
var files struct {
	mu   sync.RWMutex
	last uint32
	all  []*file
}

// Map is a [transport.Allocator] of memory that peers of this package's rails map: a memfd, sealed
// against changes of its length. Like transport.MapMemory's it takes address space only until a page
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
	files.mu.Lock()
	files.last++
	f.id = files.last
	files.all = append(files.all, f)
	files.mu.Unlock()
	return f.mem[:size:size], sync.OnceValue(f.release), nil
}

// newHugeFile makes and maps a file of huge pages, and takes them.
func newHugeFile(size int) (*file, error) {
	f, err := newFile("kvferry", size, unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		return nil, err
	}
	f.huge = true
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
	f := &file{fd: fd, lends: make(map[*served]struct{})}
	if err = unix.Ftruncate(fd, int64(size)); err != nil {
		err = os.NewSyscallError("ftruncate", err)
	} else if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		err = os.NewSyscallError("fcntl", err)
	} else if f.mem, err = mapShared(fd, size); err == nil {
		f.base = uintptr(unsafe.Pointer(unsafe.SliceData(f.mem)))
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

// release gives the memory back, and has the peers that mapped it let go of it.
func (f *file) release() error {
	files.mu.Lock()
	files.all = slices.DeleteFunc(files.all, func(o *file) bool { return o == f })
	files.mu.Unlock()
	f.mu.Lock()
	f.gone = true
	lends := f.lends
	f.lends = nil
	f.mu.Unlock()
	for s := range lends {
		s.forget(f)
	}
	_ = unix.Close(f.fd)
	return unix.Munmap(f.mem)
}

// lend notes that a connection is given the file, and returns a descriptor for it. A file that is
// gone is an error.
func (f *file) lend(s *served) (fd int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone {
		return -1, transport.ErrBadKey
	}
	if fd, err = unix.FcntlInt(uintptr(f.fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return -1, os.NewSyscallError("fcntl", err)
	}
	f.lends[s] = struct{}{}
	return fd, nil
}

func (f *file) isGone() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gone
}

// returned forgets a connection.
func (f *file) returned(s *served) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.lends, s)
}

// fileOf finds the file around memory, and where in it that begins. It is nil for other memory.
func fileOf(mem []byte) (f *file, offset uint64) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	files.mu.RLock()
	defer files.mu.RUnlock()
	for _, f := range files.all {
		if at >= f.base && at-f.base < uintptr(len(f.mem)) && uintptr(len(mem)) <= uintptr(len(f.mem))-(at-f.base) {
			return f, uint64(at - f.base)
		}
	}
	return nil, 0
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
