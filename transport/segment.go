package transport

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

// RailAddr says how one rail reaches a segment.
type RailAddr struct {
	Rail string // name of the owner's rail: "tcp/eth0"
	Addr string // what a peer dials
	Key  Key    // of the segment on that rail
	Rank int    // how far that rail is from the segment: 0 is close, 1 can be used
}

// SegmentInfo is what a segment's owner advertises to its peers. Whoever has
// it may read and write the segment.
type SegmentInfo struct {
	Name     string
	Length   int64  // bytes
	Location string // "cpu:0"
	Rails    []RailAddr
}

// A Segment is registered local memory: the source and destination of this
// engine's transfers, and a target of its peers'.
type Segment struct {
	e     *Engine
	mem   []byte
	info  SegmentInfo
	keys  []Key   // one for each of the engine's rails
	ranks []uint8 // how far each is from the memory

	mu     sync.Mutex
	refs   int // batches that use mem
	idle   *sync.Cond
	closed bool
	err    error
}

// Register makes mem a segment on every rail. mem must stay mapped until the
// segment's or the engine's Close has returned.
func (e *Engine) Register(name string, mem []byte, location string) (*Segment, error) {
	fail := func(rail string, err error) (*Segment, error) {
		return nil, &Error{Op: "register " + name, Rail: rail, Err: err}
	}
	if len(mem) == 0 {
		return fail("", fmt.Errorf("%w: empty memory", ErrInvalid))
	}
	s := &Segment{e: e, mem: mem, info: SegmentInfo{Name: name, Length: int64(len(mem)), Location: location}}
	s.idle = sync.NewCond(&s.mu)
	for i, r := range e.cfg.Rails {
		key, err := r.Register(mem)
		if err != nil {
			for j, k := range s.keys {
				_ = e.cfg.Rails[j].Deregister(k)
			}
			return fail(e.cfg.Rails[i].Name(), err)
		}
		rank := 0
		if e.cfg.Rank != nil {
			rank = e.cfg.Rank(location, r.Name())
		}
		s.keys = append(s.keys, key)
		s.ranks = append(s.ranks, clampRank(rank))
		s.info.Rails = append(s.info.Rails, RailAddr{Rail: r.Name(), Addr: r.Addr(), Key: key, Rank: rank})
	}
	if slices.Min(s.ranks) == unseen {
		for i, k := range s.keys {
			_ = e.cfg.Rails[i].Deregister(k)
		}
		return fail("", fmt.Errorf("%w: no rail may be used for memory at %s", ErrNoPath, location))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fail("", net.ErrClosed)
	}
	e.segs.Store(new(append(slices.Clone(*e.segs.Load()), s)))
	return s, nil
}

// Info is what peers need to open the segment.
func (s *Segment) Info() SegmentInfo {
	info := s.info
	info.Rails = slices.Clone(info.Rails)
	return info
}

// Bytes is the registered memory.
func (s *Segment) Bytes() []byte { return s.mem }

// Close deregisters the segment on all rails. It waits for this engine's
// batches that use the memory, which their deadlines bound, and for peers'
// operations under way; then nothing touches the memory any more. Closing
// again, or after the engine's Close, returns nil.
func (s *Segment) Close() error {
	e := s.e
	e.mu.Lock()
	e.segs.Store(new(slices.DeleteFunc(slices.Clone(*e.segs.Load()), func(o *Segment) bool { return o == s })))
	e.mu.Unlock()

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.err
	}
	s.closed = true
	for s.refs > 0 {
		s.idle.Wait()
	}
	var errs []error
	for i, r := range e.cfg.Rails {
		if err := r.Deregister(s.keys[i]); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, &Error{Op: "deregister " + s.info.Name, Rail: r.Name(), Err: err})
		}
	}
	s.err = errors.Join(errs...)
	return s.err
}

func (s *Segment) acquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.refs++
	return true
}

func (s *Segment) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refs--; s.refs == 0 {
		s.idle.Broadcast()
	}
}

// holds reports whether b lies inside the segment's memory.
func (s *Segment) holds(b []byte) bool {
	base := uintptr(unsafe.Pointer(unsafe.SliceData(s.mem)))
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return at >= base && at-base <= uintptr(len(s.mem)) && uintptr(len(b)) <= uintptr(len(s.mem))-(at-base)
}

// clampRank is a rank as paths have it.
func clampRank(rank int) uint8 {
	if rank < 0 {
		return unseen
	}
	return uint8(min(rank, unseen-1))
}

// A Target is a peer's segment, opened for transfers.
type Target struct {
	e     *Engine
	info  SegmentInfo
	peer  *peer
	keys  map[string]Key   // by address of the peer's rail
	ranks map[string]uint8 // likewise: how far that is from the segment
	refs  atomic.Int64     // Open's, and one for each batch under way
	once  sync.Once
}

