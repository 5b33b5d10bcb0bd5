//go:build !linux

package tcp

import (
	"net"
	"syscall"
)

// control leaves the system's defaults: only Linux lets a socket choose its
// congestion control.
func (cfg *Config) control(_, _ string, _ syscall.RawConn) error { return nil }

type socket struct{ c *net.TCPConn }

func newSocket(c *net.TCPConn) (*socket, error) { return &socket{c}, nil }

func (s *socket) readv(dst [][]byte, tail []byte) (int, error) {
	for _, b := range dst {
		if len(b) > 0 {
			tail = b
			break
		}
	}
	n, err := s.c.Read(tail)
	haveRead(dst, n)
	return n, err
}
