package transport

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// RailAddr says how one rail reaches a segment.
type RailAddr struct {
	Rail string // name of the owner's rail: "tcp/eth0"
	Addr string // what a peer dials
	Key  Key    // of the segment on that rail
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
	e    *Engine
	mem  []byte
	info SegmentInfo
	keys []Key // one for each of the engine's rails

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
		s.keys = append(s.keys, key)
		s.info.Rails = append(s.info.Rails, RailAddr{Rail: r.Name(), Addr: r.Addr(), Key: key})
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

// A Target is a peer's segment, opened for transfers.
type Target struct {
	e      *Engine
	info   SegmentInfo
	routes []route
	refs   atomic.Int64 // Open's, and one for each batch under way
	once   sync.Once
}

// A route is a path to a target and the target's key there.
type route struct {
	path *path
	key  Key
}

// Open prepares transfers to and from a peer's segment. It does not wait:
// connections are made in the background, kept, shared between targets, and
// made again when they are lost; a peer that cannot be connected is tried about
// every Config.BackoffMax until the target is closed. Open fails if the description is faulty or no
// rail here is of the kind of one of the peer's.
func (e *Engine) Open(info SegmentInfo) (*Target, error) {
	fail := func(err error) (*Target, error) {
		return nil, &Error{Op: "open " + info.Name, Err: err}
	}
	if info.Length <= 0 {
		return fail(fmt.Errorf("%w: length %d", ErrInvalid, info.Length))
	}
	info.Rails = slices.Clone(info.Rails)
	t := &Target{e: e, info: info}
	t.refs.Store(1)
	var ids []pathID
	var keys []Key
	for _, k := range kinds(e.cfg.Rails) {
		var local []int
		for i, r := range e.cfg.Rails {
			if kind(r.Name()) == k {
				local = append(local, i)
			}
		}
		var remote []RailAddr
		for _, r := range info.Rails {
			if kind(r.Rail) != k {
				continue
			}
			if r.Key == 0 || r.Addr == "" {
				return fail(fmt.Errorf("%w: rail %q has key %d and address %q", ErrInvalid, r.Rail, r.Key, r.Addr))
			}
			remote = append(remote, r)
		}
		// The i-th rail here goes with the i-th rail there, and the shorter
		// list goes round: every rail of either side is on some path.
		for i := range max(len(local), len(remote)) {
			if len(remote) == 0 {
				break
			}
			r := remote[i%len(remote)]
			ids = append(ids, pathID{local[i%len(local)], r.Addr})
			keys = append(keys, r.Key)
		}
	}
	if len(ids) == 0 {
		return fail(ErrNoPath)
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return fail(net.ErrClosed)
	}
	for i, id := range ids {
		t.routes = append(t.routes, route{e.pathLocked(id), keys[i]})
	}
	e.mu.Unlock()
	for _, r := range t.routes {
		r.path.prepare()
	}
	return t, nil
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
	for _, r := range t.routes {
		t.e.unrefLocked(r.path)
	}
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

// choose returns the route for a slice: the one with the fewest bytes in
// flight among those that are up, or among all if none is.
func (t *Target) choose(not *path) route {
	best, bestScore := route{}, int64(0)
	for _, r := range t.routes {
		if r.path == not {
			continue
		}
		score := r.path.inflight.Load()
		if r.path.down.Load() {
			score += 1 << 60
		}
		if best.path == nil || score < bestScore {
			best, bestScore = r, score
		}
	}
	return best
}
