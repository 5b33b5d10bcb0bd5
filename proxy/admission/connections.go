package admission

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// Connections bounds the clients' connections. Each costs memory, and a stream or a
// request that waits has one of its own, so this is what bounds them all.
//
// A connection is pending until the proxy has read a whole request from it and taken
// it on, and again once that has ended: idle ones, and requests that dribble in. At
// the limit a new connection replaces the one that has been pending
// longest, of the client that has most of them, but for slowPending at least: those
// that came just before it are about to send their requests. A running request is
// never ended for another. One client gets three quarters of the limit at most, so
// that others still get in beside one that keeps all it can running.
type Connections struct {
	limit, share int
	Grace        time.Duration // slowPending

	Back      *Back          // gets the connections that streams are done with
	Streaming sync.WaitGroup // streams, and who watches their connections

	mu      sync.Mutex
	total   int
	clients map[netip.Addr]*client
	streams map[*Connection]struct{} // taken from net/http
	dropped uint64                   // pending connections that made room, and new ones beyond a share
	room    chan struct{}            // closed at the next change, when Accept waits for one
}

// client is everything from one address.
type client struct {
	total   int
	pending list.List // of *Connection, longest first
}

// Connection is a connection of a client.
type Connection struct {
	*net.TCPConn
	all   *Connections
	Addr  netip.Addr // its client
	Ahead []byte     // read already, of the next request

	// Guarded by all.mu.
	element *list.Element // in its client's pending; nil while a request runs
	since   time.Time     // when it became pending
	gone    bool
}

const slowPending = time.Second

// fileReserve is how many of the process's files are for other things than clients'
// connections: nodes' streams, logs, the listeners.
const fileReserve = 256

// NewConnections bounds connections to limit, and to what the process may open.
func NewConnections(limit int) *Connections {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil && files.Cur < uint64(limit+fileReserve) {
		limit = max(int(files.Cur)-fileReserve, int(files.Cur)/2, 1)
	}
	return &Connections{limit: limit, share: max(limit*3/4, 1), Grace: slowPending, clients: make(map[netip.Addr]*client), streams: make(map[*Connection]struct{})}
}

// clientOf is what connections are counted by: the address, or in IPv6, where a
// client has billions of them, its network.
func clientOf(remote net.Addr) netip.Addr {
	tcp, ok := remote.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	if addr.Is6() {
		if network, err := addr.Prefix(64); err == nil {
			return network.Addr()
		}
	}
	return addr
}

// Listen returns a listener whose connections are counted.
func (a *Connections) Listen(l net.Listener) net.Listener {
	return &countedListener{Listener: l, all: a, closed: make(chan struct{})}
}

type countedListener struct {
	net.Listener
	all    *Connections
	once   sync.Once
	closed chan struct{}
}

func (l *countedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// Accept returns the next connection for which there is room. While there is none at
// all, clients wait in the kernel's queue.
func (l *countedListener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &Connection{TCPConn: raw.(*net.TCPConn), all: l.all, Addr: clientOf(raw.RemoteAddr())}
		for {
			taken, room, after := l.all.add(c)
			if taken {
				return c, nil
			}
			if room == nil {
				c.abort()
				break
			}
			later := time.NewTimer(after)
			select {
			case <-room:
			case <-later.C:
			case <-l.closed:
				later.Stop()
				c.abort()
				return nil, net.ErrClosed
			}
			later.Stop()
		}
	}
}

// add counts c in, at another's expense if need be. If it does not, room is closed at
// the next change, and after that time somebody may be slow enough to make room; nil
// if c is beyond its client's share.
func (a *Connections) add(c *Connection) (taken bool, room <-chan struct{}, after time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	cl := a.clients[c.Addr]
	if cl == nil {
		cl = &client{}
	}
	var victim *Connection
	switch {
	case cl.total >= a.share:
		if victim = cl.longest(); victim == nil || now.Sub(victim.since) < a.Grace {
			a.dropped++
			return false, nil, 0
		}
	case a.total >= a.limit:
		victim, after = a.longest(), a.Grace
		if victim != nil {
			after = a.Grace - now.Sub(victim.since)
		}
		if after > 0 {
			if a.room == nil {
				a.room = make(chan struct{})
			}
			return false, a.room, after
		}
	}
	if victim != nil {
		a.dropped++
		a.removeLocked(victim)
		victim.abort()
	}
	a.clients[c.Addr] = cl
	cl.total++
	a.total++
	c.element, c.since = cl.pending.PushBack(c), now
	return true, nil, 0
}

