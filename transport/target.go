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

	"kvferry/transport/selection"
)

// A Target is a peer's segment, or a window of it, opened for transfers. It holds no
// memory and no key of ours: it is what batches are addressed to.
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
// every Config.BackoffMax until the target is closed. A description that is faulty is
// ErrInvalid, and ErrNoPath if no rail here reaches one of the peer's. Whether the keys
// are good only a batch finds out.
func (e *Engine) Open(info SegmentInfo) (*Target, error) {
	fail := func(err error) (*Target, error) {
		return nil, &Error{Op: "open " + info.Name, Err: err}
	}
	if info.Length <= 0 {
		return fail(fmt.Errorf("%w: length %d", ErrInvalid, info.Length))
	}
	if len(info.Rails) > selection.MaxPaths {
		return fail(fmt.Errorf("%w: it names %d rails, and a peer has at most %d", ErrInvalid, len(info.Rails), selection.MaxPaths))
	}
	info.Rails = slices.Clone(info.Rails)
	t := &Target{e: e, info: info, keys: make(map[string]Key), ranks: make(map[string]uint8)}
	t.refs.Store(1)
	near := kinds(e.cfg.Rails)
	var addrs, far []string // far are kinds that may be used for its memory
	for _, r := range info.Rails {
		k := kind(r.Rail)
		if r.Rank >= 0 {
			far = append(far, k)
		}
		if !slices.Contains(near, k) {
			continue
		}
		if r.Key == 0 || r.Addr == "" {
			return fail(fmt.Errorf("%w: rail %q has key %d and address %q", ErrInvalid, r.Rail, r.Key, r.Addr))
		}
		t.keys[r.Addr], t.ranks[r.Addr] = r.Key, clampRank(r.Rank)
		addrs = append(addrs, k+" "+r.Addr)
	}
	if !slices.ContainsFunc(far, func(k string) bool { return slices.Contains(near, k) }) {
		there := cmp.Or(strings.Join(slices.Compact(far), ", "), "none")
		return fail(fmt.Errorf("%w: rails here are of kind %s, those there that may be used for its memory of kind %s", ErrNoPath, strings.Join(near, ", "), there))
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
	g := &peer{e: e, id: id, stop: make(chan struct{}), busy: make(chan struct{}, 1)}
	g.drowsy.Store(true)
	var whys []error
	for _, k := range kinds(e.cfg.Rails) {
		var local []int
		for i, r := range e.cfg.Rails {
			if kind(r.Name()) == k {
				local = append(local, i)
			}
		}
		remote := slices.DeleteFunc(slices.Clone(rails), func(r RailAddr) bool { return kind(r.Rail) != k })
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
				if order[reach] < 0 {
					bad++
					whys = append(whys, fmt.Errorf("%s does not reach %s: %s", e.cfg.Rails[l].Name(), r.Addr, why))
				}
			}
			if bad > 0 && bad == len(remote) {
				e.cfg.Logger.Warn("transport: rail is not used", "rail", e.cfg.Rails[l].Name(), "err", errors.Join(whys[len(whys)-bad:]...))
			}
		}
		for _, m := range selection.Pair(len(local), len(remote), func(i, j int) int { return order[reaches[[2]int{i, j}]] }) {
			l := local[m.Local]
			p := &path{e: e, peer: g, index: len(g.paths), rail: l, acct: &e.accts[l], order: reaches[[2]int{m.Local, m.Remote[0]}].standsBy(), stop: make(chan struct{})}
			for _, j := range m.Remote {
				p.addrs = append(p.addrs, remote[j].Addr)
			}
			g.paths = append(g.paths, p)
		}
	}
	if len(g.paths) == 0 {
		return nil, fmt.Errorf("%w: %w", ErrNoPath, errors.Join(whys...))
	}
	if len(g.paths) > selection.MaxPaths {
		return nil, fmt.Errorf("%w: rails here and there make %d paths, at most %d can be used: give the engines fewer rails", ErrInvalid, len(g.paths), selection.MaxPaths)
	}
	return g, nil
}

func kinds(rails []Rail) []string {
	var ks []string
	for _, r := range rails {
		ks = append(ks, kind(r.Name()))
	}
	slices.Sort(ks)
	return slices.Compact(ks)
}

// Close lets the target's connections go once its batches have ended and
// Config.IdleTimeout has passed without another Open of the same peer. It does not wait
// for that, and batches under way go on; one submitted when they have ended is
// ErrInvalid. It returns nil, also the second time and after the engine's Close.
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
