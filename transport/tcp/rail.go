package tcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"kvferry/transport"
	"kvferry/transport/nic"
)

// Config describes a rail. Name and Listen are required.
type Config struct {
	// Name of the rail, "tcp/eth0".
	Name string
	// Listen is the host:port peers reach the rail at; port 0 takes a free
	// one. A host address other than a loopback address is also the one the
	// rail's own connections come from, so that they use its interface.
	Listen string
	// Advertise replaces the host, or host:port, that peers are told to dial.
	// It is required if Listen is a wildcard.
	Advertise string
	// Congestion is the sockets' congestion control. Default "cubic";
	// "system" leaves the system's.
	Congestion string
	// SendBuffer is SO_SNDBUF in bytes, which the kernel doubles.
	// Default 1 MiB.
	SendBuffer int
	// MPTCP makes a connection one of Multipath TCP (RFC 8684), which the kernel
	// spreads over the paths that its path manager knows (ip mptcp). Peers that
	// dial without it are served all the same; a connection made here that has
	// fallen back to plain TCP is refused. The rail listens at all addresses, where a
	// peer's further paths arrive, and advertises that of Listen. Congestion is that of
	// the subflows, and SendBuffer by default the system's, which grows with them.
	MPTCP bool
	// MaxConns bounds the connections served; more are refused. Default 1024.
	MaxConns int
	// Logger gets a line for each connection that is not a rail's or breaks
	// the protocol. Default slog.Default().
	Logger *slog.Logger
}

func (c *Config) setDefaults() {
	switch c.Congestion {
	case "":
		c.Congestion = "cubic"
	case "system":
		c.Congestion = ""
	}
	if c.SendBuffer == 0 && !c.MPTCP {
		c.SendBuffer = 1 << 20
	}
	if c.MaxConns == 0 {
		c.MaxConns = 1024
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// Validate lists every fault, naming the field and the fix.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("transport/tcp: Config."+format, args...))
	}
	if !strings.HasPrefix(c.Name, "tcp/") || c.Name == "tcp/" {
		bad("Name is %q: name the rail tcp/ and its interface, like tcp/eth0", c.Name)
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		bad("Listen is %q: write host:port, like 127.0.0.1:0 or [::1]:9000", c.Listen)
	} else if ip, err := netip.ParseAddr(host); (host == "" || err == nil && ip.IsUnspecified()) && c.Advertise == "" {
		bad("Advertise is empty and Listen %q a wildcard: set Advertise to the address peers can dial, or Listen to the interface's", c.Listen)
	}
	if c.SendBuffer < 0 {
		bad("SendBuffer is %d: use a positive number of bytes, or 0 for 1 MiB", c.SendBuffer)
	}
	if c.MaxConns < 0 {
		bad("MaxConns is %d: use a positive number, or 0 for 1024", c.MaxConns)
	}
	return errors.Join(errs...)
}

// Rail implements transport.Rail.
type Rail struct {
	cfg     Config
	ln      *net.TCPListener
	addr    string
	local   *net.TCPAddr // of connections made; nil leaves it to the system
	nic     string       // that has local
	unwatch func()       // nil if nothing is watched
	warned  sync.Map     // peers' hosts that checkReturn has warned of
	regions regions
	handler func(transport.Imm)
	wg      sync.WaitGroup // accept, endpoints, served connections

	mu     sync.Mutex
	closed bool
	noLink bool // the NIC has no carrier
	eps    map[*endpoint]struct{}
	lost   map[string][]uint64  // by address: endpoints that ended with writes unanswered
	conns  map[*served]struct{} // served, including those without a hello yet
	byID   map[uint64]*served   // served, by the id of their hello
}

