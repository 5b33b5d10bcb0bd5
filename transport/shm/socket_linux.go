package shm

import (
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"kvferry/transport"
)

// send sends a message, with a descriptor unless that is negative.
func send(c *net.UnixConn, b []byte, fd int) error {
	var rights []byte
	if fd >= 0 {
		rights = syscall.UnixRights(fd)
	}
	willSend()
	_, _, err := c.WriteMsgUnix(b, rights, nil)
	return err
}

// sendNow sends a message if that takes no waiting, also beside a send that waits.
func sendNow(c *net.UnixConn, b []byte) error {
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := rc.Control(func(fd uintptr) {
		failed = unix.Sendto(int(fd), b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	}); err != nil {
		return err
	}
	return failed
}

// receive reads a message. A descriptor that came with it is put into fd, which is nil where none may come.
// One that does not fit is a breach of the protocol.
func receive(c *net.UnixConn, b []byte, fd *int) (int, error) {
	// Room for two, so that a second one is seen: it is closed, not lost.
	rights := make([]byte, unix.CmsgSpace(4*2))
	n, k, flags, _, err := c.ReadMsgUnix(b, rights)
	if err != nil {
		return 0, err
	}
	haveReceived()
	var fds []int
	if k > 0 {
		messages, err := unix.ParseSocketControlMessage(rights[:k])
		if err != nil {
			return 0, os.NewSyscallError("recvmsg", err)
		}
		for i := range messages {
			some, err := unix.ParseUnixRights(&messages[i])
			if err == nil {
				fds = append(fds, some...)
			}
		}
	}
	if len(fds) == 1 && fd != nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) == 0 {
		*fd = fds[0]
		return n, nil
	}
	for _, d := range fds {
		_ = unix.Close(d)
	}
	switch {
	case len(fds) == 0 && flags&unix.MSG_CTRUNC != 0: // what came could not be taken
		return 0, os.NewSyscallError("recvmsg", unix.EMFILE)
	case len(fds) > 0 || flags&unix.MSG_TRUNC != 0:
		return 0, fmt.Errorf("%w: a message that is too long, or has descriptors", transport.ErrProtocol)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// pidfdOf is a descriptor that tells when the process at the other end of a connection has ended.
func pidfdOf(c *net.UnixConn, pid int) (int, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, failed := -1, error(nil)
	if err := rc.Control(func(s uintptr) {
		fd, failed = unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	}); err != nil {
		return -1, err
	}
	if failed != nil { // older than Linux 6.5
		if fd, err = unix.PidfdOpen(pid, 0); err != nil {
			return -1, os.NewSyscallError("pidfd_open", err)
		}
	}
	return fd, nil
}
