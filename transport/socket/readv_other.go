//go:build !linux

package socket

import "sync"

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

// first has a buffer while it waits: there is no way here to take one only then.
func (s *socket) first(pool *sync.Pool) (*buffer, int, error) {
	b := pool.Get().(*buffer)
	n, err := s.c.Read(b.mem)
	return b, n, err
}

// There is no lookout here.
func (s *socket) light(bool) {}
func look(int)               {}
