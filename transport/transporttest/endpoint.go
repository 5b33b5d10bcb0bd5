package transporttest

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"kvferry/transport"
	"kvferry/transport/connection"
)

// An endpoint carries slices one by one, and meets the rail's faults. It is the connection
// at both ends: what the peer serves is this too.
type endpoint struct {
	secret     transport.Secret
	rail, peer *Rail
	more       chan struct{} // cap 1: something is in the queue
	cut        chan struct{} // closed when err is set
	over       chan struct{} // closed when run has ended

	// Of run only.
	unsure  bool  // a write may yet be applied
	clean   int   // slices since one was refused
	refused error // why it was

	mu    sync.Mutex
	queue []*transport.Slice
	room  connection.Room
	err   error
}

func (ep *endpoint) Secret() transport.Secret { return ep.secret }

func (ep *endpoint) Post(batch []*transport.Slice) (int, error) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.err != nil {
		return 0, ep.err
	}
	n := ep.room.Take(batch)
	ep.queue = append(ep.queue, batch[:n]...)
	if n > 0 {
		select {
		case ep.more <- struct{}{}:
		default:
		}
	}
	return n, nil
}

func (ep *endpoint) Close() error {
	ep.Cut(net.ErrClosed)
	<-ep.over
	return nil
}

// UnderWay implements bundle.Member.
func (ep *endpoint) UnderWay() int64 {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.room.UnderWay()
}

// Over implements connection.Conn and bundle.Member.
func (ep *endpoint) Over() <-chan struct{} { return ep.over }

// Cut implements connection.Conn: the first reason stands.
func (ep *endpoint) Cut(err error) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.err == nil {
		ep.err = err
		close(ep.cut)
	}
}

// run carries slices one by one until the endpoint breaks, and then completes
// the rest.
func (ep *endpoint) run() {
	defer close(ep.over)
	for {
		ep.mu.Lock()
		err := ep.err
		var s *transport.Slice
		if len(ep.queue) > 0 && err == nil {
			s = ep.queue[0]
			ep.queue = slices.Delete(ep.queue, 0, 1)
		}
		ep.mu.Unlock()
		switch {
		case err != nil:
			ep.drain(err)
			return
		case s == nil:
			select {
			case <-ep.more:
			case <-ep.cut:
			}
		default:
			var err error
			if s.HasImm && ep.clean < s.Behind {
				err = ep.refused
			} else {
				err = ep.carry(s)
			}
			ep.clean++
			if transport.Refused(err) {
				ep.clean, ep.refused = 0, err
			}
			if err != nil && !transport.Refused(err) {
				ep.unsure = s.Op == transport.Write
				ep.Cut(err)
			}
			if err == nil || transport.Refused(err) { // else it is what was under way in the end
				ep.mu.Lock()
				ep.room.Free(1, int64(len(s.Local)))
				ep.mu.Unlock()
			}
			s.Complete(err)
		}
	}
}

// carry takes one slice to the peer, as the rail's script and its rate have it. An error
// that is not Refused means that the endpoint is broken.
func (ep *endpoint) carry(s *transport.Slice) error {
	lost := fmt.Errorf("%w: connection to %q lost", transport.ErrUnreachable, ep.peer.name)
	switch f := ep.rail.next(); f.Kind {
	case Fail:
		return f.Err
	case Cut:
		return lost
	case CutAfter:
		if err := ep.peer.apply(s, ep.rail.local(s.Local)); err != nil {
			return err
		}
		return lost
	case Late:
		on := transport.NewSlice(s.Op, bytes.Clone(ep.rail.local(s.Local)), s.Key, s.Offset, nil)
		on.HasImm, on.Imm = s.HasImm && len(s.Local) > 0, s.Imm // by itself it may be a fence, which cannot land while others do
		ep.rail.n.mu.Lock()
		if ep.rail.n.stuck == nil {
			ep.rail.n.stuck = make(map[*Rail]bool)
		}
		ep.rail.n.stuck[ep.rail] = true
		ep.rail.n.late = append(ep.rail.n.late, func() {
			if on.Op == transport.Write {
				ep.peer.arrive(ep.secret.Name(), on)
			}
		})
		ep.rail.n.mu.Unlock()
		<-ep.cut
		return ep.broken()
	case Stall:
		<-ep.cut
		return ep.broken()
	case Delay:
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ep.cut:
			return ep.broken()
		}
	}
	if d := time.Until(ep.rail.leaves(len(s.Local))); d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ep.cut:
			return ep.broken()
		}
	}
	if ep.rail.isHole() {
		<-ep.cut
		return ep.broken()
	}
	return ep.peer.apply(s, ep.rail.local(s.Local))
}

// broken is why the endpoint is cut, nil if it is not.
func (ep *endpoint) broken() error {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.err
}

// drain files the end of a broken endpoint with both rails, before the slices left complete: who
// hears of those may dial again, and that names what was lost.
func (ep *endpoint) drain(err error) {
	if ep.unsure {
		ep.rail.lost.Add(ep.peer.name, ep.secret)
	}
	ep.rail.mu.Lock()
	delete(ep.rail.eps, ep)
	ep.rail.mu.Unlock()
	ep.peer.served.Remove(ep.secret.Name(), ep)
	ep.peer.mu.Lock()
	delete(ep.peer.peers, ep)
	ep.peer.mu.Unlock()
	ep.mu.Lock()
	rest := ep.queue
	ep.queue = nil
	ep.mu.Unlock()
	transport.CompleteAll(rest, err)
}
