package socket

import (
	"io"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A gather writes a connection with writev. It is for one goroutine at a time. The net
// package has the same, but keeps the list of elements with each connection for ever.
type gather struct {
	rc  syscall.RawConn
	vec [][]byte // not written yet
	iov *elements
	err error

	write func(fd uintptr) bool // tryWritev, made once
}

func newGather(c Conn) (*gather, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	g := &gather{rc: rc}
	g.write = g.tryWritev
	return g, nil
}

// writev writes the elements of vec, in order, and uses it up.
func (g *gather) writev(vec [][]byte) error {
	g.vec, g.err = vec, nil
	g.iov = elementsPool.Get().(*elements)
	err := g.rc.Write(g.write)
	g.iov.clear()
	elementsPool.Put(g.iov)
	clear(vec) // keeps no memory alive
	g.vec, g.iov = nil, nil
	if err != nil {
		return err
	}
	return g.err
}

// tryWritev is false if the rest must wait until there is room.
func (g *gather) tryWritev(fd uintptr) bool {
	for {
		g.iov.clear()
		for _, b := range g.vec {
			if g.iov.n == maxIov {
				break
			}
			if len(b) > 0 {
				g.iov.add(b)
			}
		}
		if g.iov.n == 0 {
			return true
		}
		n, _, errno := unix.Syscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&g.iov.of)), uintptr(g.iov.n))
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			return false
		case errno != 0:
			g.err = os.NewSyscallError("writev", errno)
			return true
		case n == 0:
			g.err = io.ErrUnexpectedEOF
			return true
		}
		for left := int(n); left > 0; {
			m := min(left, len(g.vec[0]))
			left -= m
			g.vec = consume(g.vec, m)
		}
		look(int(n))
	}
}
