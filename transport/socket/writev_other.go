//go:build !linux

package socket

import "net"

type gather struct{ c Conn }

func newGather(c Conn) (*gather, error) { return &gather{c}, nil }

// writev writes the elements of vec, in order, and uses it up.
func (g *gather) writev(vec [][]byte) error {
	bufs := net.Buffers(vec)
	_, err := bufs.WriteTo(g.c)
	return err
}
