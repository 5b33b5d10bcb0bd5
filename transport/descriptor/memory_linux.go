package descriptor

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"kvferry/transport/access"
)

// Map maps length bytes of a memfd, from an offset on that need not be aligned. It is sealed against shrinking, as touching
// what is gone is a SIGBUS; one that cannot be sealed is ErrInvalid.
func Map(fd int, offset int64, length int) (mem []byte, release func() error, err error) {
	own, err := take(fd, offset, length)
	if err != nil {
		return nil, nil, err
	}
	page, err := seal(own, offset+int64(length))
	if err != nil {
		_ = unix.Close(own)
		return nil, nil, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	return enter(own, offset, length, page, true)
}

// Reserve has addresses for length bytes of a dma-buf, from an offset on that need not be aligned. They take no memory, and who
// touches what is there gets a SIGSEGV. The first is at the same place of a page as its byte is in the dma-buf,
// as verbs demand.
func Reserve(fd int, offset int64, length int) (mem []byte, release func() error, err error) {
	own, err := take(fd, offset, length)
	if err != nil {
		return nil, nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(own, &st); err == nil && st.Size > 0 && offset+int64(length) > st.Size { // older kernels tell no size
		_ = unix.Close(own)
		return nil, nil, fmt.Errorf("%w: descriptor %d: byte %d of %d", access.ErrInvalid, fd, offset+int64(length), st.Size)
	}
	return enter(own, offset, length, int64(os.Getpagesize()), false)
}

// take duplicates a caller's descriptor, of which a part is meant.
func take(fd int, offset int64, length int) (own int, err error) {
	if fd < 0 || offset < 0 || length < 1 || offset > math.MaxInt64-int64(length) {
		return -1, fmt.Errorf("%w: descriptor %d: %d bytes at offset %d", access.ErrInvalid, fd, length, offset)
	}
	if own, err = duplicate(fd); err != nil {
		return -1, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	return own, nil
}

func duplicate(fd int) (int, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return own, os.NewSyscallError("fcntl", err)
}

// seal makes sure that a file has bytes up to an end, now and later. page is what mappings of it are aligned to.
func seal(fd int, end int64) (page int64, err error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return 0, fmt.Errorf("%w: it is no memfd (F_GET_SEALS: %w)", access.ErrInvalid, err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
			return 0, fmt.Errorf("%w: the memfd may shrink, which would end this process, and cannot be sealed (%w): make it with MFD_ALLOW_SEALING", access.ErrInvalid, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	if end > st.Size {
		return 0, fmt.Errorf("%w: byte %d of %d", access.ErrInvalid, end, st.Size)
	}
	return max(int64(os.Getpagesize()), int64(st.Blksize)), nil // 2 MiB of huge pages
}

// enter takes in what a descriptor stands for, which it uses up.
func enter(own int, offset int64, length int, page int64, mapped bool) (mem []byte, release func() error, err error) {
	from := offset / page * page
	skip := int(offset - from)
	n := (int64(skip+length) + page - 1) / page * page
	var pages []byte
	if mapped {
		pages, err = unix.Mmap(own, from, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	} else {
		pages, err = unix.Mmap(-1, 0, int(n), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	}
	if err != nil {
		_ = unix.Close(own)
		return nil, nil, fmt.Errorf("mapping %d bytes: %w", length, err)
	}
	return pages[skip : skip+length : skip+length], Add(own, pages, from, mapped), nil
}

func giveBack(fd int, pages []byte) error {
	_ = unix.Close(fd)
	return os.NewSyscallError("munmap", unix.Munmap(pages))
}