// New listens and serves. The caller closes the rail, or gives it to an engine.
func New(cfg Config) (*Rail, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	r := &Rail{
		cfg:     cfg,
		regions: regions{byKey: make(map[transport.Key]*region)},
		eps:     make(map[*endpoint]struct{}),
		lost:    make(map[string][]uint64),
		conns:   make(map[*served]struct{}),
		byID:    make(map[uint64]*served),
	}
	lc := net.ListenConfig{Control: r.cfg.control}
	lc.SetMultipathTCP(cfg.MPTCP) // Go's own default is yes, of listeners only
	listen := cfg.Listen
	if cfg.MPTCP {
		host, port, _ := net.SplitHostPort(listen) // Validate has read it
		if listen = net.JoinHostPort("", port); r.cfg.Advertise == "" {
			r.cfg.Advertise = host
		}
	}
	ln, err := lc.Listen(context.Background(), "tcp", listen)
	if err != nil {
		return nil, &transport.Error{Op: "listen", Rail: cfg.Name, Err: err}
	}
	r.ln = ln.(*net.TCPListener)
	at := r.ln.Addr().(*net.TCPAddr)
	r.addr = transport.Advertised(at, r.cfg.Advertise)
	if !at.IP.IsUnspecified() && !at.IP.IsLoopback() {
		r.local = &net.TCPAddr{IP: at.IP, Zone: at.Zone}
		r.watchCarrier()
	}
	r.wg.Go(r.accept)
	return r, nil
}

// watchCarrier ends connections when the NIC loses its carrier: TCP would go on trying for
// minutes.
func (r *Rail) watchCarrier() {
	if r.nic = nic.Owner(r.local.IP); r.nic == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	up, stop, err := nic.Watch(r.nic, r.carrier)
	if err != nil {
		r.cfg.Logger.Warn("transport/tcp: a lost carrier will not be noticed", "rail", r.cfg.Name, "err", err)
		return
	}
	r.noLink, r.unwatch = !up, stop
}

func (r *Rail) carrier(up bool) {
	r.mu.Lock()
	r.noLink = !up
	var eps []*endpoint
	for ep := range r.eps {
		eps = append(eps, ep)
	}
	r.mu.Unlock()
	if up {
		r.cfg.Logger.Info("transport/tcp: "+r.nic+" has a carrier again", "rail", r.cfg.Name)
		return
	}
	r.cfg.Logger.Warn("transport/tcp: "+r.nic+" has lost its carrier", "rail", r.cfg.Name)
	for _, ep := range eps {
		ep.fail(r.down())
	}
}

func (r *Rail) down() error {
	return fmt.Errorf("%w: %s has no carrier: its cable, its peer or its link is down", transport.ErrUnreachable, r.nic)
}

// checkReturn warns once of a peer whose answers would leave by another NIC.
func (r *Rail) checkReturn(peer net.Addr) {
	if r.nic == "" {
		return
	}
	at := peer.(*net.TCPAddr).IP.String()
	if reach, why := nic.Reach(r.nic, r.local.IP, peer.String()); reach == transport.Elsewhere {
		if _, again := r.warned.LoadOrStore(at, true); !again {
			r.cfg.Logger.Warn("transport/tcp: answers to a peer do not leave by the NIC that its requests come in by", "rail", r.cfg.Name, "peer", at, "why", why)
		}
	}
}

// Route implements transport.Router.
func (r *Rail) Route(addr string) (transport.Reach, string) {
	if r.local == nil {
		return transport.Unknown, ""
	}
	return nic.Reach(r.nic, r.local.IP, addr)
}

// Name implements transport.Rail.
func (r *Rail) Name() string { return r.cfg.Name }

// Addr implements transport.Rail.
func (r *Rail) Addr() string { return r.addr }

// HandleImmediates implements transport.Rail.
func (r *Rail) HandleImmediates(f func(transport.Imm)) {
	r.handler = f // seen by connections through the keys registered later
}

// Register implements transport.Rail.
func (r *Rail) Register(mem []byte) (transport.Key, error) {
	r.regions.mu.Lock()
	defer r.regions.mu.Unlock()
	if r.regions.byKey == nil {
		return 0, net.ErrClosed
	}
	key := transport.NewKey()
	r.regions.byKey[key] = newRegion(mem)
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
	d := net.Dialer{Control: r.cfg.control}
	d.SetMultipathTCP(r.cfg.MPTCP)
	if r.local != nil {
		d.LocalAddr = r.local
	}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", transport.ErrUnreachable, err)
	}
	if err := r.multipath(c.(*net.TCPConn)); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("%w: %w", transport.ErrUnreachable, err)
	}
	ep := &endpoint{
		rail: r, addr: addr, id: uint64(transport.NewKey()), c: c.(*net.TCPConn),
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
	if r.closed || r.noLink {
		_ = c.Close()
		if r.closed {
			return nil, net.ErrClosed
		}
		return nil, r.down()
	}
	r.eps[ep] = struct{}{}
	r.wg.Add(1)
	go ep.run()
	return ep, nil
}

