package tcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"kvferry/internal/config"
	"kvferry/transport"
	"kvferry/transport/bundle"
	"kvferry/transport/connection"
	"kvferry/transport/nic"
	"kvferry/transport/socket"
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
	// Congestion is the sockets' congestion control; "system" leaves the system's.
	// Default: cubic, and bbr on a path that loses packets without being full.
	Congestion string
	// SendBuffer is SO_SNDBUF in bytes, which the kernel doubles. Default: 1 MiB where
	// round trips are short, and else what the path holds.
	SendBuffer int
	// MPTCP makes a connection one of Multipath TCP (RFC 8684), which the kernel
	// spreads over the paths that its path manager knows (ip mptcp). Peers that
	// dial without it are served all the same; a connection made here that has
	// fallen back to plain TCP is refused. The rail listens at all addresses, where a
	// peer's further paths arrive, and advertises that of Listen. Congestion is that of
	// the subflows, and SendBuffer by default the system's, which grows with them.
	MPTCP bool
	// MaxConns bounds the connections served, and ConnsPerPeer those from one host (of
	// IPv6, one network of 64 bits). Idle ones make room for others, see
	// connection.Admission. Default connection.DefaultConns, and a quarter of MaxConns.
	MaxConns, ConnsPerPeer int
	// Conns is how many connections the rail makes to a peer's, to be used as one: 1 to MostConns.
	// Default: one, and more where that makes a path faster than one core carries.
	Conns int
	// Logger gets a line for each connection that is not a rail's or breaks
	// the protocol. Default slog.Default().
	Logger *slog.Logger
}

// MostConns is the most that Config.Conns may be.
const MostConns = bundle.Most

// Validate lists every fault by its field, as a [config.Invalid].
func (c *Config) Validate() error {
	var bad config.Faults
	if !strings.HasPrefix(c.Name, "tcp/") || c.Name == "tcp/" {
		bad.Add("Name", c.Name, "name the rail tcp/ and its interface, like tcp/eth0")
	}
	host, _, err := config.Address(c.Listen)
	bad.Check("Listen", err)
	if ip, e := netip.ParseAddr(host); err == nil && (host == "" || e == nil && ip.IsUnspecified()) && c.Advertise == "" {
		bad.Add("Advertise", nil, "%q is all addresses, and peers are told to dial one: name it, or listen at it", c.Listen)
	}
	if c.SendBuffer < 0 {
		bad.Add("SendBuffer", c.SendBuffer, "use a positive number of bytes, or 0 for 1 MiB")
	}
	if c.MaxConns < 0 {
		bad.Add("MaxConns", c.MaxConns, "use a positive number, or 0 for %d", connection.DefaultConns)
	}
	if c.ConnsPerPeer < 0 {
		bad.Add("ConnsPerPeer", c.ConnsPerPeer, "use a positive number, or 0 for a quarter of all connections")
	}
	if c.Conns < 0 || c.Conns > MostConns {
		bad.Add("Conns", c.Conns, "use 1 to %d, or 0 for as many as help", MostConns)
	}
	return bad.Err("transport/tcp.Config")
}

// Rail implements transport.Rail.
type Rail struct {
	*socket.Rail
	cfg    Config
	local  *net.TCPAddr // of connections made; nil leaves it to the system
	nic    string       // that has local
	began  time.Time
	tuner  *tuner      // nil of MPTCP, whose subflows the kernel looks after
	warned socket.Told // peers' hosts that checkReturn has warned of

	mu      sync.Mutex // orders what is heard of the carrier
	unwatch func()     // nil if nothing is watched
}

