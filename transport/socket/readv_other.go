//go:build !linux

package socket

type socket struct{ c Conn }

func newSocket(c Conn) (*socket, error) { return &socket{c}, nil }

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
