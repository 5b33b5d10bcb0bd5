package bundle

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"

	"kvferry/transport"
)

// Most is how many connections an endpoint has at most. A hello names seven that were lost
// (connection.MaxLost): these, and an engine's express.
const Most = 6

// A Member is an endpoint of one connection. If one is a transport.Gauge, all are.
type Member interface {
	transport.Endpoint
	// UnderWay is what was posted and has not completed: bytes, and one more for each slice. Once the
	// connection is broken it is what was under way then.
	UnderWay() int64
	// Over is closed when the connection is broken, and all slices have completed.
	Over() <-chan struct{}
}

// An Endpoint is a transport.Endpoint of members, which it owns.
type Endpoint struct {
	secret transport.Secret // of the first connection that it had
	wg     sync.WaitGroup   // goroutines of watch

	mu      sync.Mutex
	members []*member      // never none, nor only retired ones
	spent   transport.Flow // by those that are gone
	err     error          // why it is broken
}

type member struct {
	Member
	watched bool
	retired bool           // takes no more runs
	rested  int            // looks in a row that found nothing under way, once it is retired
	flow    transport.Flow // when it was last looked at
}

// stretch is how many bytes of loose slices go over one connection before the next is chosen: what a
// frame has, so that small ones share frames.
const stretch = 1 << 20

// Dial makes an endpoint of n connections, made at the same time, or of as many as can be. The error is
// about one of the others; if there is none at all the endpoint is nil.
func Dial(ctx context.Context, n int, dial func(context.Context) (transport.Endpoint, error)) (*Endpoint, error) {
	e := &Endpoint{}
	err := e.Grow(ctx, n, dial)
	e.mu.Lock() // one that was made may be lost already
	defer e.mu.Unlock()
	if len(e.members) == 0 {
		return nil, err
	}
	e.secret = e.members[0].Secret()
	return e, err
}

// Grow adds n connections, made at the same time, or as many as can be. The error is about one of the others.
func (e *Endpoint) Grow(ctx context.Context, n int, dial func(context.Context) (transport.Endpoint, error)) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			ep, err := dial(ctx)
			if err == nil {
				if err = e.add(ep.(Member)); err != nil {
					_ = ep.Close()
				}
			}
			errs[i] = err
		})
	}
	wg.Wait()
	return cmp.Or(errs...)
}

// add takes a connection, unless the endpoint is broken or has enough.
func (e *Endpoint) add(m Member) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	if len(e.members) >= Most {
		return errMost
	}
	e.members = append(e.members, &member{Member: m})
	for _, m := range e.members {
		if !m.watched && len(e.members) > 1 {
			m.watched = true
			e.wg.Go(func() { e.watch(m) })
		}
	}
	return nil
}

var errMost = fmt.Errorf("it has %d connections, retired ones among them", Most)

// watch waits for the end of a connection, and ends the others if anything was lost with it.
func (e *Endpoint) watch(m *member) {
	<-m.Over()
	_, err := m.Post(nil) // says why
	e.mu.Lock()
	if !slices.Contains(e.members, m) || e.drop(m) {
		e.mu.Unlock()
		return
	}
	e.mu.Unlock()
	e.end(err)
}

// end breaks the endpoint and closes what it has.
func (e *Endpoint) end(why error) {
	e.mu.Lock()
	e.fail(why)
	all := slices.Clone(e.members)
	e.mu.Unlock()
	for _, m := range all {
		_ = m.Close()
	}
}

// drop takes out a broken connection that had nothing under way, if it is not the last: peers end those
// that are idle where they have no room for more. The caller holds e.mu.
func (e *Endpoint) drop(m *member) bool {
	if e.err != nil || len(e.members) == 1 || m.UnderWay() > 0 {
		return false
	}
	e.remove(m)
	if !slices.ContainsFunc(e.members, func(o *member) bool { return !o.retired }) {
		e.members[0].retired, e.members[0].rested = false, 0
	}
	return true
}

// remove takes out a connection. The caller holds e.mu.
func (e *Endpoint) remove(m *member) {
	e.spent.Moved, e.spent.Resent = e.spent.Moved+m.flow.Moved, e.spent.Resent+m.flow.Resent
	e.members = slices.DeleteFunc(e.members, func(o *member) bool { return o == m })
}

// fail breaks the endpoint; the first reason stands. The caller holds e.mu.
func (e *Endpoint) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

// Secret implements transport.Endpoint.
func (e *Endpoint) Secret() transport.Secret { return e.secret }

