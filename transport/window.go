package transport

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"

	"kvferry/transport/descriptor"
)

// A Window opens parts of a segment to peers, in one direction and until it is
// closed: what a peer is to read, or where it is to write, for one transfer. It has
// a key of its own on each rail, and the target checks it: a slice that reads or
// writes anything else is refused with ErrBounds or ErrAccess and touches nothing.
// Offsets are those of the segment. Rails over RDMA cannot check, see package rdma.
type Window struct {
	seg    *Segment
	reg    *registration
	closed atomic.Bool
	gone   chan struct{} // closed when Close has done its work
	err    error         // of Close
}

// Window opens ranges of the segment. They may come in any order and touch, as
// NewAccess says; op is the peers', so that Read lets them read. The name is what
// Immediate.Segment tells the owner of immediates that come with the window's key,
// which only those of Write windows do. Several windows may open the same place.
//
// Ranges that are none, or not in the segment, are ErrInvalid; a segment that is closed
// is net.ErrClosed.
func (s *Segment) Window(name string, op Op, ranges []Range) (*Window, error) {
	return s.window(name, op, ranges, nil)
}

// WatchedWindow is a Window for writes that calls wrote for each slice that a peer has written, as Access.Watched says. It
// is never called if one of the engine's rails does not watch writes, as those of RDMA and shm do not: bytes may come over
// that rail unseen.
func (s *Segment) WatchedWindow(name string, ranges []Range, wrote func(offset, n int64)) (*Window, error) {
	if slices.ContainsFunc(s.e.cfg.Rails, func(r Rail) bool {
		w, ok := r.(WriteWatcher)
		return !ok || !w.WatchesWrites()
	}) {
		wrote = nil
	}
	return s.window(name, Write, ranges, wrote)
}

func (s *Segment) window(name string, op Op, ranges []Range, wrote func(offset, n int64)) (*Window, error) {
	fail := func(err error) (*Window, error) {
		return nil, &Error{Op: "open window " + name, Err: err}
	}
	access, err := NewAccess(op, ranges)
	if err == nil && s.fixed && op == Write {
		err = fmt.Errorf("%w: the memory of segment %q is read-only", ErrInvalid, s.info.Name)
	}
	if err == nil {
		err = access.Within(s.info.Length)
	}
	if err != nil {
		return fail(err)
	}
	w := &Window{seg: s, gone: make(chan struct{})}
	if w.reg, err = s.e.registerKeys(name, s.mem, access.Watched(wrote)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.windows[w] = struct{}{}
	}
	s.mu.Unlock()
	if closed {
		return fail(errors.Join(net.ErrClosed, w.reg.close()))
	}
	return w, nil
}

// Info is what peers need to open the window. It is a copy, and may be asked for after
// Close; its keys are bad ones then.
func (w *Window) Info() SegmentInfo { return w.reg.info(w.seg) }

// Close ends the peers' access and returns when none of their operations under way
// touches the memory any more, and no immediate comes with the window's key. What this
// engine has under way with the memory goes on. It must not be called from OnImmediate.
// Closing again waits likewise and returns the same; after the segment's or the engine's
// Close that is nil.
func (w *Window) Close() error {
	if w.closed.Swap(true) {
		<-w.gone
		return w.err
	}
	w.err = w.reg.close()
	w.seg.mu.Lock()
	delete(w.seg.windows, w)
	w.seg.mu.Unlock()
	close(w.gone)
	return w.err
}

// A registration is memory under a key on each of an engine's rails.
type registration struct {
	e      *Engine
	name   string
	access Access
	keys   []Key // in the order of Config.Rails
}

// A keyAt is a key as immediates name it.
type keyAt struct {
	rail int // in Config.Rails
	key  Key
}

// registerKeys gives mem a key on each rail, or on none. Where a rail cannot move it the key is for immediates.
func (e *Engine) registerKeys(name string, mem []byte, access Access) (*registration, error) {
	g := &registration{e: e, name: name, access: access}
	m, offset := descriptor.Of(mem)
	for i, r := range e.cfg.Rails {
		var key Key
		var err error
		switch dma, ok := moves(r, m); {
		case dma != nil:
			key, err = dma.RegisterDMABuf(mem, m.FD, offset, access)
		case ok:
			key, err = r.Register(mem, access)
		default:
			key, err = r.Register(nil, access.Bare())
		}
		if err != nil {
			_ = g.close()
			return nil, &Error{Op: "register " + name, Rail: r.Name(), Err: err}
		}
		g.keys = append(g.keys, key)
		e.names.Store(keyAt{i, key}, g)
	}
	return g, nil
}

// info is the segment's, with the registration's name and keys.
func (g *registration) info(s *Segment) SegmentInfo {
	info := s.info
	info.Name, info.Rails = g.name, slices.Clone(info.Rails)
	for i := range info.Rails {
		info.Rails[i].Key = g.keys[i]
	}
	return info
}

// close makes the keys invalid and waits until nothing uses them.
func (g *registration) close() error {
	var errs []error
	for i, key := range g.keys {
		r := g.e.cfg.Rails[i]
		if err := r.Deregister(key); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, &Error{Op: "deregister " + g.name, Rail: r.Name(), Err: err})
		}
		g.e.names.Delete(keyAt{i, key}) // no immediate comes with it any more
	}
	return errors.Join(errs...)
}
