package tcp

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"kvferry/transport"
	"kvferry/transport/socket"
)

// look reads what the kernel says of a connection.
func look(c syscall.RawConn) (i info, err error) {
	failed := c.Control(func(fd uintptr) {
		var k *unix.TCPInfo
		if k, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err != nil {
			return
		}
		i = info{
			RTT: time.Duration(k.Rtt) * time.Microsecond, MinRTT: leastRTT(k.Min_rtt), Jitter: 4 * time.Duration(k.Rttvar) * time.Microsecond,
			Segment: int64(k.Advmss), Window: int64(k.Snd_cwnd) * int64(k.Snd_mss), Unacked: int64(k.Unacked) * int64(k.Snd_mss), SlowStart: k.Snd_cwnd < k.Snd_ssthresh, Rate: float64(k.Delivery_rate),
			Sent: uint64(k.Data_segs_out), Resent: lost(k), Received: k.Bytes_received,
		}
		if i.SendBuffer, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF); err != nil {
			return
		}
		if i.RecvBuffer, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil {
			return
		}
		i.SendMost, i.RecvMost = grownByKernel()
		i.Congestion, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	})
	return i, errors.Join(failed, err)
}

// leastRTT is what TCP_INFO has as the least round trip, in us: all ones before there was one
// (include/linux/win_minmax.h).
func leastRTT(us uint32) time.Duration {
	if us == ^uint32(0) {
		return 0
	}
	return time.Duration(us) * time.Microsecond
}

// lost is how many packets were sent again, and not for nothing.
func lost(k *unix.TCPInfo) uint64 { return uint64(max(k.Total_retrans, k.Dsack_dups) - k.Dsack_dups) }

// gauge is what the kernel knows of a connection.
func gauge(c socket.Conn) (f transport.Flow) {
	raw, err := c.SyscallConn()
	if err != nil {
		return f
	}
	_ = raw.Control(func(fd uintptr) {
		if k, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			f = transport.Flow{
				Moved: k.Bytes_acked + k.Bytes_received, RoundTrip: time.Duration(k.Rtt) * time.Microsecond,
				Resent: lost(k),
				Jitter: 4 * time.Duration(k.Rttvar) * time.Microsecond,
				Window: -1,
				// One packet by itself may be acknowledged late, in the hope of data to do it
				// with (RFC 1122, 4.2.3.2).
				Asked:   k.Unacked > 1,
				Unheard: time.Duration(min(k.Last_ack_recv, k.Last_data_recv)) * time.Millisecond,
			}
			if k.Snd_cwnd < k.Snd_ssthresh {
				f.Window = int64(k.Snd_cwnd) * int64(k.Snd_mss)
			}
		}
	})
	return f
}

// setBuffer has a buffer be as large as the kernel lets it: CAP_NET_ADMIN may exceed
// net.core.wmem_max and rmem_max. One that would shrink by it is left alone.
func setBuffer(c syscall.RawConn, option, force, size int) {
	_ = c.Control(func(fd uintptr) {
		// The kernel doubles what it is given.
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, force, size/2) == nil {
			return
		}
		file := "/proc/sys/net/core/wmem_max"
		if option == unix.SO_RCVBUF {
			file = "/proc/sys/net/core/rmem_max"
		}
		now, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, option)
		if most, ok := number(file); err == nil && ok && 2*min(size/2, most) > now {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, size/2)
		}
	})
}

// growReceive has a receive buffer be as large as the kernel would make it by itself, which then
// still does: room for a message is made at once for who waits for all of it (SO_RCVLOWAT).
func growReceive(c syscall.RawConn) {
	_, most := grownByKernel()
	_ = c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, most)
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1)
	})
}

// clampWindow has a connection receive no more than so many bytes ahead of what was read.
func clampWindow(c syscall.RawConn, bytes int64) {
	_ = c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, int(bytes))
	})
}

// apply does what was decided. The error is of congestion control.
func (d decision) apply(c syscall.RawConn) (err error) {
	if d == (decision{}) {
		return nil
	}
	if d.SendBuffer > 0 {
		setBuffer(c, unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, d.SendBuffer)
	}
	if d.RecvGrow {
		growReceive(c)
	}
	if d.RecvBuffer > 0 {
		setBuffer(c, unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, d.RecvBuffer)
	}
	if d.Congestion != "" {
		failed := c.Control(func(fd uintptr) {
			err = os.NewSyscallError("setsockopt TCP_CONGESTION", unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, d.Congestion))
		})
		err = errors.Join(failed, err)
	}
	return err
}

// number reads the last number of a file.
func number(file string) (int, bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(text))
	if len(fields) == 0 {
		return 0, false
	}
	n, err := strconv.Atoi(fields[len(fields)-1])
	return n, err == nil
}

// grownByKernel is to which sizes the kernel grows buffers by itself: the last numbers of
// tcp_wmem and tcp_rmem (its Documentation/networking/ip-sysctl.rst).
var grownByKernel = sync.OnceValues(func() (send, receive int) {
	send, _ = number("/proc/sys/net/ipv4/tcp_wmem")
	receive, _ = number("/proc/sys/net/ipv4/tcp_rmem")
	return send, receive
})
