package rail

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/transport/connection"
)

// A visitor is a control connection: who is a client says hello, and is served when
// its turn comes.
type visitor struct {
	lobby *lobby
	conn  net.Conn
	lines *lines
	hello *message
	came  time.Time

	greeted, served atomic.Bool
}

// Standing implements connection.Guest.
func (v *visitor) Standing() connection.Standing {
	return connection.Standing{Busy: v.served.Load(), Known: v.greeted.Load(), Idle: v.came}
}

// Evict implements connection.Guest.
func (v *visitor) Evict(error) { v.lobby.leave(v) }

// A lobby is where visitors wait. They say hello side by side, so that one who does
// not keeps nobody waiting, and are bounded as a rail's connections are.
type lobby struct {
	guests *connection.Admission
	log    func(v *visitor, text string)
	failed chan error    // why no more come
	ready  chan struct{} // cap 1: somebody is in the queue
	wg     sync.WaitGroup

	mu     sync.Mutex
	in     map[*visitor]struct{}
	queue  []*visitor // have said hello, in order
	closed bool
}

const (
	maxVisitors = 64
	maxFromOne  = 16
)

// open receives visitors until the listener is closed.
func (s *Server) open() *lobby {
	l := &lobby{
		guests: connection.NewAdmission(connection.AdmissionConfig{Rail: "the control connection", Max: maxVisitors, PerPeer: maxFromOne, Fixed: true, Logger: s.cfg.Logger}),
		log:    s.say, failed: make(chan error, 1), ready: make(chan struct{}, 1), in: make(map[*visitor]struct{}),
	}
	l.wg.Go(func() {
		for {
			conn, err := s.lis.Accept()
			if err != nil {
				l.failed <- err
				return
			}
			v := &visitor{lobby: l, conn: conn, lines: newLines(conn), came: time.Now()}
			if l.guests.Admit(v, connection.PeerOf(conn.RemoteAddr())) != nil || !l.enter(v) {
				l.leave(v)
				continue
			}
			l.wg.Go(func() { l.greet(v) })
		}
	})
	return l
}

func (l *lobby) enter(v *visitor) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.in[v] = struct{}{}
	}
	return !l.closed
}

func (l *lobby) greet(v *visitor) {
	var err error
	if v.hello, err = greet(v.lines); err != nil {
		if !errors.Is(err, net.ErrClosed) { // by us: it made room
			l.log(v, err.Error())
		}
		l.leave(v)
		return
	}
	v.greeted.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, here := l.in[v]; here {
		l.queue = append(l.queue, v)
		l.wake()
	}
}

func (l *lobby) wake() {
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// next is the client whose turn it is, or nil if nobody waits: ready says when to ask
// again.
func (l *lobby) next() *visitor {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		return nil
	}
	v := l.queue[0]
	l.queue = l.queue[1:]
	v.served.Store(true)
	if len(l.queue) > 0 {
		l.wake()
	}
	return v
}

func (l *lobby) waiting() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) > 0
}

func (l *lobby) leave(v *visitor) {
	_ = v.conn.Close()
	l.guests.Leave(v)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.in, v)
	l.queue = slices.DeleteFunc(l.queue, func(o *visitor) bool { return o == v })
}

// close sends everybody away. The listener is closed.
func (l *lobby) close() {
	l.mu.Lock()
	l.closed = true
	for v := range l.in {
		_ = v.conn.Close()
	}
	l.mu.Unlock()
	l.wg.Wait()
}

// greet reads a connection's hello.
func greet(l *lines) (*message, error) {
	_ = l.conn.SetReadDeadline(time.Now().Add(helloTimeout))
	m, err := l.receive()
	switch {
	case err != nil:
		if errors.Is(err, errNoLine) {
			_ = l.send(&message{Type: "error", Error: "this is a target of kvferry rail bench and check, and that was " + err.Error()})
		}
		return nil, err
	case m.Type != "hello" || m.Protocol != protocol:
		err := fmt.Errorf("this target speaks version %d of the protocol and the client %q version %d: use the same kvferry at both ends", protocol, m.Type, m.Protocol)
		_ = l.send(&message{Type: "error", Protocol: protocol, Error: err.Error()})
		return nil, err
	}
	_ = l.conn.SetReadDeadline(time.Time{})
	return m, nil
}
