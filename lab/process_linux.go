package lab

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

func newMemoryFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("initrd", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "initrd"), nil
}

// wire returns the ends of a stream. A pair of sockets and not a port: it has no name that
// another lab could have too, and nobody else can connect to it.
func cable() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "wire"), os.NewFile(uintptr(fds[1]), "wire"), nil
}

// channel is a wire with one end for this process. The other is to be inherited, and
// closed here after that: only then does ours end when the heir does.
func channel() (ours net.Conn, theirs *os.File, err error) {
	a, b, err := cable()
	if err != nil {
		return nil, nil, err
	}
	defer a.Close() // FileConn has a duplicate
	ours, err = net.FileConn(a)
	if err != nil {
		b.Close()
		return nil, nil, err
	}
	return ours, b, nil
}
