package rail

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// unfragmented has a socket send datagrams as one packet each, however large the path is said to be
// (ip(7), IP_PMTUDISC_PROBE).
func unfragmented(_, _ string, c syscall.RawConn) (err error) {
	failed := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
		if e := unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE); e == nil {
			err = nil // a socket is of one of the two
		}
	})
	if failed != nil {
		return failed
	}
	return err
}
