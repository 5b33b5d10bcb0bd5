package admission

import (
	"net"
	"sync"
)

// Back is a listener whose connections are those that streams give back.
type Back struct {
	addr   net.Addr
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

// NewBack returns one that says it listens at addr; it opens no socket.
func NewBack(addr net.Addr) *Back {
	return &Back{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// Give hands a connection to the server, or reports that it has ended.
func (b *Back) Give(c net.Conn) bool {
	select {
	case b.conns <- c:
		return true
	case <-b.closed:
		return false
	}
}

// Accept implements [net.Listener].
func (b *Back) Accept() (net.Conn, error) {
	select {
	case c := <-b.conns:
		return c, nil
	case <-b.closed:
		return nil, net.ErrClosed
	}
}

// Addr implements [net.Listener].
func (b *Back) Addr() net.Addr { return b.addr }

// Close implements [net.Listener].
func (b *Back) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}
