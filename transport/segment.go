package transport

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"kvferry/transport/descriptor"
	"kvferry/transport/pages"
	"kvferry/transport/selection"
)

// RailAddr says how one rail reaches a segment.
type RailAddr struct {
	Rail string // name of the owner's rail: "tcp/eth0"
	Addr string // what a peer dials
	Key  Key    // of the segment, or a window of it, on that rail
	Rank int    // how far that rail is from the segment: 0 is close, 1 can be used, -1 carries immediates only
}

// SegmentInfo is what the owner of a segment, or of a window of one, tells its peers.
// Whoever has it may do what the keys open: read and write all of a segment, or use
// the ranges of a window in its direction.
type SegmentInfo struct {
	Name     string
	Length   int64  // of the segment, bytes
	Location string // "cpu:0"
	Rails    []RailAddr
}

// A Segment is registered local memory: the source and destination of this
// engine's transfers. Peers reach it through its keys, or only through windows.
// The memory is lent to the engine, which never frees it: see [Allocator].
type Segment struct {
	e     *Engine
	mem   []byte
	info  SegmentInfo
	reg   *registration
	ranks []uint8 // how far each of the engine's rails is from the memory
	fixed bool    // the memory is read-only

	mu      sync.Mutex
	refs    int // batches that use mem
	idle    *sync.Cond
	closed  bool
	windows map[*Window]struct{} // open

	gone chan struct{} // closed when Close has done its work
	err  error         // of Close
}

// Register makes mem a segment on every rail. Whoever has its Info may read and
// write all of it; RegisterLocal gives nothing away. mem must stay mapped until the
// segment's or the engine's Close has returned. The name is for errors and immediates;
// the location is what Config.Rank knows, like "cpu:0". Memory may be registered more
// than once, in whole or in part.
//
// Errors are ErrInvalid for memory that is empty, not mapped or read-only, ErrNoPath if no rail may be used for that
// location, what a rail says of the memory, and net.ErrClosed.
func (e *Engine) Register(name string, mem []byte, location string) (*Segment, error) {
	return e.register(name, mem, location, Whole(int64(len(mem))))
}

// RegisterLocal makes mem a segment that has no key for peers: they reach the parts
// of it that its windows open, and nothing else. Its Info names no rails.
func (e *Engine) RegisterLocal(name string, mem []byte, location string) (*Segment, error) {
	return e.register(name, mem, location, Access{})
}

func (e *Engine) register(name string, mem []byte, location string, access Access) (*Segment, error) {
	fail := func(err error) (*Segment, error) {
		return nil, &Error{Op: "register " + name, Err: err}
	}
	if len(mem) == 0 {
		return fail(fmt.Errorf("%w: empty memory", ErrInvalid))
	}
	s := &Segment{e: e, mem: mem, info: SegmentInfo{Name: name, Length: int64(len(mem)), Location: location}, windows: make(map[*Window]struct{}), gone: make(chan struct{})}
	s.idle = sync.NewCond(&s.mu)
	m, _ := descriptor.Of(mem)
	if m == nil || m.Mapped {
		writable, err := pages.Check(mem)
		if s.fixed = !writable; err == nil && s.fixed && !access.None() {
			err = errors.New("the memory is read-only and peers may write to this segment: map it for writing, or register it as private")
		}
		if err != nil {
			return fail(fmt.Errorf("%w: %w", ErrInvalid, err))
		}
	}
	var unable []string
	for _, r := range e.cfg.Rails {
		rank := 0
		if e.cfg.Rank != nil {
			rank = e.cfg.Rank(location, r.Name())
		}
		if _, ok := moves(r, m); !ok {
			rank, unable = -1, append(unable, r.Name())
		}
		s.ranks = append(s.ranks, clampRank(rank))
		s.info.Rails = append(s.info.Rails, RailAddr{Rail: r.Name(), Addr: r.Addr(), Rank: rank})
	}
	why := ""
	if len(unable) > 0 {
		why = fmt.Sprintf(": %s cannot move memory that is not mapped, a dma-buf's, as rails over RDMA can", strings.Join(unable, ", "))
		e.cfg.Logger.Info("transport: rails carry only immediates"+why, "segment", name)
	}
	if slices.Min(s.ranks) == selection.Unusable {
		return fail(fmt.Errorf("%w: no rail may be used for memory at %s%s", ErrNoPath, location, why))
	}
	var err error
	if s.reg, err = e.registerKeys(name, mem, access); err != nil {
		return nil, err
	}
	e.mu.Lock()
	if e.closed { // meanwhile: the memory is its owner's, whatever Close waits for
		e.mu.Unlock()
		return fail(errors.Join(net.ErrClosed, s.reg.close()))
	}
	defer e.mu.Unlock()
	segs := append([]*Segment{s}, *e.segs.Load()...)
	slices.SortStableFunc(segs, func(a, b *Segment) int { return cmp.Compare(len(a.mem), len(b.mem)) })
	e.segs.Store(&segs)
	return s, nil
}

// Info is what peers need to open the segment. It is a copy, which does not change, and
// may be asked for after Close; its keys are bad ones then.
func (s *Segment) Info() SegmentInfo {
	if s.reg.access.None() {
		info := s.info
		info.Rails = nil
		return info
	}
	return s.reg.info(s)
}

// Bytes is the registered memory, of a dma-buf its addresses. After Close it is still told, and its owner's alone.
func (s *Segment) Bytes() []byte { return s.mem }

// Close closes the segment's windows and deregisters it on all rails. It waits for
// this engine's batches that use the memory, which their deadlines bound, and for
// peers' operations under way; then nothing touches the memory any more, and its owner
// may free it. Batches submitted meanwhile or later find it not registered, see
// ErrNotRegistered. It must not be called from OnDone or OnImmediate. Closing
// again, beside the first call or later, waits likewise and returns the same; after
// the engine's Close that is nil.
func (s *Segment) Close() error {
	e := s.e
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.gone
		return s.err
	}
	s.closed = true
	windows := slices.Collect(maps.Keys(s.windows))
	s.mu.Unlock()
	e.mu.Lock()
	e.segs.Store(new(slices.DeleteFunc(slices.Clone(*e.segs.Load()), func(o *Segment) bool { return o == s })))
	e.mu.Unlock()

	var errs []error
	for _, w := range windows {
		errs = append(errs, w.Close())
	}
	s.mu.Lock()
	for s.refs > 0 {
		s.idle.Wait()
	}
	s.mu.Unlock()
	s.err = errors.Join(append(errs, s.reg.close())...)
	close(s.gone)
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
		return selection.Unusable
	}
	return uint8(min(rank, selection.Unusable-1))
}
