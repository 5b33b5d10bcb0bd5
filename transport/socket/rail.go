package socket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"kvferry/transport"
	"kvferry/transport/connection"
)

// A Conn is a connected stream socket: *net.TCPConn, *net.UnixConn.
type Conn interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// A Memory is that of the process at the other end of a connection.
type Memory interface {
	// Copy fills the elements of dst, each from the peer's memory at the address
	// of the same index. An error leaves dst in any state.
	Copy(dst [][]byte, at []uint64) error
}

// Config is what a kind of rail is made of. All but Attach, Opened, Gauge, Greeted, Peer, MaxConns and
// ConnsPerPeer are required.
type Config struct {
	Name string
	// Listener accepts what Dial connects; the rail closes it. Its connections
	// are Conns.
	Listener net.Listener
	// Addr is what peers dial.
	Addr string
	// Dial connects to a peer's rail.
	Dial func(ctx context.Context, addr string) (Conn, error)
	// Attach makes it a rail of references: frames carry addresses instead of
	// bytes, and who receives copies them from the memory that Attach opens.
	Attach func(Conn) (Memory, error)
	// Opened gets each connection, made or accepted, before anything is sent over it.
	Opened func(Conn)
	// Gauge is that of transport.Gauge, for a connection.
	Gauge func(Conn) transport.Flow
	// Greeted hears of each peer that has said hello.
	Greeted func(peer net.Addr)
	// MaxConns bounds the connections served, and ConnsPerPeer those of one peer; see
	// connection.Admission, which has the defaults.
	MaxConns, ConnsPerPeer int
	// Peer says whose a connection is. Default connection.PeerOf its address.
	Peer func(Conn) string
	// Logger gets a line for each connection that is not a rail's or breaks
	// the protocol.
	Logger *slog.Logger

	helloWithin time.Duration // more in tests
}

// Rail implements transport.Rail.
type Rail struct {
	cfg     Config
	guests  *connection.Admission
	probe   *probe // nil without Attach
	regions regions
	handler func(transport.Key, transport.Imm) error
	wg      sync.WaitGroup    // accept, endpoints, served connections
	told    Told              // errors in attaching, which who may not tries again and again
	strange connection.Sparse // lines about connections that are no rail's
	lost    connection.Losses // endpoints that ended with writes unanswered
	byName  connection.Served

	refusing chan struct{} // has one for each connection that is told why it is refused

	mu     sync.Mutex
	closed bool
	down   error // the NIC is
	eps    map[*endpoint]struct{}
	conns  map[*served]struct{} // served, including those without a hello yet
}

// New serves. The caller closes the rail, or gives it to an engine.
func New(cfg Config) *Rail {
	if cfg.helloWithin == 0 {
		cfg.helloWithin = helloWithin
	}
	if cfg.Peer == nil {
		cfg.Peer = func(c Conn) string { return connection.PeerOf(c.RemoteAddr()) }
	}
	r := &Rail{
		cfg: cfg,
		guests: connection.NewAdmission(connection.AdmissionConfig{
			Rail: cfg.Name, Max: cfg.MaxConns, PerPeer: cfg.ConnsPerPeer, Logger: cfg.Logger,
			Fixed: cfg.Attach != nil, // rails of one machine have no options
		}),
		regions: regions{byKey: make(map[transport.Key]*region)},
		eps:     make(map[*endpoint]struct{}),
		conns:   make(map[*served]struct{}),

		refusing: make(chan struct{}, 16),
	}
	r.probe = r.newProbe()
	r.wg.Go(r.accept)
	return r
}

// Name implements transport.Rail.
func (r *Rail) Name() string { return r.cfg.Name }

// Addr implements transport.Rail.
func (r *Rail) Addr() string { return r.cfg.Addr }

// HandleImmediates implements transport.Rail.
func (r *Rail) HandleImmediates(f func(transport.Key, transport.Imm) error) {
	r.handler = f // seen by connections through the keys registered later
}

// SetDown breaks the connections made, and refuses to make more, for a reason; nil
// takes that back.
func (r *Rail) SetDown(err error) {
	r.mu.Lock()
	r.down = err
	var eps []*endpoint
	if err != nil {
		for ep := range r.eps {
			eps = append(eps, ep)
		}
	}
	r.mu.Unlock()
	for _, ep := range eps {
		ep.fail(err)
	}
}

// WatchesWrites implements transport.WriteWatcher.
func (r *Rail) WatchesWrites() bool { return true }

// Register implements transport.Rail.
func (r *Rail) Register(mem []byte, access transport.Access) (transport.Key, error) {
	if err := access.Within(int64(len(mem))); err != nil {
		return 0, err
	}
	r.regions.mu.Lock()
	defer r.regions.mu.Unlock()
	if r.regions.byKey == nil {
		return 0, net.ErrClosed
	}
	key := transport.NewKey()
	r.regions.byKey[key] = newRegion(mem, access)
	return key, nil
}

// Deregister implements transport.Rail.
func (r *Rail) Deregister(key transport.Key) error {
	r.regions.mu.Lock()
	closed := r.regions.byKey == nil
	g := r.regions.byKey[key]
	delete(r.regions.byKey, key)
	r.regions.mu.Unlock()
	switch {
	case closed:
		return net.ErrClosed
	case g == nil:
		return transport.ErrBadKey
	}
	g.retire()
	return nil
}

