package socket

import (
	"io"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxIov is the kernel's limit of elements in one readv (UIO_MAXIOV).
const maxIov = 1024

// iovBytes bounds what one readv asks for: the kernel copies in the list of
// elements each time, however few bytes have come.
const iovBytes = 1 << 20

// A socket reads a connection with readv. It is for one goroutine.
type socket struct {
	rc   syscall.RawConn
	iov  []unix.Iovec
	n    int
	err  error
	read func(fd uintptr) bool // tryReadv, made once
}

func newSocket(c Conn) (*socket, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &socket{rc: rc, iov: make([]unix.Iovec, 0, maxIov)}
	s.read = s.tryReadv
	return s, nil
}

func (s *socket) readv(dst [][]byte, tail []byte) (int, error) {
	s.iov = s.iov[:0]
	sum := 0
	for _, b := range dst {
		if len(s.iov) == maxIov || sum >= iovBytes {
			tail = nil
			break
		}
		if len(b) > 0 {
			s.add(b)
			sum += len(b)
		}
	}
	if len(tail) > 0 && len(s.iov) < maxIov {
		s.add(tail)
	}
	err := s.rc.Read(s.read)
	clear(s.iov) // keeps no memory alive
	if err != nil {
		return 0, err
	}
	haveRead(dst, s.n)
	return s.n, s.err
}

func (s *socket) add(b []byte) {
	v := unix.Iovec{Base: unsafe.SliceData(b)}
	v.SetLen(len(b))
	s.iov = append(s.iov, v)
}

// tryReadv is false if there is nothing to read yet.
func (s *socket) tryReadv(fd uintptr) bool {
	for {
		n, _, errno := unix.Syscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(s.iov))), uintptr(len(s.iov)))
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			return false
		case errno != 0:
			s.n, s.err = 0, os.NewSyscallError("readv", errno)
		case n == 0:
			s.n, s.err = 0, io.EOF
		default:
			s.n, s.err = int(n), nil
		}
		return true
	}
}
