// Package transporttest has a rail in memory with scripted faults, and TestRail,
// the contract of transport.Rail executed.
//
// The rail works inside testing/synctest bubbles, so tests of deadlines,
// retries and pacing are exact and take no time. Faults are data: a list of
// which slice meets what.
package transporttest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"kvferry/transport"
	"kvferry/transport/connection"
)

// A Network connects rails in memory.
type Network struct {
	// Gauged has each endpoint be a transport.Gauge, as those of TCP are. Set it before Dial.
	Gauged bool

	mu    sync.Mutex
	rails map[string]*Rail   // by address; nil while one is down
	holes map[string]bool    // addresses where Dial hangs
	late  []func()           // deliver what Late holds back
	stuck map[*Rail]bool     // rails that Late has met: nothing else of them gets through
	apart map[[2]string]bool // from and to, where every Dial fails
}

// NewNetwork returns a network without rails.
func NewNetwork() *Network {
	return &Network{rails: make(map[string]*Rail), holes: make(map[string]bool)}
}

// A Kind is what a fault does to the slice it meets.
type Kind string

const (
	// Fail completes the slice with Fault.Err and applies nothing. An error that is
	// not transport.Refused breaks the endpoint too.
	Fail Kind = "fail"
	// Cut breaks the endpoint before the slice is applied.
	Cut Kind = "cut"
	// CutAfter breaks it after the slice is applied and before the initiator
	// hears of it: the initiator cannot tell it from Cut.
	CutAfter Kind = "cut-after"
	// Stall makes the endpoint a black hole from this slice on: nothing
	// completes until it is closed.
	Stall Kind = "stall"
	// Late makes the endpoint a black hole too, but what it holds is on its way:
	// Network.Arrive delivers it, unless the target has fenced the connection. Until
	// then nothing else of the rail gets through, new connections neither.
	Late Kind = "late"
	// Delay applies the slice after Fault.Delay.
	Delay Kind = "delay"
)

// A Fault happens to the Slice-th slice that the initiating rail carries,
// counted from 1 over all its endpoints.
type Fault struct {
	Slice int
	Kind  Kind
	Delay time.Duration
	Err   error // of Fail; default ErrBadKey
}

// A Rail is one in-memory NIC, named mem/NAME, its address NAME.
type Rail struct {
	n    *Network
	name string

	// Depth is the queue of each endpoint, in slices: less than other rails have, so that
	// tests fill it. Set it before Dial.
	Depth   int
	mu      sync.Mutex
	regions map[transport.Key]*region // nil once closed
	handler func(transport.Key, transport.Imm) error
	eps     map[*endpoint]struct{} // made here
	peers   map[*endpoint]struct{} // endpoints of others that reach this rail
	faults  map[int]Fault
	lost    connection.Losses
	served  connection.Served
	carried int       // slices, which the numbers of faults count
	rate    float64   // bytes/s; 0 is no limit
	free    time.Time // when what was carried has left, at that rate
	hole    bool      // nothing completes
	dials   int
	closed  bool
	gone    chan struct{} // closed when Close has done its work

	landing sync.Mutex // guards fenced, and late slices while they land
	fenced  map[transport.Name]bool
}

// A region is registered memory. Deregister and Close take its mu for writing, and so wait
// for the operations under way.
type region struct {
	access transport.Access

	mu  sync.RWMutex // read-locked by operations
	mem []byte       // nil once deregistered
}