// Dial implements transport.Rail.
func (r *Rail) Dial(ctx context.Context, addr string) (transport.Endpoint, error) {
	if err := r.usable(); err != nil {
		return nil, err
	}
	c, err := r.cfg.Dial(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", transport.ErrUnreachable, err)
	}
	if r.cfg.Opened != nil {
		r.cfg.Opened(c)
	}
	ep := &endpoint{
		rail: r, addr: addr, secret: transport.NewSecret(), c: c,
		kick: make(chan struct{}, 1), over: make(chan struct{}),
	}
	if err := r.introduce(ctx, ep); err != nil {
		_ = c.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if errors.Is(err, transport.ErrProtocol) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: hello: %w", transport.ErrUnreachable, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.down != nil {
		_ = c.Close()
		if r.closed {
			return nil, net.ErrClosed
		}
		return nil, r.down
	}
	r.eps[ep] = struct{}{}
	r.wg.Add(1)
	go ep.run()
	return ep, nil
}

// introduce says hello and waits for the welcome: by then the target has ended
// the connections that were lost.
func (r *Rail) introduce(ctx context.Context, ep *endpoint) error {
	stop := context.AfterFunc(ctx, func() { _ = ep.c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	sock, err := newSocket(ep.c)
	if err != nil {
		return err
	}
	ep.in = newStream(sock, r.probe != nil)
	if ep.out, err = newGather(ep.c); err != nil {
		return err
	}
	h := hello{name: ep.secret.Name(), lost: r.lost.Of(ep.addr)}
	if err := write(ep.c, r.probe.append(h.append(nil))); err != nil {
		return err
	}
	b, err := ep.in.next(welcomeLen)
	if err != nil {
		return err
	}
	if err := parseWelcome(b); err != nil {
		return err
	}
	if r.probe != nil {
		if b, err = ep.in.next(probeLen); err != nil {
			return err
		}
		ep.lease = parseLease(b)
		if ep.peer, err = r.attach(ep.c, ep.lease); err != nil {
			return err
		}
	}
	if !stop() {
		return ctx.Err()
	}
	r.lost.Ended(ep.addr, h.lost)
	return nil
}

// ended forgets an endpoint, except that its peer must hear of it if there are
// writes it may still apply.
func (r *Rail) ended(ep *endpoint, unsure bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.eps, ep)
	if !r.closed && unsure {
		r.lost.Add(ep.addr, ep.secret)
	}
}

// usable is nil, or why nothing can be dialled: the rail is closed, or its NIC is down.
func (r *Rail) usable() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return net.ErrClosed
	}
	return r.down
}

// accept serves connections until the listener is closed.
func (r *Rail) accept() {
	r.guests.Accept(r.cfg.Listener, func(c net.Conn) {
		s := r.newServed(c.(Conn))
		if err := r.admit(s); err != nil {
			r.refuse(s.c, err)
			return
		}
		go r.serve(s)
	})
}

// admit takes a new connection in, to be served, or refuses it.
func (r *Rail) admit(s *served) error {
	if err := r.guests.Admit(s, r.cfg.Peer(s.c)); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		r.guests.Leave(s)
		return net.ErrClosed
	}
	r.conns[s] = struct{}{}
	r.wg.Add(1)
	if r.cfg.Opened != nil {
		r.cfg.Opened(s.c)
	}
	return nil
}

// refuse ends a connection that there is no room for, and tells why, if not too many are told
// already. Its hello is read, as the answer would not arrive if it were not.
func (r *Rail) refuse(c Conn, why error) {
	var full *connection.Full
	if !errors.As(why, &full) {
		_ = c.Close()
		return
	}
	select {
	case r.refusing <- struct{}{}:
	default:
		_ = c.Close()
		return
	}
	r.wg.Go(func() {
		defer func() { <-r.refusing }()
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(stallGrace))
		if write(c, appendFull(nil, full)) == nil && c.CloseWrite() == nil {
			_, _ = io.CopyN(io.Discard, c, 2*helloLen)
		}
	})
}

// dismiss ends what the rail has to do with a connection, which touches nothing any more.
// Its over is closed after that: a fence that waits may then be answered.
func (r *Rail) dismiss(s *served) {
	r.guests.Leave(s)
	r.byName.Remove(s.name, s)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, s)
}

// Fence implements transport.Rail.
func (r *Rail) Fence(secret transport.Secret) { r.byName.Fence(secret) }

// Close implements transport.Rail.
func (r *Rail) Close() error {
	r.mu.Lock()
	first := !r.closed
	r.closed = true
	var eps []*endpoint
	for ep := range r.eps {
		eps = append(eps, ep)
	}
	for s := range r.conns {
		s.cut()
	}
	r.mu.Unlock()
	var err error
	if first {
		err = r.cfg.Listener.Close()
	}
	for _, ep := range eps {
		_ = ep.Close()
	}
	r.wg.Wait()
	r.regions.mu.Lock()
	r.regions.byKey = nil
	r.regions.mu.Unlock()
	return err
}
