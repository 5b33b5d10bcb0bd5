package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A Transport has the connections to any number of servers. Its methods may be called
// from several goroutines.
type Transport struct {
	cfg     Config
	pollers []*poller
	next    atomic.Uint32 // poller of the next connection

	mu     sync.Mutex
	known  map[string][]netip.AddrPort // what names were resolved to, the one that answered first
	idle   map[netip.AddrPort][]*conn  // the latest last
	closed bool
}

// New returns a transport. Close it after use.
func New(cfg Config) (*Transport, error) {
	t := &Transport{cfg: cfg.withDefaults(), known: map[string][]netip.AddrPort{}, idle: map[netip.AddrPort][]*conn{}}
	for range t.cfg.Pollers {
		p, err := newPoller(t)
		if err != nil {
			t.Close()
			return nil, err
		}
		t.pollers = append(t.pollers, p)
	}
	return t, nil
}

// Close ends what is under way with ErrClosed, and all connections. It returns when no
// handler is called any more.
func (t *Transport) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	for _, p := range t.pollers {
		p.close()
	}
}

// Do sends a request, head and body, to address, "host:port", and returns when its answer is
// over: nil if it was whole, or what went wrong, which may be the handler's own error. The
// handler is not called after that. When ctx is done the error is its cause.
func (t *Transport) Do(ctx context.Context, address string, request []byte, h Handler) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	over := &call{handler: h, over: make(chan error, 1)}
	for {
		c, err := t.connection(ctx, address)
		if err != nil {
			return err
		}
		if c.begin(over, request) {
			return over.wait(ctx, c.fail)
		}
	}
}

// connection is one at rest, or a new one.
func (t *Transport) connection(ctx context.Context, address string) (*conn, error) {
	addrs, err := t.resolve(ctx, address)
	if err != nil {
		return nil, err
	}
	if c := t.take(addrs[0]); c != nil {
		return c, nil
	}
	var faults []error
	for i, addr := range addrs {
		c, err := t.dial(ctx, addr)
		if err == nil {
			if i > 0 { // localhost is ::1 first, and many servers listen on 127.0.0.1 only
				t.mu.Lock()
				t.known[address] = append([]netip.AddrPort{addr}, slices.Delete(slices.Clone(addrs), i, i+1)...)
				t.mu.Unlock()
			}
			return c, nil
		}
		faults = append(faults, err)
	}
	return nil, errors.Join(faults...)
}

// resolve asks for a name's addresses once: a look-up must not be part of a measurement.
func (t *Transport) resolve(ctx context.Context, address string) ([]netip.AddrPort, error) {
	t.mu.Lock()
	addrs, closed := t.known[address], t.closed
	t.mu.Unlock()
	switch {
	case closed:
		return nil, ErrClosed
	case addrs != nil:
		return addrs, nil
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%s: port: %w", address, err)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConnect, err)
	}
	for _, ip := range ips {
		addrs = append(addrs, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known[address] = addrs
	return addrs, nil
}

// take is the connection that has rested shortest, nil if none is fresh enough. Those that
// have rested too long are closed.
func (t *Transport) take(addr netip.AddrPort) *conn {
	t.mu.Lock()
	list := t.idle[addr]
	var c *conn
	if n := len(list); n > 0 && t.cfg.Now()-list[n-1].rested < t.cfg.Rest {
		c, list[n-1] = list[n-1], nil
		list = list[:n-1]
	}
	stale := 0
	for stale < len(list) && t.cfg.Now()-list[stale].rested >= t.cfg.Rest {
		stale++
	}
	old := slices.Clone(list[:stale])
	t.idle[addr] = list[stale:]
	t.mu.Unlock()
	for _, o := range old {
		o.fail(errStale)
	}
	return c
}

var errStale = errors.New("not used for too long")

// rest keeps a connection for the next request.
func (t *Transport) rest(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.rested = t.cfg.Now()
	t.idle[c.addr] = append(t.idle[c.addr], c)
}

// forget drops a connection that ended at rest.
func (t *Transport) forget(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.idle[c.addr], c); i >= 0 {
		t.idle[c.addr] = slices.Delete(t.idle[c.addr], i, i+1)
	}
}

// dial opens a connection.
func (t *Transport) dial(ctx context.Context, addr netip.AddrPort) (*conn, error) {
	p := t.pollers[int(t.next.Add(1))%len(t.pollers)]
	c, err := p.connect(addr)
	if err != nil {
		return nil, fmt.Errorf("%w: connect to %v: %w", ErrConnect, addr, err)
	}
	patience := time.NewTimer(t.cfg.Connect)
	defer patience.Stop()
	select {
	case err = <-c.up:
	case <-patience.C:
		err = fmt.Errorf("no connection within %v", t.cfg.Connect)
	case <-ctx.Done():
		c.fail(context.Cause(ctx))
		return nil, context.Cause(ctx)
	}
	if err != nil {
		c.fail(err)
		return nil, fmt.Errorf("%w: connect to %v: %w", ErrConnect, addr, err)
	}
	return c, nil
}
