package wire

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A conn is one connection. Who calls it is the goroutine of the request that has it, and
// the poller.
type conn struct {
	poller *poller
	addr   netip.AddrPort
	up     chan error    // one: the connection is there, or why not
	rested time.Duration // since when it rests; the transport's

	mu        sync.Mutex
	fd        int // -1 when closed
	isUp      bool
	call      *call // nil at rest
	hasRested bool
	unsent    []byte
	answer    answer

	left   uint32 // events that the last read did not serve to the end
	queued bool   // in poller.more; the poller's own
}

// begin sends a request, as far as there is room for it; the poller does the rest. It
// reports false, and nothing is sent, if the connection is gone: one that has rested may
// have been closed by the server, of which the poller is told only when it is its turn.
func (c *conn) begin(over *call, request []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return false
	}
	if c.hasRested {
		if err := c.silent(); err != nil {
			c.end(err)
			return false
		}
	}
	c.call, c.unsent = over, request
	c.answer.reset()
	if err := c.write(); err != nil {
		c.end(err)
	}
	return true
}

// silent looks whether nothing has come on a connection at rest: no end, and no bytes, which
// would be taken for the next answer. It takes nothing out, and 0.3 us.
func (c *conn) silent() error {
	var b [1]byte
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(c.fd), uintptr(unsafe.Pointer(&b[0])), 1, unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
		return nil
	case errno != 0:
		return os.NewSyscallError("recvfrom", errno)
	case n == 0:
		return errGone
	}
	return errExtra
}

// errGone is of a connection that the server closed before anything of the answer came.
var errGone = errors.New("the server closed the connection")

// write sends what is unsent until there is no more room.
func (c *conn) write() error {
	for len(c.unsent) > 0 {
		sending(c.fd)
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(c.fd), uintptr(unsafe.Pointer(&c.unsent[0])), uintptr(len(c.unsent)), unix.MSG_NOSIGNAL, 0, 0)
		switch errno {
		case 0:
			c.unsent = c.unsent[n:]
		case unix.EINTR:
		case unix.EAGAIN:
			return nil
		default:
			return os.NewSyscallError("send", errno)
		}
	}
	c.unsent = nil
	return nil
}

// served handles events, and those that an earlier call left. It reports whether the socket may have
// more to read, which epoll does not report again: the poller then calls served once more.
func (c *conn) served(events uint32) (more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	events |= c.left
	c.left = 0
	if c.fd < 0 {
		return false
	}
	if !c.isUp && !c.connected(events) {
		return false
	}
	if events&unix.EPOLLOUT != 0 && c.unsent != nil {
		if err := c.write(); err != nil {
			// The server may have answered before it closed: a refusal of a long prompt.
			c.unsent = nil
			c.answer.last = true
		}
	}
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		if c.read(events) {
			c.left = events &^ unix.EPOLLOUT
		}
	}
	return c.left != 0
}

// connected tells up how the connecting went. It reports whether there is a connection.
func (c *conn) connected(events uint32) bool {
	if events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) == 0 {
		return false
	}
	errno, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && errno != 0 {
		err = unix.Errno(errno)
	}
	c.isUp = err == nil
	select {
	case c.up <- err:
	default: // it is told already
	}
	return c.isUp
}

// maxReads bounds the reads of one connection in a row. A server that writes as fast as it is read
// would otherwise keep the connection's lock, which whoever ends the request waits for, and the
// poller from its other connections.
const maxReads = 4

// read reads what has arrived, and reports whether it stopped at maxReads before the socket was empty. A
// read that does not fill the buffer has emptied the socket, and needs no other to say so, unless the
// connection's end stands behind it.
func (c *conn) read(events uint32) (more bool) {
	p := c.poller
	for reads := 0; c.fd >= 0; reads++ {
		if reads == maxReads {
			return true
		}
		n, late, err := p.receive(c.fd)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false
		case err != nil:
			c.end(os.NewSyscallError("recvmsg", err))
			return false
		case n == 0:
			c.ended()
			return false
		case c.call == nil:
			c.end(errExtra)
			return false
		}
		over, err := c.answer.feed(p.buffer[:n], p.transport.cfg.Now(), late, c.call.handler)
		switch {
		case err != nil:
			c.end(err)
			return false
		case over:
			c.finish()
		}
		if n < readSize && events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) == 0 {
			return false
		}
	}
	return false
}

// ended: the server has closed the connection.
func (c *conn) ended() {
	switch {
	case c.call == nil:
		c.close()
		c.poller.transport.forget(c)
	case c.answer.state == atHead && len(c.answer.line) == 0:
		c.end(fmt.Errorf("%w without an answer: %w", errGone, io.ErrUnexpectedEOF))
	default:
		err := c.answer.closed()
		if err != nil {
			err = fmt.Errorf("%w in its answer: %w", errGone, err)
		}
		c.end(err)
	}
}

// finish: the answer is whole.
func (c *conn) finish() {
	if c.answer.last || c.unsent != nil {
		c.end(nil)
		return
	}
	over := c.call
	c.call, c.hasRested = nil, true
	c.poller.transport.rest(c)
	over.over <- nil
}

// end closes the connection; the request that has it, if any, is over with err.
func (c *conn) end(err error) {
	c.close()
	if c.call == nil {
		c.poller.transport.forget(c)
		return
	}
	over := c.call
	c.call, c.unsent = nil, nil
	over.over <- err
}

// fail ends the connection and what it has, from outside.
func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(err)
}

// close closes the descriptor, once.
func (c *conn) close() {
	if c.fd < 0 {
		return
	}
	p := c.poller
	p.mu.Lock()
	delete(p.conns, int32(c.fd))
	p.mu.Unlock()
	unix.Close(c.fd) // epoll forgets it with that
	c.fd = -1
}