// New listens and serves. The caller closes the rail, or gives it to an engine.
func New(cfg Config) (*Rail, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	config.Default(&cfg.Logger, slog.Default())
	r := &Rail{cfg: cfg, began: time.Now()}
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
		return nil, &transport.Error{Op: "listen", Rail: cfg.Name, Err: config.CannotListen(err)}
	}
	at := ln.Addr().(*net.TCPAddr)
	if !at.IP.IsUnspecified() && !at.IP.IsLoopback() {
		r.local = &net.TCPAddr{IP: at.IP, Zone: at.Zone}
		r.nic = nic.Owner(r.local.IP)
	}
	opened, look := func(socket.Conn) {}, (func(socket.Conn) transport.Flow)(nil)
	if !cfg.MPTCP { // of a connection over several paths the kernel shows the first
		r.tuner = newTuner(r)
		opened, look = r.tuner.opened, gauge
	}
	r.Rail = socket.New(socket.Config{
		Opened: opened, Gauge: look,
		Name: cfg.Name, Listener: ln, Addr: connection.Advertised(at, r.cfg.Advertise), Dial: r.dial,
		Greeted: r.checkReturn, MaxConns: cfg.MaxConns, ConnsPerPeer: cfg.ConnsPerPeer, Logger: cfg.Logger,
	})
	if r.nic != "" {
		r.watchCarrier()
	}
	return r, nil
}

// watchCarrier ends connections when the NIC loses its carrier: TCP would go on trying for
// minutes.
func (r *Rail) watchCarrier() {
	r.mu.Lock()
	defer r.mu.Unlock()
	up, stop, err := nic.Watch(r.nic, r.carrier)
	if err != nil {
		r.cfg.Logger.Warn("transport/tcp: a lost carrier will not be noticed", "rail", r.cfg.Name, "err", err)
		return
	}
	r.unwatch = stop
	if !up {
		r.SetDown(r.down())
	}
}

func (r *Rail) carrier(up bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if up {
		r.SetDown(nil)
		r.cfg.Logger.Info("transport/tcp: "+r.nic+" has a carrier again", "rail", r.cfg.Name)
		return
	}
	r.cfg.Logger.Warn("transport/tcp: "+r.nic+" has lost its carrier", "rail", r.cfg.Name)
	r.SetDown(r.down())
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
		if r.warned.First(at) {
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

// Dial implements transport.Rail. Of a number of connections that was asked for those are made that can be.
func (r *Rail) Dial(ctx context.Context, addr string) (transport.Endpoint, error) {
	connect := func(ctx context.Context) (transport.Endpoint, error) { return r.DialOne(ctx, addr) }
	ep, err := bundle.Dial(ctx, max(r.cfg.Conns, 1), connect)
	switch {
	case ep == nil:
		return nil, err
	case r.cfg.Conns == 0 && r.tuner != nil:
		r.tuner.widen(ep, addr, connect)
	case err != nil:
		r.cfg.Logger.Debug("transport/tcp: not all connections could be made", "rail", r.cfg.Name, "peer", addr, "conns", r.cfg.Conns, "err", err)
	}
	return ep, nil
}

// DialOne implements transport.Wide.
func (r *Rail) DialOne(ctx context.Context, addr string) (transport.Endpoint, error) {
	return r.Rail.Dial(ctx, addr)
}

func (r *Rail) dial(ctx context.Context, addr string) (socket.Conn, error) {
	d := net.Dialer{Control: r.cfg.control}
	d.SetMultipathTCP(r.cfg.MPTCP)
	if r.local != nil {
		d.LocalAddr = r.local
	}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if err := r.multipath(c.(*net.TCPConn)); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c.(*net.TCPConn), nil
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

// Congestion implements transport.Congested. Of MPTCP nothing is known.
func (r *Rail) Congestion() (conns map[string]int, changes int64) {
	if r.tuner == nil {
		return nil, 0
	}
	return r.tuner.counts()
}

// Close implements transport.Rail.
func (r *Rail) Close() error {
	err := r.Rail.Close()
	if r.tuner != nil {
		r.tuner.close()
	}
	r.mu.Lock()
	stop := r.unwatch
	r.unwatch = nil
	r.mu.Unlock()
	if stop != nil {
		stop()
	}
	return err
}