// Open prepares transfers to and from a peer's segment. It does not wait:
// connections are made in the background, kept, shared between targets, and
// made again when they are lost; a peer that cannot be connected is tried about
// every Config.BackoffMax until the target is closed. Open fails if the description is faulty or no
// rail here reaches one of the peer's.
func (e *Engine) Open(info SegmentInfo) (*Target, error) {
	fail := func(err error) (*Target, error) {
		return nil, &Error{Op: "open " + info.Name, Err: err}
	}
	if info.Length <= 0 {
		return fail(fmt.Errorf("%w: length %d", ErrInvalid, info.Length))
	}
	info.Rails = slices.Clone(info.Rails)
	t := &Target{e: e, info: info, keys: make(map[string]Key), ranks: make(map[string]uint8)}
	t.refs.Store(1)
	var addrs []string
	for _, r := range info.Rails {
		if !slices.ContainsFunc(e.cfg.Rails, func(l Rail) bool { return kind(l.Name()) == kind(r.Rail) }) {
			continue
		}
		if r.Key == 0 || r.Addr == "" {
			return fail(fmt.Errorf("%w: rail %q has key %d and address %q", ErrInvalid, r.Rail, r.Key, r.Addr))
		}
		t.keys[r.Addr], t.ranks[r.Addr] = r.Key, clampRank(r.Rank)
		addrs = append(addrs, kind(r.Rail)+" "+r.Addr)
	}
	if len(addrs) == 0 {
		return fail(ErrNoPath)
	}
	id := strings.Join(addrs, " ")
	e.mu.Lock()
	g, closed := e.peers[id], e.closed
	if g != nil && !closed {
		t.hold(g)
	}
	e.mu.Unlock()
	if closed {
		return fail(net.ErrClosed)
	}
	if g != nil {
		g.prepare()
		return t, nil
	}
	g, err := e.newPeer(id, info.Rails) // asks the system about routes
	if err != nil {
		return fail(err)
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return fail(net.ErrClosed)
	}
	if other := e.peers[id]; other != nil {
		g = other
	} else {
		e.peers[id] = g
		if len(g.paths) > 1 {
			e.wg.Go(g.watch)
		}
	}
	t.hold(g)
	e.mu.Unlock()
	g.prepare()
	return t, nil
}

// hold takes a reference to a peer. The caller holds e.mu.
func (t *Target) hold(g *peer) {
	if g.idle != nil {
		g.idle.Stop()
		g.idle = nil
	}
	g.refs++
	t.peer = g
}

// prepare connects the paths ahead of the first slice.
func (g *peer) prepare() {
	for _, p := range g.paths {
		p.prepare()
	}
}

// newPeer pairs the rails here with those of a peer.
func (e *Engine) newPeer(id string, rails []RailAddr) (*peer, error) {
	g := &peer{e: e, id: id, stop: make(chan struct{})}
	var whys []error
	for _, k := range kinds(e.cfg.Rails) {
		var local []int
		for i, r := range e.cfg.Rails {
			if kind(r.Name()) == k {
				local = append(local, i)
			}
		}
		var remote []RailAddr
		for _, r := range rails {
			if kind(r.Rail) == k {
				remote = append(remote, r)
			}
		}
		reaches := make(map[[2]int]Reach)
		for i, l := range local {
			router, _ := e.cfg.Rails[l].(Router)
			bad := 0
			for j, r := range remote {
				if router == nil {
					continue
				}
				reach, why := router.Route(r.Addr)
				reaches[[2]int{i, j}] = reach
				if _, usable := order[reach]; !usable {
					bad++
					whys = append(whys, fmt.Errorf("%s does not reach %s: %s", e.cfg.Rails[l].Name(), r.Addr, why))
				}
			}
			if bad > 0 && bad == len(remote) {
				e.cfg.Logger.Warn("transport: rail is not used", "rail", e.cfg.Rails[l].Name(), "err", errors.Join(whys[len(whys)-bad:]...))
			}
		}
		for _, m := range pair(len(local), len(remote), func(i, j int) Reach { return reaches[[2]int{i, j}] }) {
			l := local[m.local]
			p := &path{e: e, peer: g, index: len(g.paths), rail: l, acct: &e.accts[l], stop: make(chan struct{})}
			for _, j := range m.remote {
				p.addrs = append(p.addrs, remote[j].Addr)
			}
			g.paths = append(g.paths, p)
		}
	}
	if len(g.paths) == 0 {
		return nil, fmt.Errorf("%w: %w", ErrNoPath, errors.Join(whys...))
	}
	return g, nil
}

func kinds(rails []Rail) []string {
	var ks []string
	for _, r := range rails {
		ks = append(ks, kind(r.Name()))
	}
	slices.SortFunc(ks, cmp.Compare)
	return slices.Compact(ks)
}

// Info is what the target was opened with.
func (t *Target) Info() SegmentInfo {
	info := t.info
	info.Rails = slices.Clone(info.Rails)
	return info
}

// Close lets the target's connections go once its batches have ended and
// Config.IdleTimeout has passed without another Open of the same peer.
func (t *Target) Close() error {
	t.once.Do(t.release)
	return nil
}

func (t *Target) release() {
	if t.refs.Add(-1) > 0 {
		return
	}
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	t.e.unrefLocked(t.peer)
}

// acquire fails on a closed target without batches.
func (t *Target) acquire() bool {
	for {
		n := t.refs.Load()
		if n == 0 {
			return false
		}
		if t.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}
