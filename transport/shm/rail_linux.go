package shm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"
	"unsafe"

	"kvferry/internal/config"
	"kvferry/transport"
	"kvferry/transport/connection"
	"kvferry/transport/descriptor"
	"kvferry/transport/process"
)

const (
	// stallGrace is how long a copy under a key that is taken back may go on before its connection is
	// cut: a thousand times what 1 MiB takes.
	stallGrace = 200 * time.Millisecond
	// closeWithin is how long Close waits for one.
	closeWithin = 10 * time.Second
	// helloWithin bounds the wait for a new connection's hello.
	helloWithin = 5 * time.Second
)

// Rail implements transport.Rail.
type Rail struct {
	cfg     Config
	ln      *net.UnixListener
	addr    string
	machine string    // of this machine, network namespace and user
	told    sync.Once // what memory there is
	probe   *[16]byte
	bell    *bell
	listens sync.Once // at the bell: once somebody is connected, as that takes a thread
	guests  *connection.Admission
	byName  connection.Served
	strange connection.Sparse // lines about connections that are no rail's
	handler func(transport.Key, transport.Imm) error
	wg      sync.WaitGroup

	abandoned chan struct{} // closed when Close has waited for long enough
	patience  time.Duration // closeWithin; less in tests

	regionsMu sync.RWMutex
	regions   map[transport.Key]*region // nil after Close

	mu     sync.Mutex
	closed bool
	eps    map[*endpoint]struct{}
	conns  map[*served]struct{}
	gone   chan struct{} // closed when Close has done its work
	err    error         // of Close
}

// New listens and serves. The caller closes the rail, or gives it to an engine.
func New(cfg Config) (*Rail, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	config.Default(&cfg.Logger, slog.Default())
	fail := func(err error) (*Rail, error) {
		return nil, &transport.Error{Op: "listen", Rail: cfg.Name, Err: err}
	}
	if err := process.Supported(); err != nil {
		return fail(err)
	}
	process.Permit()
	r := &Rail{
		cfg: cfg, machine: process.Machine(), probe: new([16]byte),
		guests:    connection.NewAdmission(connection.AdmissionConfig{Rail: cfg.Name, Fixed: true, Logger: cfg.Logger}),
		abandoned: make(chan struct{}), patience: closeWithin,
		regions: make(map[transport.Key]*region),
		eps:     make(map[*endpoint]struct{}), conns: make(map[*served]struct{}), gone: make(chan struct{}),
	}
	_, _ = rand.Read(r.probe[:]) // never fails
	r.addr = prefix + r.machine + "/" + rand.Text()
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: r.addr, Net: "unixpacket"})
	if err != nil {
		return fail(err)
	}
	r.ln = ln
	if r.bell, err = newBell(); err != nil {
		_ = ln.Close()
		return fail(err)
	}
	cfg.Logger.Info("transport/shm: this rail is one-sided: a process of this user that is given a key can touch all of the memory around it",
		"rail", cfg.Name, "uid", os.Getuid())
	r.wg.Go(r.accept)
	return r, nil
}

// prefix is how addresses begin. Sockets whose names begin with @ have no file.
const prefix = "@kvferry-shm/"

// Name implements transport.Rail.
func (r *Rail) Name() string { return r.cfg.Name }

// Addr implements transport.Rail.
func (r *Rail) Addr() string { return r.addr }

// Scope names the rails that this one reaches: those of this machine, network namespace and user.
func (r *Rail) Scope() string { return r.machine }

// Route implements transport.Router.
func (r *Rail) Route(addr string) (transport.Reach, string) {
	if !strings.HasPrefix(addr, prefix+r.machine+"/") {
		return transport.NoRoute, "it is on another machine, in another network namespace, or another user's"
	}
	return transport.OneSided, ""
}

// HandleImmediates implements transport.Rail.
func (r *Rail) HandleImmediates(f func(transport.Key, transport.Imm) error) {
	r.handler = f // seen by connections through the keys registered later
}

// Register implements transport.Rail.
func (r *Rail) Register(mem []byte, access transport.Access) (transport.Key, error) {
	if err := access.Within(int64(len(mem))); err != nil {
		return 0, err
	}
	g := &region{mem: mem, access: access, grants: make(map[*served]grantedSlot), idle: make(chan struct{})}
	g.file, g.offset = fileOf(mem)
	if len(mem) > 0 {
		r.told.Do(func() {
			r.cfg.Logger.Info("transport/shm: the memory of this rail", "rail", r.cfg.Name, "pages", pagesOf(g.file))
		})
	}
	r.regionsMu.Lock()
	defer r.regionsMu.Unlock()
	if r.regions == nil {
		return 0, net.ErrClosed
	}
	key := transport.NewKey()
	r.regions[key] = g
	return key, nil
}

