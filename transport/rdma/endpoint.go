package rdma

import (
	"fmt"
	"net"
	"sync"

	"kvferry/transport"
	"kvferry/transport/connection"
)

const (
	// windowBytes bounds what the device has under way for one endpoint: more than
	// 400 Gbit/s move in a round trip of 300 µs (15 MB), and no more than has to be
	// waited for when a key is revoked, see revokeWithin.
	windowBytes = 16 << 20
	// signalEvery is how many requests share a completion, if more are posted at
	// once: their room in the send queue comes back with it. A completion for each
	// costs the device a write to memory and the poller a look; one for a whole queue
	// would leave the device idle while its room comes back.
	signalEvery = 16
)

// An endpoint is the initiator's side of a connection.
//
//	Post ──► key unknown? ──► waiting ──► resolved ─┐
//	     └─────────────────────────────────► queue ─┴► pump ──► send queues ──► Complete
type endpoint struct {
	*link
	addr   string           // as it was dialled, for Losses
	secret transport.Secret // told to the target once the connection is lost

	// posting is held while requests are made and handed to the device, and keeps
	// them in order. It is not needed to take completions: those come while a
	// request is being posted, and would wait for it to return.
	posting sync.Mutex    // taken before eps
	wrs     []workRequest // of gather; guarded by posting

	eps     sync.Mutex                   // guards all below
	keys    map[transport.Key]*remoteKey // asked for, until they are revoked or unknown to the target
	recent  *remoteKey                   // of keys: that of the slice before; nil if none
	queue   []*transport.Slice           // whose keys are resolved, in the order of Post; waits for room
	room    connection.Room              // of all slices that Post has taken and that are not complete
	flight  int64                        // bytes the device has under way
	sends   []sendQueue                  // by pair
	at      local                        // where the slice before was
	refused []refusal                    // to be completed by whoever holds the lock last
	broken  error                        // set by stop: no request is made any more
}

// A remoteKey is what the endpoint knows of one of the target's keys: asked for with the
// first slice that needs it. Guarded by eps.
type remoteKey struct {
	key      transport.Key
	resolved bool
	revoked  bool
	memory   remoteMemory
	length   int64              // bytes
	waiting  []*transport.Slice // until resolved
	flight   int                // slices the device has under way
	clean    int                // slices since one was refused
	why      error              // that was
}

// A refusal is a slice that ends without having been carried, and why.
type refusal struct {
	s   *transport.Slice
	err error
}

// newEndpoint has a ring as deep as each queue pair's send queue: a request that has a place
// in one has one in the other.
func (r *Rail) newEndpoint(l *link, addr string, s transport.Secret) *endpoint {
	ep := &endpoint{link: l, addr: addr, secret: s, keys: make(map[transport.Key]*remoteKey), sends: make([]sendQueue, l.n)}
	for i := range ep.sends {
		ep.sends[i].ring = make([]sent, l.depth)
	}
	return ep
}

// Secret implements transport.Endpoint.
func (ep *endpoint) Secret() transport.Secret { return ep.secret }

// Post implements transport.Endpoint. It hands what it can to the device itself, waits for no
// completion and no answer of the peer, and completes nothing.
func (ep *endpoint) Post(slices []*transport.Slice) (int, error) {
	ep.posting.Lock()
	defer ep.posting.Unlock()
	ep.eps.Lock()
	if ep.broken != nil {
		ep.eps.Unlock()
		return 0, ep.broken
	}
	n := ep.room.Take(slices)
	for _, s := range slices[:n] {
		k := ep.remote(s.Key)
		if k == nil {
			k = &remoteKey{key: s.Key}
			ep.keys[s.Key] = k
			ep.send(frame{typ: frameResolve, key: s.Key})
		}
		if k.resolved {
			ep.queue = append(ep.queue, s)
		} else {
			k.waiting = append(k.waiting, s)
		}
	}
	ep.gather()
	refused := len(ep.refused) > 0
	ep.eps.Unlock()
	if err := ep.hand(); err != nil {
		ep.fail(err)
	}
	if refused {
		ep.pairs.interrupt() // the poller completes them: never from within Post
	}
	return n, nil
}

// takeRefused is called with the lock held; complete is not, as a slice's completion may post.
func (ep *endpoint) takeRefused() []refusal {
	r := ep.refused
	ep.refused = nil
	return r
}

// complete ends slices that were not posted. No lock is held: who hears of it may post.
func complete(refused []refusal) {
	for _, r := range refused {
		r.s.Complete(r.err)
	}
}

// refuse ends a slice that was not posted. The caller holds the lock.
func (ep *endpoint) refuse(s *transport.Slice, err error) {
	ep.room.Free(1, int64(len(s.Local)))
	ep.refused = append(ep.refused, refusal{s, err})
}

