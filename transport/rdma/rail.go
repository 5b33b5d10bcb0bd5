package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"kvferry/transport"
	"kvferry/transport/connection"
	"kvferry/transport/nic"
)

// Rail implements transport.Rail.
type Rail struct {
	cfg     Config // with defaults
	guests  *connection.Admission
	open    func(*Config) (device, error) // openDevice, or a test's
	ln      *net.TCPListener
	addr    string       // that peers are told
	local   *net.TCPAddr // of connections made, so that they go by the rail's own network; nil leaves it to the system
	regs    regions
	handler func(transport.Key, transport.Imm) error // set before the first peer knows a key
	wg      sync.WaitGroup                           // accept, watch, endpoints, served links
	quit    chan struct{}                            // closed by Close
	lost    connection.Losses                        // endpoints that ended with writes unanswered
	byName  connection.Served
	strange connection.Sparse // lines about connections that are no rail's

	mu     sync.Mutex
	closed bool
	dev    device         // nil while it is gone
	users  sync.WaitGroup // who uses dev: links, until they have let go of its objects
	down   string         // why nothing can be sent now; empty if it can
	eps    map[*endpoint]struct{}
	conns  map[*guest]struct{} // served, including those without a greeting yet
}

// New opens the device, listens and serves. The caller closes the rail, or gives
// it to an engine, which then does. The error is a [config.Invalid] where cfg is wrong, a
// transport.Error where the device or the address cannot be had; without verbs it wraps
// ErrNoVerbs.
func New(cfg Config) (*Rail, error) { return newRail(cfg, openDevice) }

func newRail(cfg Config, open func(*Config) (device, error)) (*Rail, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	r := &Rail{
		cfg: cfg, open: open, quit: make(chan struct{}),
		regs:  regions{byKey: make(map[transport.Key]*region)},
		eps:   make(map[*endpoint]struct{}),
		conns: make(map[*guest]struct{}),
		guests: connection.NewAdmission(connection.AdmissionConfig{
			Rail: cfg.Name, Max: cfg.MaxConns, PerPeer: cfg.ConnsPerPeer, Logger: cfg.Logger,
		}),
	}
	fail := func(op string, err error) (*Rail, error) {
		return nil, &transport.Error{Op: op, Rail: cfg.Name, Err: err}
	}
	dev, err := open(&r.cfg)
	if err != nil {
		return fail("open", err)
	}
	info := dev.info()
	listen := cfg.Listen
	if listen == "" {
		ip := info.gid.ip()
		if info.netdev != "" && ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(info.netdev)
		}
		listen = net.JoinHostPort(ip.String(), "0")
	}
	lc := net.ListenConfig{}
	ln, err := lc.Listen(context.Background(), "tcp", listen)
	if err != nil {
		return fail("listen", errors.Join(err, dev.close()))
	}
	r.dev, r.ln = dev, ln.(*net.TCPListener)
	at := r.ln.Addr().(*net.TCPAddr)
	r.addr = connection.Advertised(at, cfg.Advertise)
	if !at.IP.IsUnspecified() && !at.IP.IsLoopback() {
		r.local = &net.TCPAddr{IP: at.IP, Zone: at.Zone}
	}
	r.cfg.QueueDepth = min(r.cfg.QueueDepth, info.maxDepth)
	r.wg.Go(r.accept)
	r.wg.Go(func() { r.watch(dev) })
	return r, nil
}

// Name implements transport.Rail.
func (r *Rail) Name() string { return r.cfg.Name }

// Addr implements transport.Rail.
func (r *Rail) Addr() string { return r.addr }

// Route implements transport.Router. RoCE packets are routed as those of the network
// interface are; over InfiniBand the address says nothing.
func (r *Rail) Route(addr string) (transport.Reach, string) {
	dev, err := r.use()
	if err != nil {
		return transport.Unknown, err.Error()
	}
	defer r.users.Done()
	info := dev.info()
	host, _, _ := net.SplitHostPort(r.addr)
	ip := net.ParseIP(host)
	if ip == nil || info.netdev == "" || info.port.infini {
		return transport.Unknown, ""
	}
	return nic.Reach(info.netdev, ip, addr)
}

// HandleImmediates implements transport.Rail.
func (r *Rail) HandleImmediates(f func(transport.Key, transport.Imm) error) { r.handler = f }

// usable says why the rail cannot be used now. The caller holds r.mu.
func (r *Rail) usable() error {
	switch {
	case r.closed:
		return net.ErrClosed
	case r.down != "":
		return fmt.Errorf("%w: %s", transport.ErrUnreachable, r.down)
	}
	return nil
}

