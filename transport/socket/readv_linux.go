package socket

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxIov is the kernel's limit of elements in one readv (UIO_MAXIOV).
const maxIov = 1024

// iovBytes bounds what one readv asks for: the kernel copies in the list of
// elements each time, however few bytes have come.
const iovBytes = 1 << 20

// A socket reads a connection with readv. It is for one goroutine, but for light.
type socket struct {
	c   Conn
	rc  syscall.RawConn
	iov *elements // of the readv under way
	n   int
	err error

	pool *sync.Pool // of the first under way
	b    *buffer    // of it, with n bytes

	read, begin func(fd uintptr) bool // tryReadv and tryFirst, made once

	// See lookout.
	listed atomic.Bool // changed with the lookout's mu
	waits  atomic.Bool // it is in first
	fd     int32       // that it is listed with; guarded by the lookout's mu
}

// elements are those of one readv, 16 KiB of them.
type elements struct {
	of [maxIov]unix.Iovec
	n  int
}

var elementsPool = sync.Pool{New: func() any { return new(elements) }}

func newSocket(c Conn) (*socket, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &socket{c: c, rc: rc}
	s.read, s.begin = s.tryReadv, s.tryFirst
	return s, nil
}

func (s *socket) readv(dst [][]byte, tail []byte) (int, error) {
	s.iov = elementsPool.Get().(*elements)
	sum := 0
	for _, b := range dst {
		if s.iov.n == maxIov || sum >= iovBytes {
			tail = nil
			break
		}
		if len(b) > 0 {
			s.iov.add(b)
			sum += len(b)
		}
	}
	if len(tail) > 0 && s.iov.n < maxIov {
		s.iov.add(tail)
	}
	err := s.rc.Read(s.read)
	s.iov.clear()
	elementsPool.Put(s.iov)
	s.iov = nil
	if err != nil {
		return 0, err
	}
	haveRead(dst, s.n)
	look(s.n)
	return s.n, s.err
}

// clear has it keep no memory alive.
func (e *elements) clear() {
	clear(e.of[:e.n])
	e.n = 0
}

func (e *elements) add(b []byte) {
	v := &e.of[e.n]
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
	e.n++
}

// tryReadv is false if there is nothing to read yet.
func (s *socket) tryReadv(fd uintptr) bool {
	for {
		n, _, errno := unix.Syscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&s.iov.of)), uintptr(s.iov.n))
		if errno != unix.EINTR {
			return s.ended("readv", int(n), errno)
		}
	}
}

func (s *socket) first(pool *sync.Pool) (*buffer, int, error) {
	s.pool = pool
	var err error
	for again := true; again; {
		s.waits.Store(true)
		err = s.rc.Read(s.begin)
		again = s.told() && errors.Is(err, os.ErrDeadlineExceeded)
	}
	b := s.b
	s.b = nil
	if err != nil {
		return nil, 0, err
	}
	haveRead(nil, s.n)
	return b, s.n, s.err
}

// tryFirst is false if there is nothing to read yet. It holds no buffer then.
func (s *socket) tryFirst(fd uintptr) bool {
	b := s.pool.Get().(*buffer)
	for {
		n, _, errno := unix.Syscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b.mem))), uintptr(len(b.mem)))
		switch {
		case errno == unix.EINTR:
			continue
		case s.ended("read", int(n), errno):
			s.b = b
			return true
		}
		s.pool.Put(b)
		return false
	}
}

// ended takes what a system call has returned. It is false if there is nothing to read yet.
func (s *socket) ended(call string, n int, errno syscall.Errno) bool {
	switch {
	case errno == unix.EAGAIN:
		return false
	case errno != 0:
		s.n, s.err = 0, os.NewSyscallError(call, errno)
	case n == 0:
		s.n, s.err = 0, io.EOF
	default:
		s.n, s.err = n, nil
	}
	return true
}