// pump posts what waited for room or for a key.
func (ep *endpoint) pump() error {
	ep.posting.Lock()
	ep.eps.Lock()
	ep.gather()
	refused := ep.takeRefused()
	ep.eps.Unlock()
	err := ep.hand()
	ep.posting.Unlock()
	complete(refused) // may post
	return err
}

// gather makes requests of what the queue has and the send queues take. The caller
// holds both locks.
func (ep *endpoint) gather() {
	ep.wrs = ep.wrs[:0]
	if ep.broken != nil {
		return // the queue pairs may be gone
	}
	taken := 0
	for _, s := range ep.queue {
		k := ep.remote(s.Key)
		err := k.admits(s)
		placed := false
		if err == nil {
			placed, err = ep.place(s, k)
		}
		switch {
		case err != nil:
			ep.refuse(s, err)
			k.clean, k.why = 0, err
		case placed:
			k.clean++
		}
		if err == nil && !placed {
			break
		}
		taken++
	}
	if taken > 0 {
		clear(ep.queue[:taken])
		ep.queue = ep.queue[taken:]
		if len(ep.queue) == 0 {
			ep.queue = nil
		}
	}
	// A run's last request is signaled in each pair, and every so many of it.
	var since [maxQueuePairs]int
	var last [maxQueuePairs]int
	for i := range ep.wrs {
		p := ep.wrs[i].pair
		last[p] = i + 1
		if since[p]++; since[p] == signalEvery {
			since[p] = 0
			ep.wrs[i].flags |= flagSignaled
		}
	}
	for _, i := range last[:ep.n] {
		if i > 0 {
			ep.wrs[i-1].flags |= flagSignaled
		}
	}
}

// hand gives what gather made to the device, in one call. The caller holds posting.
func (ep *endpoint) hand() error {
	if len(ep.wrs) == 0 {
		return nil
	}
	if err := ep.pairs.post(ep.wrs); err != nil {
		return fmt.Errorf("%w: posting: %w", transport.ErrUnreachable, err)
	}
	return nil
}

// remote is what is known of a key, most often that of the slice before. The
// caller holds the lock.
func (ep *endpoint) remote(key transport.Key) *remoteKey {
	if ep.recent == nil || ep.recent.key != key {
		ep.recent = ep.keys[key]
	}
	return ep.recent
}

// admits checks a slice before a request is made of it. A request beyond the memory would be
// refused by the target's device, which puts the queue pair in error, and all others with it.
func (k *remoteKey) admits(s *transport.Slice) error {
	switch n := int64(len(s.Local)); {
	case k.revoked:
		return transport.ErrBadKey
	case s.Offset < 0 || s.Offset > k.length || n > k.length-s.Offset:
		return transport.ErrBounds
	case s.HasImm && k.clean < s.Behind && k.why != nil:
		return k.why
	case s.HasImm && k.clean < s.Behind: // they were refused before the key was asked for again
		return transport.ErrBadKey
	}
	return nil
}

// frame implements handler.
func (ep *endpoint) frame(f *frame) error {
	ep.eps.Lock()
	k := ep.keys[f.key]
	var err error
	switch {
	case f.typ == frameResolved && k != nil && !k.resolved:
		k.resolved = true
		waiting := k.waiting
		k.waiting = nil
		if f.length < 0 {
			ep.forget(f.key) // it may be registered by the next time
			for _, s := range waiting {
				ep.refuse(s, transport.ErrBadKey)
			}
			break
		}
		k.memory, k.length = f.memory, f.length
		ep.queue = append(ep.queue, waiting...)
	case f.typ == frameRevoke && k == nil:
		ep.send(frame{typ: frameRevoked, key: f.key})
	case f.typ == frameRevoke:
		k.revoked = true // what waited for room is refused by pump
		if k.flight == 0 {
			ep.forgo(k)
		}
	default:
		err = fmt.Errorf("%w: frame of type %d about key %#x", transport.ErrProtocol, f.typ, f.key)
	}
	ep.eps.Unlock()
	if err != nil {
		return err
	}
	return ep.pump()
}

// forget has a key asked for again when it is next used. The caller holds the lock.
func (ep *endpoint) forget(key transport.Key) {
	ep.recent = nil
	delete(ep.keys, key)
}

// forgo says that nothing of ours touches a revoked key's memory, now or later.
// The caller holds the lock.
func (ep *endpoint) forgo(k *remoteKey) {
	kept := ep.queue[:0:0]
	for _, s := range ep.queue {
		if s.Key == k.key {
			ep.refuse(s, transport.ErrBadKey)
		} else {
			kept = append(kept, s)
		}
	}
	ep.queue = kept
	ep.forget(k.key)
	ep.send(frame{typ: frameRevoked, key: k.key})
}

// Close implements transport.Endpoint: all its slices are complete when it returns.
func (ep *endpoint) Close() error {
	ep.fail(net.ErrClosed)
	<-ep.over
	return nil
}