// Rail adds a rail, or brings one back under a name that was closed.
func (n *Network) Rail(name string) *Rail {
	r := &Rail{
		n: n, name: name, Depth: 64, regions: make(map[transport.Key]*region),
		eps: make(map[*endpoint]struct{}), peers: make(map[*endpoint]struct{}), faults: make(map[int]Fault),
		fenced: make(map[transport.Name]bool), gone: make(chan struct{}),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.rails[name] != nil {
		panic("transporttest: a second rail named " + name)
	}
	n.rails[name] = r
	return r
}

// BlackHole makes Dial to name hang until its context ends, as where packets are dropped
// without a word, or no longer.
func (n *Network) BlackHole(name string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.holes[name] = on
}

// Part makes every Dial from one rail to another fail at once, as where there is no route.
func (n *Network) Part(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.apart == nil {
		n.apart = make(map[[2]string]bool)
	}
	n.apart[[2]string{from, to}] = true
}

// Arrive delivers what Late has held back.
func (n *Network) Arrive() {
	n.mu.Lock()
	late := n.late
	n.late, n.stuck = nil, nil
	n.mu.Unlock()
	for _, deliver := range late {
		deliver()
	}
}

// Inject adds faults to the rail's script.
func (r *Rail) Inject(faults ...Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range faults {
		if f.Kind == Fail && f.Err == nil {
			f.Err = transport.ErrBadKey
		}
		r.faults[f.Slice] = f
	}
}

// SetRate makes the rail carry that many bytes per second, 0 as many as it can.
func (r *Rail) SetRate(rate float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rate = rate
}

// BlackHole makes every slice posted from now on, and those under way, stall until
// the endpoint is closed, and Dial hang; or no longer.
func (r *Rail) BlackHole(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hole = on
}

// Sever breaks the endpoints that there are, as if the peer had closed them.
func (r *Rail) Sever() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ep := range r.eps {
		ep.Cut(fmt.Errorf("%w: connection to %q lost", transport.ErrUnreachable, ep.peer.name))
	}
}

// leaves says when a slice has left at the rail's rate.
func (r *Rail) leaves(n int) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.rate == 0 {
		return now
	}
	if r.free.Before(now) {
		r.free = now
	}
	r.free = r.free.Add(time.Duration(float64(n) / r.rate * 1e9))
	return r.free
}

func (r *Rail) isHole() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hole
}

// Carried is how many slices the rail has taken from its queues.
func (r *Rail) Carried() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.carried
}

// Dials is how many times the rail was asked to connect.
func (r *Rail) Dials() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dials
}

// Name implements transport.Rail.
func (r *Rail) Name() string { return "mem/" + r.name }

// Addr implements transport.Rail.
func (r *Rail) Addr() string { return r.name }

// HandleImmediates implements transport.Rail.
func (r *Rail) HandleImmediates(f func(transport.Key, transport.Imm) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handler = f
}

// Register implements transport.Rail.
func (r *Rail) Register(mem []byte, access transport.Access) (transport.Key, error) {
	if err := access.Within(int64(len(mem))); err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, net.ErrClosed
	}
	if mem == nil { // which is how a region is deregistered
		mem = []byte{}
	}
	key := transport.NewKey()
	r.regions[key] = &region{mem: mem, access: access}
	return key, nil
}

// WatchesWrites implements transport.WriteWatcher.
func (r *Rail) WatchesWrites() bool { return true }

// Deregister implements transport.Rail.
func (r *Rail) Deregister(key transport.Key) error {
	r.mu.Lock()
	g, closed := r.regions[key], r.closed
	delete(r.regions, key)
	r.mu.Unlock()
	if closed {
		return net.ErrClosed
	}
	if g == nil {
		return transport.ErrBadKey
	}
	g.mu.Lock()
	g.mem = nil
	g.mu.Unlock()
	return nil
}