// Deregister implements transport.Rail. See the package comment for how long it waits.
func (r *Rail) Deregister(key transport.Key) error {
	r.regionsMu.Lock()
	closed := r.regions == nil
	g := r.regions[key]
	delete(r.regions, key)
	r.regionsMu.Unlock()
	switch {
	case closed:
		return net.ErrClosed
	case g == nil:
		return transport.ErrBadKey
	}
	return g.retire()
}

// region is what peers know by a key, or nil.
func (r *Rail) region(key transport.Key) *region {
	r.regionsMu.RLock()
	defer r.regionsMu.RUnlock()
	if g := r.regions[key]; g != nil && !g.access.None() {
		return g
	}
	return nil
}

// Dial implements transport.Rail. That nothing of a connection that was lost lands any more needs no
// word to the peer: it was this process that copied, and it has stopped.
func (r *Rail) Dial(ctx context.Context, addr string) (transport.Endpoint, error) {
	r.mu.Lock()
	closed := r.closed
	r.mu.Unlock()
	if closed {
		return nil, net.ErrClosed
	}
	if !strings.HasPrefix(addr, prefix) {
		return nil, fmt.Errorf("%w: %q is no address of a shm rail", transport.ErrUnreachable, addr)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unixpacket", addr)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w: %w", transport.ErrUnreachable, err)
	}
	ep := newEndpoint(r, c.(*net.UnixConn))
	if err := ep.introduce(ctx); err != nil {
		_ = c.Close()
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, transport.ErrProtocol):
			return nil, err
		}
		return nil, fmt.Errorf("%w: hello: %w", transport.ErrUnreachable, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		_ = c.Close()
		ep.unmap()
		return nil, net.ErrClosed
	}
	r.eps[ep] = struct{}{}
	r.wg.Add(1)
	go ep.live()
	return ep, nil
}

// accept serves connections until the listener is closed.
func (r *Rail) accept() {
	r.guests.Accept(r.ln, func(c net.Conn) {
		s := newServed(r, c.(*net.UnixConn))
		if !r.admit(s) {
			_ = c.Close()
			return
		}
		go s.serve()
	})
}

// admit takes a new connection in, to be served, or refuses it.
func (r *Rail) admit(s *served) bool {
	if r.guests.Admit(s, process.Name(s.c)) != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		r.guests.Leave(s)
		return false
	}
	r.conns[s] = struct{}{}
	r.wg.Add(1)
	r.listens.Do(func() { r.wg.Go(r.bell.listen) })
	return true
}

// dismiss ends what the rail has to do with a connection, which touches nothing any more.
func (r *Rail) dismiss(s *served) {
	r.guests.Leave(s)
	r.byName.Remove(s.name, s)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, s)
}

// Fence implements transport.Rail.
func (r *Rail) Fence(secret transport.Secret) { r.byName.Fence(secret) }

// Close implements transport.Rail. It waits for 10 s at most for a peer that was stopped in the middle of a
// WRITE; the error then names its process, and the memory must not be used for anything else.
func (r *Rail) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		<-r.gone
		return nil
	}
	r.closed = true
	var eps []*endpoint
	for ep := range r.eps {
		eps = append(eps, ep)
	}
	for s := range r.conns {
		s.cut()
	}
	r.mu.Unlock()
	err := r.ln.Close()
	for _, ep := range eps {
		_ = ep.Close()
	}
	r.bell.stop()
	late := time.AfterFunc(r.patience, func() { close(r.abandoned) })
	r.wg.Wait()
	late.Stop()
	r.bell.close()
	r.regionsMu.Lock()
	r.regions = nil
	r.regionsMu.Unlock()
	r.mu.Lock()
	r.err = errors.Join(r.err, err)
	r.mu.Unlock()
	close(r.gone)
	return r.err
}

// pagesOf says how peers reach memory, and what would be faster.
func pagesOf(f *descriptor.Memory) string {
	switch {
	case f == nil:
		return "no memfd: peers copy by process_vm_writev and process_vm_readv"
	case huge(f.FD):
		return "memfd, huge pages"
	}
	return "memfd, ordinary pages: there are not enough huge ones (vm.nr_hugepages)"
}

// addressOf is where memory begins in this process.
func addressOf(b []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}