// Secrets implements transport.Bundle.
func (e *Endpoint) Secrets() []transport.Secret {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]transport.Secret, len(e.members))
	for i, m := range e.members {
		all[i] = m.Secret()
	}
	return all
}

// Post implements transport.Endpoint.
func (e *Endpoint) Post(list []*transport.Slice) (n int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return 0, e.err
	}
	for n < len(list) {
		m, k := e.next(list[n:])
		took, err := m.Post(list[n : n+k])
		n += took
		if err != nil && e.drop(m) {
			continue
		} else if err != nil {
			if e.fail(err); n == 0 {
				return 0, err
			}
			return n, nil // the next Post says so
		}
		if took < k {
			break
		}
	}
	return n, nil
}

// next says which connection carries the first slices, and how many of them. The caller holds e.mu.
func (e *Endpoint) next(list []*transport.Slice) (m *member, n int) {
	run := list[0].Run
	bytes := 0
	for n < len(list) && list[n].Run == run {
		bytes += len(list[n].Local)
		if run == transport.Loose && n > 0 && bytes > stretch && len(e.members) > 1 {
			break
		}
		n++
	}
	if run == nil {
		return e.members[0], n // of which nothing is under way if it is another than before
	}
	if i := slices.IndexFunc(e.members, func(m *member) bool { return run.Conn == any(m) }); i >= 0 {
		return e.members[i], n
	}
	var least int64
	for _, o := range e.members {
		if o.retired {
			continue
		}
		if under := o.UnderWay(); m == nil || under < least {
			m, least = o, under
		}
	}
	if run != transport.Loose {
		run.Conn = m
	}
	return m, n
}

// Gauge implements transport.Gauge: what all connections have carried, and the path as it is seen
// best, but for its round trip.
func (e *Endpoint) Gauge() transport.Flow {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all transport.Flow
	for i, m := range e.members {
		f := m.look()
		if i == 0 {
			all = f
			continue
		}
		all.Moved += f.Moved
		all.Resent += f.Resent
		all.RoundTrip, all.Jitter = max(all.RoundTrip, f.RoundTrip), max(all.Jitter, f.Jitter)
		all.Asked, all.Unheard = all.Asked || f.Asked, min(all.Unheard, f.Unheard)
		if all.Window += f.Window; all.Window < f.Window || f.Window < 0 {
			all.Window = -1
		}
	}
	all.Moved += e.spent.Moved
	all.Resent += e.spent.Resent
	return all
}

// look is the connection's gauge, and what it last said once it is broken.
func (m *member) look() transport.Flow {
	if g, ok := m.Member.(transport.Gauge); ok {
		if f := g.Gauge(); f != (transport.Flow{}) {
			m.flow = f
		}
	}
	return m.flow
}

// Poke implements transport.Gauge.
func (e *Endpoint) Poke() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if g, ok := e.members[0].Member.(transport.Gauge); ok {
		g.Poke()
	}
}

// A Look is how an endpoint stands.
type Look struct {
	Conns         int  // that take new slices
	Busy          bool // something is under way; what follows is known then
	Moved, Resent uint64
}

// Look says how the endpoint stands, unless it is broken, and closes connections that are retired and at
// rest for good: what was posted of a run on one has its rest posted when that completes, if not at once.
func (e *Endpoint) Look() (l Look, ok bool) {
	e.mu.Lock()
	ok = e.err == nil
	var over []*member
	for _, m := range e.members {
		busy := m.UnderWay() > 0
		l.Busy = l.Busy || busy
		if !m.retired {
			l.Conns++
		} else if m.rested++; busy {
			m.rested = 0
		}
		if m.rested >= atRest {
			m.look()
			over = append(over, m)
		}
	}
	for _, m := range over {
		e.remove(m)
	}
	e.mu.Unlock()
	for _, m := range over {
		_ = m.Close()
	}
	if l.Busy {
		f := e.Gauge()
		l.Moved, l.Resent = f.Moved, f.Resent
	}
	return l, ok
}

// atRest is how many looks in a row must find a retired connection at rest.
const atRest = 20

// Shrink retires a connection, if others are left that are not retired.
func (e *Endpoint) Shrink() {
	e.mu.Lock()
	defer e.mu.Unlock()
	var last *member
	left := 0
	for _, m := range e.members {
		if !m.retired {
			last = m
			left++
		}
	}
	if left > 1 {
		last.retired = true
	}
}

// Close implements transport.Endpoint.
func (e *Endpoint) Close() error {
	e.end(net.ErrClosed)
	e.wg.Wait()
	return nil
}
