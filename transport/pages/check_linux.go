package pages

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A query asks the kernel about the mapping around an address: struct procmap_query of linux/fs.h.
type query struct {
	size, flags, address uint64
	start, end, allows   uint64
	_                    [7]uint64 // not asked for
}

const (
	procmapQuery = 3<<30 | uint(unsafe.Sizeof(query{}))<<16 | 'f'<<8 | 17 // Linux 6.11 and later
	mayRead      = 1
	mayWrite     = 2
)

// Check reports whether all of mem may be written. It returns an error that is ErrGone if a part of it is not mapped or
// must not be read. Without /proc it checks nothing. It touches no page. Kernels before 6.11 need time in proportion to
// the mappings of the process, some 2 us each.
func Check(mem []byte) (writable bool, err error) {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return true, nil
	}
	defer maps.Close()
	at := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	q := query{address: at}
	writable = true
	for next, end := mapping(maps), at+uint64(len(mem)); q.address < end; q.address = q.end {
		if !next(&q) {
			return false, fmt.Errorf("%w: nothing is mapped at %#x, in %d bytes at %#x", ErrGone, q.address, len(mem), at)
		}
		if q.allows&mayRead == 0 {
			return false, fmt.Errorf("%w: %#x must not be read, in %d bytes at %#x", ErrGone, q.address, len(mem), at)
		}
		writable = writable && q.allows&mayWrite != 0
	}
	return writable, nil
}

var textOnly bool // in tests

// mapping returns a function that finds the mapping around q.address, which must not be lower than in the call before.
func mapping(maps *os.File) func(q *query) bool {
	var lines *bufio.Scanner
	return func(q *query) bool {
		q.size = uint64(unsafe.Sizeof(*q))
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, maps.Fd(), uintptr(procmapQuery), uintptr(unsafe.Pointer(q)))
		if !textOnly && (errno == 0 || errno == unix.ENOENT) {
			return errno == 0
		}
		if lines == nil {
			lines = bufio.NewScanner(maps)
		}
		for lines.Scan() { // 7f1c2a000000-7f1c2a021000 rw-p ...
			from, rest, _ := strings.Cut(lines.Text(), "-")
			to, allows, _ := strings.Cut(rest, " ")
			q.start, _ = strconv.ParseUint(from, 16, 64)
			if q.end, _ = strconv.ParseUint(to, 16, 64); q.end > q.address {
				q.allows = uint64(strings.Count(allows[:2], "r")*mayRead + strings.Count(allows[:2], "w")*mayWrite)
				return q.start <= q.address
			}
		}
		return false
	}
}

// guarded is set by GuardBySystemCalls.
var guarded atomic.Bool

// GuardBySystemCalls makes CopyChecked independent of this process's handler of SIGSEGV, which a host in another language
// may replace.
func GuardBySystemCalls() { guarded.Store(true) }

// CopyChecked is Copy, by a system call after GuardBySystemCalls where the kernel permits it.
func CopyChecked(dst, src []byte) error {
	if !guarded.Load() || len(dst) == 0 {
		return Copy(dst, src)
	}
	here := []unix.Iovec{{Base: unsafe.SliceData(dst), Len: uint64(len(dst))}}
	there := []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(unsafe.SliceData(src))), Len: len(dst)}}
	switch n, err := unix.ProcessVMReadv(os.Getpid(), here, there, 0); {
	case err == unix.EFAULT || err == nil && n < len(dst):
		return os.NewSyscallError("process_vm_readv", unix.EFAULT)
	case err != nil:
		return Copy(dst, src)
	}
	return nil
}
