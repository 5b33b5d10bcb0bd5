package ahead

import (
	"math"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// roundTrip is a TCP connection's tcpi_min_rtt.
func roundTrip(conn net.Conn) (least time.Duration) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { // of a closed connection nothing is known
		if k, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil && k.Min_rtt < math.MaxUint32 {
			least = time.Duration(k.Min_rtt) * time.Microsecond
		}
	})
	return least
}
