package rail

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/transport/connection"
)

// A visitor is a control connection to a Server. A client says hello, and is served when its turn comes.
type visitor struct {
	conn  net.Conn
	lines *lines
	came  time.Time
	ctx   context.Context // ends with the server's Serve, and when the visitor has to make room
	leave context.CancelFunc

	greeted, served atomic.Bool
}

// Standing implements connection.Guest.
func (v *visitor) Standing() connection.Standing {
	return connection.Standing{Busy: v.served.Load(), Known: v.greeted.Load(), Idle: v.came}
}

// Evict implements connection.Guest.
func (v *visitor) Evict(error) { v.leave() }

const (
	maxVisitors = 64
	maxFromOne  = 16
)

// accept serves every incoming connection until end is called or ctx is done, and returns when all have ended. The error is that
// of accepting. Clients say hello side by side, so that one who does not keeps nobody waiting, and are bounded as a rail's
// connections are.
func (s *Server) accept(ctx context.Context, end func()) error {
	guests := connection.NewAdmission(connection.AdmissionConfig{Rail: "the control connection", Max: maxVisitors, PerPeer: maxFromOne, Fixed: true, Logger: s.cfg.Logger})
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := s.lis.Accept()
		if ctx.Err() != nil {
			return nil // the listener was closed
		} else if err != nil {
			end()
			return fmt.Errorf("control connection: %w", err)
		}
		v := &visitor{conn: conn, lines: newLines(conn), came: time.Now()}
		v.ctx, v.leave = context.WithCancel(ctx)
		context.AfterFunc(v.ctx, func() { _ = conn.Close() })
		if guests.Admit(v, connection.PeerOf(conn.RemoteAddr())) != nil {
			v.leave()
			continue
		}
		all.Go(func() {
			defer guests.Leave(v)
			defer v.leave()
			if s.visit(v) && s.cfg.Once {
				end()
			}
		})
	}
}

// visit greets a client, waits for its turn, serves it and logs what became of it. It reports whether the client was served as
// long as it wanted.
func (s *Server) visit(v *visitor) bool {
	hello, err := greet(v.lines)
	if err != nil {
		if v.ctx.Err() == nil { // else it made room
			s.say(v, err.Error())
		}
		return false
	}
	v.greeted.Store(true)
	s.waiting.Add(1)
	select {
	case s.turn <- struct{}{}: // who has waited longest is first
		s.waiting.Add(-1)
	case <-v.ctx.Done():
		s.waiting.Add(-1)
		return false
	}
	defer func() { <-s.turn }()
	v.served.Store(true)
	t := s.target(v)
	defer s.hurry(v, t).Stop()
	err = t.session(v.lines, hello)
	switch {
	case t.late.Load():
		s.say(v, fmt.Sprintf("asked for nothing within %v, and others waited", s.cfg.yield))
		return false
	case v.ctx.Err() != nil:
		return false
	case err != nil:
		s.say(v, err.Error())
	default:
		s.say(v, fmt.Sprintf("%d points", t.points))
	}
	return true
}

// hurry ends a client that has asked for nothing in its time if others wait, until the timer is stopped.
func (s *Server) hurry(v *visitor, t *target) (watch *time.Timer) {
	set := make(chan struct{})
	watch = time.AfterFunc(s.cfg.yield, func() {
		<-set
		switch {
		case t.asked.Load():
		case s.waiting.Load() > 0:
			t.late.Store(true)
			v.leave()
		default:
			watch.Reset(s.cfg.yield / 8)
		}
	})
	close(set)
	return watch
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