// longest is the client's connection that has been pending longest, or nil.
func (c *client) longest() *Connection {
	if first := c.pending.Front(); first != nil {
		return first.Value.(*Connection)
	}
	return nil
}

// longest is the connection that makes room. The caller holds mu.
func (a *Connections) longest() *Connection {
	var most *client
	for _, cl := range a.clients {
		if cl.pending.Len() > 0 && (most == nil || cl.pending.Len() > most.pending.Len()) {
			most = cl
		}
	}
	if most == nil {
		return nil
	}
	return most.longest()
}

// removeLocked forgets c. The caller holds mu.
func (a *Connections) removeLocked(c *Connection) {
	if c.gone {
		return
	}
	c.gone = true
	cl := a.clients[c.Addr]
	if c.element != nil {
		cl.pending.Remove(c.element)
		c.element = nil
	}
	if cl.total--; cl.total == 0 {
		delete(a.clients, c.Addr)
	}
	a.total--
	a.changed()
}

func (a *Connections) changed() {
	if a.room != nil {
		close(a.room)
		a.room = nil
	}
}

// State follows the server's account of a connection.
func (a *Connections) State(conn net.Conn, s http.ConnState) {
	c, ok := conn.(*Connection)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch s {
	case http.StateActive, http.StateIdle: // a request begins, or has ended: pending from now on
		if c.gone {
			return
		}
		cl := a.clients[c.Addr]
		c.since = time.Now()
		if c.element == nil {
			c.element = cl.pending.PushBack(c)
			a.changed()
		} else {
			cl.pending.MoveToBack(c.element)
		}
	case http.StateClosed: // and not http.StateHijacked: it is a stream's
		a.removeLocked(c)
	}
}

// Take counts a connection as one of a stream, until Leave is called.
func (a *Connections) Take(c *Connection) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams[c] = struct{}{}
}

// Leave ends what Take began.
func (a *Connections) Leave(c *Connection) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.streams, c)
}

// CloseStreams ends the connections of streams, and those that wait after one for their
// next request. net/http closes its own.
func (a *Connections) CloseStreams() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.streams {
		_ = c.Close()
	}
}

// Running says that c's request has been taken on.
func (a *Connections) Running(c *Connection) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.element != nil {
		a.clients[c.Addr].pending.Remove(c.element)
		c.element = nil
	}
}

// Limit is how many connections there are at most: fewer than were asked for if the process
// may not open as many files.
func (a *Connections) Limit() int { return a.limit }

// Full reports whether a new connection waits for room.
func (a *Connections) Full() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.room != nil
}

// Counts are the connections that run a request, those that are pending, and how
// many were dropped so far.
func (a *Connections) Counts() (running, pending int, dropped uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, cl := range a.clients {
		pending += cl.pending.Len()
	}
	return a.total - pending, pending, a.dropped
}

// Read implements [net.Conn].
func (c *Connection) Read(b []byte) (int, error) {
	if len(c.Ahead) > 0 {
		n := copy(b, c.Ahead)
		c.Ahead = c.Ahead[n:]
		return n, nil
	}
	return c.TCPConn.Read(b)
}

// Write marks the end of what its client takes: what is still unsent then would stay
// in the kernel for minutes after Close.
func (c *Connection) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	if err != nil {
		_ = c.SetLinger(0)
	}
	return n, err
}

// abort closes c at once, whatever is unsent.
func (c *Connection) abort() {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// connectionKey finds a request's connection in its context.
type connectionKey struct{}

// WithConnection has a request's context know its connection: an http.Server's ConnContext.
func WithConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, conn)
}

// ConnectionOf is nil for a request that came over none: a recorder of a test.
func ConnectionOf(r *http.Request) *Connection {
	c, _ := r.Context().Value(connectionKey{}).(*Connection)
	return c
}
