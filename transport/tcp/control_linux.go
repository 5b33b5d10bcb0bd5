package tcp

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// control sets a socket's options before it connects or listens. Accepted
// sockets inherit them.
func (cfg *Config) control(_, _ string, rc syscall.RawConn) error {
	var errs [2]error
	err := rc.Control(func(fd uintptr) {
		switch cfg.Congestion {
		case "system":
		case "":
			errs[0] = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, cubic)
		default:
			errs[0] = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, cfg.Congestion)
		}
		if cfg.SendBuffer == 0 {
			return
		}
		errs[1] = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, cfg.SendBuffer)
	})
	// Without them the rail works, slower.
	if errs[0] != nil {
		cfg.Logger.Warn("transport/tcp: congestion control not set", "rail", cfg.Name, "algorithm", cfg.Congestion, "err", os.NewSyscallError("setsockopt", errs[0]))
	}
	if errs[1] != nil {
		cfg.Logger.Warn("transport/tcp: send buffer not set", "rail", cfg.Name, "bytes", cfg.SendBuffer, "err", os.NewSyscallError("setsockopt", errs[1]))
	}
	return err
}