// Dial implements transport.Rail.
func (r *Rail) Dial(ctx context.Context, addr string) (transport.Endpoint, error) {
	r.n.mu.Lock()
	peer, hole, apart := r.n.rails[addr], r.n.holes[addr] || r.n.stuck[r], r.n.apart[[2]string{r.name, addr}]
	r.n.mu.Unlock()
	r.mu.Lock()
	r.dials++
	closed := r.closed
	r.mu.Unlock()
	if closed {
		return nil, net.ErrClosed
	}
	for (hole || r.isHole()) && ctx.Err() == nil { // the first packet is sent again now and then
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
			r.n.mu.Lock()
			hole = r.n.holes[addr] || r.n.stuck[r]
			r.n.mu.Unlock()
		}
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", transport.ErrUnreachable, ctx.Err())
	}
	if peer == nil || apart {
		return nil, fmt.Errorf("%w: no rail at %q", transport.ErrUnreachable, addr)
	}
	ep := &endpoint{
		secret: transport.NewSecret(), rail: r, peer: peer, room: connection.Room{Slices: r.Depth},
		more: make(chan struct{}, 1), cut: make(chan struct{}), over: make(chan struct{}),
	}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, net.ErrClosed
	}
	r.eps[ep] = struct{}{}
	r.mu.Unlock()
	lost := r.lost.Of(addr)
	for _, secret := range lost {
		peer.Fence(secret)
	}
	r.lost.Ended(addr, lost)
	_ = peer.served.Add(ep.secret.Name(), ep) // no other has this secret
	peer.mu.Lock()
	defer peer.mu.Unlock()
	if peer.closed {
		ep.Cut(fmt.Errorf("%w: %q is closed", transport.ErrUnreachable, addr))
	}
	peer.peers[ep] = struct{}{}
	go ep.run()
	if r.n.Gauged {
		return &gauged{endpoint: ep}, nil
	}
	return ep, nil
}

// Fence implements transport.Rail.
func (r *Rail) Fence(secret transport.Secret) {
	r.landing.Lock()
	r.fenced[secret.Name()] = true
	r.landing.Unlock()
	r.served.Fence(secret)
}

// arrive applies a slice that was on its way, unless its connection was fenced: one
// or the other is first.
func (r *Rail) arrive(name transport.Name, s *transport.Slice) {
	r.landing.Lock()
	defer r.landing.Unlock()
	if !r.fenced[name] {
		_ = r.apply(s, s.Local)
	}
}

// Close implements transport.Rail. Peers' endpoints to the rail break.
func (r *Rail) Close() error {
	r.n.mu.Lock()
	if r.n.rails[r.name] == r {
		delete(r.n.rails, r.name)
	}
	r.n.mu.Unlock()
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		<-r.gone
		return nil
	}
	r.closed = true
	regions := r.regions
	r.regions = nil
	var eps []*endpoint
	for ep := range r.eps {
		eps = append(eps, ep)
	}
	for ep := range r.peers {
		ep.Cut(fmt.Errorf("%w: connection to %q lost", transport.ErrUnreachable, r.name))
	}
	r.mu.Unlock()
	for _, ep := range eps {
		_ = ep.Close()
	}
	for _, g := range regions {
		g.mu.Lock()
		g.mem = nil
		g.mu.Unlock()
	}
	close(r.gone)
	return nil
}

// next counts a slice and returns the fault scripted for it.
func (r *Rail) next() Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.carried++
	return r.faults[r.carried]
}

// apply carries out a slice at its target. local are the bytes of its Local.
func (r *Rail) apply(s *transport.Slice, local []byte) error {
	r.mu.Lock()
	g, handler := r.regions[s.Key], r.handler
	r.mu.Unlock()
	if g == nil || g.access.None() {
		return r.unknown()
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.mem == nil {
		return r.unknown()
	}
	if _, err := g.access.Check(s.Op, s.Offset, int64(len(s.Local)), 0); err != nil {
		return err
	}
	if len(local) > 0 {
		at := g.mem[s.Offset:][:len(local)]
		if s.Op == transport.Write {
			copy(at, local)
			if wrote := g.access.Wrote(); wrote != nil && len(local) > 0 {
				wrote(s.Offset, int64(len(local)))
			}
		} else {
			copy(local, at)
		}
	}
	if s.HasImm && handler != nil {
		return handler(s.Key, s.Imm)
	}
	return nil
}

// unknown is the answer to a key without a region: a closed rail gives none.
func (r *Rail) unknown() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fmt.Errorf("%w: %q is closed", transport.ErrUnreachable, r.name)
	}
	return transport.ErrBadKey
}
