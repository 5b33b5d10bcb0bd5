package connection

import (
	"fmt"
	"sync"
	"time"

	"kvferry/transport"
)

// A Conn is a connection that a rail serves. It is compared with others: use a pointer.
type Conn interface {
	// Cut ends it, for a reason, and does not wait for that. It may be called from any
	// goroutine, beside other ends and after them; the first reason stands.
	Cut(why error)
	// Over is closed when nothing of it touches memory any more.
	Over() <-chan struct{}
}

// Served are the connections that a rail serves, by the names that they have said. The
// zero value is none. The methods may be called from any goroutine; no lock is held while
// Fence waits.
type Served struct {
	mu     sync.Mutex
	byName map[transport.Name]Conn
}

// Add files a connection, until Remove. It is ErrProtocol if another has that name: a
// peer makes its names up, and two alike are no accident.
func (s *Served) Add(name transport.Name, c Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName[name] != nil {
		return fmt.Errorf("%w: a second connection says it is %x", transport.ErrProtocol, name)
	}
	if s.byName == nil {
		s.byName = make(map[transport.Name]Conn)
	}
	s.byName[name] = c
	return nil
}

// Remove forgets a connection, if it is the one of that name.
func (s *Served) Remove(name transport.Name, c Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName[name] == c {
		delete(s.byName, name)
	}
}

// errGivenUp is why a connection is fenced.
var errGivenUp = fmt.Errorf("%w: the peer has given it up", transport.ErrUnreachable)

// fenceWithin is how long a fence waits for a connection that was cut. It is over at
// once, unless a hostile peer has two connections fence each other: then neither waits
// for ever.
const fenceWithin = 10 * time.Second

// Fence is a rail's: it ends the connection with this secret, if there is one, and
// returns when that touches nothing any more.
func (s *Served) Fence(secret transport.Secret) {
	s.mu.Lock()
	c := s.byName[secret.Name()]
	s.mu.Unlock()
	if c == nil {
		return
	}
	c.Cut(errGivenUp)
	t := time.NewTimer(fenceWithin)
	defer t.Stop()
	select {
	case <-c.Over():
	case <-t.C:
	}
}