// multipath fails if a connection is plain TCP and should not be. The kernel says so
// without a word where MPTCP is off, and so does the peer's.
func (r *Rail) multipath(c *net.TCPConn) error {
	if !r.cfg.MPTCP {
		return nil
	}
	if on, err := c.MultipathTCP(); err != nil || !on {
		return errors.Join(fmt.Errorf("%s: the connection to %s fell back to plain TCP: sysctl net.mptcp.enabled=1 at both ends, and mptcp=1 on the peer's rail", r.cfg.Name, c.RemoteAddr()), err)
	}
	return nil
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
	ep.in = newStream(sock)
	r.mu.Lock()
	h := hello{id: ep.id, lost: slices.Clone(r.lost[ep.addr])}
	r.mu.Unlock()
	if err := write(ep.c, h.append(nil)); err != nil {
		return err
	}
	b, err := ep.in.next(welcomeLen)
	if err != nil {
		return err
	}
	if string(b[:8]) != helloMagic {
		return fmt.Errorf("%w: %q is not how a kvferry rail answers", transport.ErrProtocol, b)
	}
	if !stop() {
		return ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rest := slices.DeleteFunc(r.lost[ep.addr], func(id uint64) bool { return slices.Contains(h.lost, id) })
	if len(rest) == 0 {
		delete(r.lost, ep.addr)
	} else {
		r.lost[ep.addr] = rest
	}
	return nil
}

// ended forgets an endpoint, except that its peer must hear of it if there are
// writes it may still apply.
func (r *Rail) ended(ep *endpoint, unsure bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.eps, ep)
	if r.closed || !unsure {
		return
	}
	ids := append(r.lost[ep.addr], ep.id)
	r.lost[ep.addr] = ids[max(0, len(ids)-maxLost):]
}

func (r *Rail) usable() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return net.ErrClosed
	case r.noLink:
		return r.down()
	}
	return nil
}

// accept serves connections until the listener is closed.
func (r *Rail) accept() {
	for {
		c, err := r.ln.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, most likely; those being freed let us go on.
			r.cfg.Logger.Error("transport/tcp: accept", "rail", r.cfg.Name, "err", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		r.wg.Add(1)
		go r.serve(c)
	}
}

// admit counts a new connection, or refuses it.
func (r *Rail) admit(s *served) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	if len(r.conns) >= r.cfg.MaxConns {
		r.cfg.Logger.Warn("transport/tcp: connection refused: too many", "rail", r.cfg.Name, "peer", s.c.RemoteAddr().String(), "limit", r.cfg.MaxConns)
		return false
	}
	r.conns[s] = struct{}{}
	return true
}

// welcome files a connection under its id.
func (r *Rail) welcome(s *served, id uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID[id] != nil {
		return fmt.Errorf("%w: a second connection says it is %#x", transport.ErrProtocol, id)
	}
	r.byID[id] = s
	s.id = id
	return nil
}

func (r *Rail) dismiss(s *served) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, s)
	if r.byID[s.id] == s {
		delete(r.byID, s.id)
	}
}

// Fence implements transport.Rail.
func (r *Rail) Fence(id uint64) {
	r.mu.Lock()
	s := r.byID[id]
	r.mu.Unlock()
	if s != nil {
		s.cut()
		transport.AwaitFence(s.over)
	}
}

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
		err = r.ln.Close()
	}
	for _, ep := range eps {
		_ = ep.Close()
	}
	if first && r.unwatch != nil {
		r.unwatch()
	}
	r.wg.Wait()
	r.regions.mu.Lock()
	r.regions.byKey = nil
	r.regions.mu.Unlock()
	return err
}