// use is the device that is open. It stays so until users.Done.
func (r *Rail) use() (device, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(); err != nil {
		return nil, err
	}
	r.users.Add(1)
	return r.dev, nil
}

// Register implements transport.Rail. Memory that lies in memory registered
// before is not pinned again. An access that opens anything opens all of mem, in both
// directions, see the package comment.
func (r *Rail) Register(mem []byte, access transport.Access) (transport.Key, error) {
	return r.register(mem, nil, access)
}

// RegisterDMABuf implements transport.DMABufRail. It takes libibverbs of rdma-core 34, and a NIC whose driver can.
func (r *Rail) RegisterDMABuf(mem []byte, fd int, offset int64, access transport.Access) (transport.Key, error) {
	return r.register(mem, &dmaBuf{fd, offset}, access)
}

func (r *Rail) register(mem []byte, buf *dmaBuf, access transport.Access) (transport.Key, error) {
	if err := access.Within(int64(len(mem))); err != nil {
		return 0, err
	}
	r.regs.pinning.Lock()
	defer r.regs.pinning.Unlock()
	if p, at := r.regs.pinned(mem); p != nil {
		return r.regs.add(p, at, int64(len(mem)), access.None())
	}
	return r.pin(&pin{mem: mem, buf: buf}, access.None())
}

// pin registers memory that no pin holds yet, and gives it its first key. It takes a quarter of a second a gigabyte,
// which r.mu must not be held for. The caller holds regs.pinning, so that the same memory is not pinned twice at once,
// and the device is not closed meanwhile.
func (r *Rail) pin(p *pin, local bool) (transport.Key, error) {
	r.mu.Lock()
	dev, closed, why := r.dev, r.closed, r.down
	r.mu.Unlock()
	if closed {
		return 0, net.ErrClosed
	}
	if dev == nil {
		return 0, fmt.Errorf("%w: %s", transport.ErrUnreachable, why)
	}
	mr, err := p.register(dev)
	if err != nil {
		return 0, err
	}
	p.mr = mr
	key, err := r.regs.add(p, 0, int64(len(p.mem)), local)
	if err != nil {
		_ = mr.close()
	}
	return key, err
}

// revokeWithin is how long peers may take to finish what they have under way with
// a key that is being revoked: windowBytes at 80 Mbit/s take 1.7 s. A peer that
// takes longer is cut off.
const revokeWithin = 3 * time.Second

// Deregister implements transport.Rail. Peers that know the key are asked to stop
// using it and answer when they have.
func (r *Rail) Deregister(key transport.Key) error {
	p, asked, err := r.regs.revoke(key)
	if err != nil {
		return err
	}
	late := time.NewTimer(revokeWithin)
	defer late.Stop()
	for _, a := range asked {
		select {
		case <-a.done:
		case <-a.peer.over:
		case <-late.C:
			late.Reset(0) // for the others too
			a.peer.lost("it has not given a revoked key back within %v", revokeWithin)
			<-a.peer.over
		}
	}
	r.regs.pinning.Lock()
	defer r.regs.pinning.Unlock()
	return r.regs.release(p)
}

// Dial implements transport.Rail.
func (r *Rail) Dial(ctx context.Context, addr string) (transport.Endpoint, error) {
	r.mu.Lock()
	err := r.usable()
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	d := net.Dialer{}
	if r.local != nil {
		d.LocalAddr = r.local
	}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", transport.ErrUnreachable, err)
	}
	ep, err := r.introduce(ctx, c, addr)
	if err != nil {
		_ = c.Close()
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, transport.ErrProtocol), errors.Is(err, net.ErrClosed):
			return nil, err
		}
		return nil, fmt.Errorf("%w: greeting: %w", transport.ErrUnreachable, err)
	}
	return ep, nil
}

// introduce exchanges greetings: by the target's, it has ended the connections
// that were lost, and its queue pairs are ready.
func (r *Rail) introduce(ctx context.Context, c net.Conn, addr string) (*endpoint, error) {
	// A deadline in the past ends the reads and writes below when ctx ends.
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	l, err := r.newLink(c, r.cfg.QueuePairs, r.cfg.QueueDepth)
	if err != nil {
		return nil, err
	}
	secret, lost := transport.NewSecret(), r.lost.Of(addr)
	name := secret.Name()
	err = func() error {
		if _, err := c.Write(l.greeting(name, lost).append(nil)); err != nil {
			return err
		}
		g, err := readGreeting(c)
		if err != nil {
			return err
		}
		if g.name != name {
			return fmt.Errorf("%w: greeting for connection %x, not %x", transport.ErrProtocol, g.name, name)
		}
		if err := l.connect(g); err != nil {
			return err
		}
		if !stop() { // the deadline is set, or is about to be
			return ctx.Err()
		}
		return nil
	}()
	if err != nil {
		l.release()
		return nil, err
	}
	ep := r.newEndpoint(l, addr, secret)
	r.lost.Ended(addr, lost)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(); err != nil {
		l.release()
		return nil, err
	}
	r.eps[ep] = struct{}{}
	r.wg.Go(func() { l.run(ep) })
	return ep, nil
}

// ended forgets an endpoint, except that its peer must hear of it if there are
// writes that it may still apply.
func (r *Rail) ended(ep *endpoint, unsure bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.eps, ep)
	if !r.closed && unsure {
		r.lost.Add(ep.addr, ep.secret)
	}
}

// accept serves connections until the listener is closed.
func (r *Rail) accept() {
	for {
		c, err := r.ln.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			r.guests.Failed(err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-r.quit:
			}
			continue
		}
		g := &guest{r: r, c: c, since: time.Now()}
		if r.guests.Admit(g, connection.PeerOf(c.RemoteAddr())) != nil {
			_ = c.Close()
			continue
		}
		r.mu.Lock()
		closed := r.closed
		if !closed {
			r.conns[g] = struct{}{}
			r.wg.Go(func() { r.serve(g) })
		}
		r.mu.Unlock()
		if closed {
			r.guests.Leave(g)
			_ = c.Close()
		}
	}
}

// greetWithin is how long a connection may take to say what it is: as on the rails over
// sockets.
const greetWithin = 5 * time.Second

// serve carries one connection.
func (r *Rail) serve(g *guest) {
	defer r.dismiss(g)
	s, err := r.welcome(g)
	if err != nil {
		if !errors.Is(err, net.ErrClosed) { // by us
			r.dropped(g.c.RemoteAddr().String(), err)
		}
		_ = g.c.Close()
		return
	}
	s.run(s)
	if err := s.failed(); errors.Is(err, transport.ErrProtocol) {
		r.dropped(s.peer, err)
	}
}

// dropped logs that a connection was no rail's, or did not behave as one.
func (r *Rail) dropped(peer string, err error) {
	if held, ok := r.strange.Line(time.Now()); ok {
		r.cfg.Logger.Warn("transport/rdma: connection dropped", "rail", r.cfg.Name, "peer", peer, "err", err, "since_last_line", held)
	}
}

// welcome answers a greeting. Connections that it says were lost are ended before the answer:
// by that the initiator knows that no write of theirs will land.
func (r *Rail) welcome(guest *guest) (*served, error) {
	c := guest.c
	_ = c.SetDeadline(time.Now().Add(greetWithin))
	g, err := readGreeting(c)
	if err != nil {
		return nil, err
	}
	for _, s := range g.lost {
		r.Fence(s)
	}
	// As many pairs as the initiator has. What a stranger can have made so is bounded by the
	// number of guests, and by greetWithin if it says nothing.
	l, err := r.newLink(c, len(g.pairs), r.cfg.QueueDepth)
	if err != nil {
		return nil, err
	}
	if err := l.connect(g); err != nil {
		l.release()
		return nil, err
	}
	s := newServed(l, g.name)
	r.mu.Lock()
	if err = r.usable(); err == nil {
		err = r.byName.Add(g.name, s)
	}
	if err == nil {
		guest.served = s
	}
	r.mu.Unlock()
	if err != nil {
		l.release()
		return nil, err
	}
	_, _ = c.Write(l.greeting(g.name, nil).append(nil)) // what fails is noticed by read
	_ = c.SetDeadline(time.Time{})
	return s, nil
}

// Fence implements transport.Rail.
func (r *Rail) Fence(secret transport.Secret) { r.byName.Fence(secret) }

// dismiss gives a guest's place to others.
func (r *Rail) dismiss(g *guest) {
	r.guests.Leave(g)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, g)
}

// Close implements transport.Rail. Links end first, then what they were made of: memory is
// deregistered and the device closed once nobody uses it. A second call waits for the first.
func (r *Rail) Close() error {
	r.mu.Lock()
	first := !r.closed
	r.closed = true
	r.mu.Unlock()
	var err error
	if first {
		close(r.quit)
		err = r.ln.Close()
		r.cutAll(net.ErrClosed)
		r.users.Wait()
		r.regs.close()
		r.mu.Lock()
		dev := r.dev
		r.dev = nil
		r.mu.Unlock()
		if dev != nil {
			err = errors.Join(err, dev.close())
		}
	}
	r.wg.Wait()
	return err
}

// cutAll fails every link, and connections that are none yet. It does not wait for their end.
func (r *Rail) cutAll(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ep := range r.eps {
		ep.fail(err)
	}
	for g := range r.conns {
		g.end(err)
	}
}
