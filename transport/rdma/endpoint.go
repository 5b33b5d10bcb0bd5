package rdma

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"kvferry/transport"
)

const (
	// queueSlices and queueBytes bound what an endpoint takes before it says that
	// it is full, as the TCP rail's do.
	queueSlices = 4096
	queueBytes  = 64 << 20
	// windowBytes bounds what the device has under way: more than 400 Gbit/s move
	// in a round trip of 300 µs, and no more than has to be waited for when a key
	// is revoked.
	windowBytes = 16 << 20
	// signalEvery is how many requests share a completion, if more are posted at
	// once: their room in the send queue comes back with it.
	signalEvery = 16
)

// An endpoint is the initiator's side of a connection.
//
//	Post ──► key unknown? ──► waiting ──► resolved ─┐
//	     └─────────────────────────────────► queue ─┴► pump ──► send queues ──► Complete
type endpoint struct {
	*link
	addr string
	id   uint64

	// posting is held while requests are made and handed to the device, and keeps
	// them in order. It is not needed to take completions: those come while a
	// request is being posted, and would wait for it to return.
	posting sync.Mutex    // taken before eps
	wrs     []workRequest // of gather; guarded by posting

	eps     sync.Mutex // guards all below
	keys    map[transport.Key]*remoteKey
	recent  *remoteKey // of keys
	queue   []*transport.Slice
	posted  int   // slices not completed
	bytes   int64 // of them
	flight  int64 // bytes the device has under way
	sends   []sendQueue
	at      local     // where the slice before was
	refused []refusal // to be completed by whoever holds the lock last
	broken  error
}

// A remoteKey is what the endpoint knows of one of the target's keys.
type remoteKey struct {
	key      transport.Key
	resolved bool
	revoked  bool
	memory   remoteMemory
	length   int64
	waiting  []*transport.Slice // until resolved
	flight   int                // slices the device has under way
}

type refusal struct {
	s   *transport.Slice
	err error
}

// A sendQueue is what a queue pair has under way: requests head to tail, those of
// a run sharing the completion of its last.
type sendQueue struct {
	ring       []sent
	head, tail uint64 // numbers of the oldest and the next request
	flushed    uint64 // requests before this one are over, since the pair failed
	bytes      int64
	imms       []sent // immediates complete here and not acknowledged, in order
	announced  uint64 // immediates posted
	done       uint64 // of them completed here
	acked      uint64 // and by the peer
}

// sent is a request under way. Its slice, if it ends one, ends with it.
type sent struct {
	s     *transport.Slice
	key   *remoteKey
	bytes int64
	op    opcode
	mr    memory // of local memory that was not registered
}

func (r *Rail) newEndpoint(l *link, addr string, id uint64) *endpoint {
	ep := &endpoint{link: l, addr: addr, id: id, keys: make(map[transport.Key]*remoteKey), sends: make([]sendQueue, l.n)}
	for i := range ep.sends {
		ep.sends[i].ring = make([]sent, l.depth)
	}
	return ep
}

// ID implements transport.Endpoint.
func (ep *endpoint) ID() uint64 { return ep.id }

// Post implements transport.Endpoint.
func (ep *endpoint) Post(slices []*transport.Slice) (int, error) {
	ep.posting.Lock()
	defer ep.posting.Unlock()
	ep.eps.Lock()
	if ep.broken != nil {
		ep.eps.Unlock()
		return 0, ep.broken
	}
	n := 0
	for _, s := range slices {
		size := int64(len(s.Local))
		if ep.posted == queueSlices || ep.posted > 0 && ep.bytes+size > queueBytes {
			break
		}
		ep.posted++
		ep.bytes += size
		n++
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

// takeRefused is called with the lock held; complete is not.
func (ep *endpoint) takeRefused() []refusal {
	r := ep.refused
	ep.refused = nil
	return r
}

func complete(refused []refusal) {
	for _, r := range refused {
		r.s.Complete(r.err)
	}
}

// refuse ends a slice that was not posted. The caller holds the lock.
func (ep *endpoint) refuse(s *transport.Slice, err error) {
	ep.posted--
	ep.bytes -= int64(len(s.Local))
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
		if err := k.admits(s); err != nil {
			ep.refuse(s, err)
			taken++
			continue
		}
		ok, err := ep.place(s, k)
		if err != nil {
			ep.refuse(s, err)
			taken++
			continue
		}
		if !ok {
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

func (k *remoteKey) admits(s *transport.Slice) error {
	switch n := int64(len(s.Local)); {
	case k.revoked:
		return transport.ErrBadKey
	case s.Offset < 0 || s.Offset > k.length || n > k.length-s.Offset:
		return transport.ErrBounds
	}
	return nil
}

// place makes the requests of a slice, or says that there is no room now.
func (ep *endpoint) place(s *transport.Slice, k *remoteKey) (bool, error) {
	size := int64(len(s.Local))
	if ep.flight > 0 && ep.flight+size > windowBytes {
		return false, nil
	}
	if s.HasImm && ep.n > 1 && k.flight > 0 {
		return false, nil // pairs overtake each other
	}
	most := ep.most
	need := max(int((size+most-1)/most), 1)
	if s.HasImm {
		need++ // the letter
	}
	p := 0
	for i := range ep.sends {
		if ep.sends[i].bytes < ep.sends[p].bytes {
			p = i
		}
	}
	q := &ep.sends[p]
	if need > len(q.ring) {
		return false, fmt.Errorf("%w: a slice of %d bytes takes %d requests of %d bytes, and the send queue has %d: use smaller slices or a higher Config.QueueDepth", transport.ErrInvalid, size, need, most, len(q.ring))
	}
	if int(q.tail-q.head)+need > len(q.ring) || s.HasImm && q.announced-q.acked >= uint64(ep.depth) {
		return false, nil
	}
	var lkey uint32
	var local uint64
	var mr memory
	if size > 0 {
		var err error
		if lkey, local, mr, err = ep.local(s); err != nil {
			return false, err
		}
	}
	remote := k.memory.addr + uint64(s.Offset)
	if s.HasImm {
		mem, from, to := ep.letterTo(p, q.announced)
		putLetter(mem, &s.Imm)
		own, _ := ep.scratch.keys()
		ep.request(p, sent{op: opWrite}, workRequest{
			op: opWrite, local: from, lkey: own, length: letterLen, remote: to, rkey: ep.theirs.rkey, flags: ep.inline(letterLen),
		})
	}
	op := opWrite
	if s.Op == transport.Read {
		op = opRead
	}
	for {
		n := min(size, most)
		wr := workRequest{op: op, local: local, lkey: lkey, length: uint32(n), remote: remote, rkey: k.memory.rkey}
		if op == opWrite {
			wr.flags = ep.inline(int(n))
		}
		if size -= n; size > 0 {
			ep.request(p, sent{op: op}, wr)
			local, remote = local+uint64(n), remote+uint64(n)
			continue
		}
		end := sent{s: s, key: k, bytes: int64(len(s.Local)), op: op, mr: mr}
		if s.HasImm {
			wr.op, end.op = opWriteImm, opWriteImm
			wr.imm = uint32(q.announced)
			q.announced++
		}
		ep.request(p, end, wr)
		break
	}
	q.bytes += int64(len(s.Local))
	ep.flight += int64(len(s.Local))
	k.flight++
	return true, nil
}

func (ep *endpoint) inline(n int) uint8 {
	if n > 0 && n <= ep.inlined {
		return flagInline
	}
	return 0
}

// request queues a request for a pair.
func (ep *endpoint) request(pair int, e sent, wr workRequest) {
	q := &ep.sends[pair]
	wr.pair, wr.id = uint16(pair), requestID(pair, q.tail)
	q.ring[q.tail%uint64(len(q.ring))] = e
	q.tail++
	ep.wrs = append(ep.wrs, wr)
}

// local is what a request says of a slice's memory. Memory that nobody registered
// is, for as long as the slice takes.
func (ep *endpoint) local(s *transport.Slice) (lkey uint32, addr uint64, mr memory, err error) {
	regs := &ep.rail.regs
	if v := regs.version.Load(); v != ep.at.version || !ep.at.holds(s.Local) {
		if ep.at = regs.local(s.LocalKey, s.Local); !ep.at.ok {
			return ep.transient(s)
		}
		ep.at.version = v
	}
	return ep.at.lkey, ep.at.addr + address(s.Local) - ep.at.base, nil, nil
}

func (ep *endpoint) transient(s *transport.Slice) (lkey uint32, addr uint64, mr memory, err error) {
	if mr, err = ep.dev.register(s.Local); err != nil {
		return 0, 0, nil, fmt.Errorf("%w: %w", transport.ErrInvalid, err)
	}
	lkey, _ = mr.keys()
	return lkey, mr.addr(), mr, nil
}

// completed implements handler: a send completion ends every request up to it.
func (ep *endpoint) completed(c *completion) error {
	if c.id&receiveID != 0 {
		return ep.acknowledged(int(c.id&^receiveID), c.imm)
	}
	pair, seq := int(c.id>>pairShift), c.id&seqMask
	if pair >= ep.n {
		return fmt.Errorf("%w: completion of queue pair %d of %d", transport.ErrProtocol, pair, ep.n)
	}
	var buf [64]*transport.Slice
	done := buf[:0]
	ep.eps.Lock()
	q := &ep.sends[pair]
	end := q.head + (seq-q.head)&seqMask + 1
	if end > q.tail {
		ep.eps.Unlock()
		return fmt.Errorf("%w: completion of request %d, not of %d to %d", transport.ErrProtocol, seq, q.head, q.tail)
	}
	for ; q.head != end; q.head++ {
		e := &q.ring[q.head%uint64(len(q.ring))]
		if e.s != nil {
			if e.op == opWriteImm {
				q.done++
				q.imms = append(q.imms, *e)
			} else {
				done = append(done, e.s)
				ep.settle(q, e)
			}
		}
		*e = sent{}
	}
	done = ep.delivered(q, done)
	ep.eps.Unlock()
	transport.CompleteAll(done, nil)
	return nil
}

// settle takes a slice off the books. The caller holds the lock.
func (ep *endpoint) settle(q *sendQueue, e *sent) {
	q.bytes -= e.bytes
	ep.flight -= e.bytes
	ep.bytes -= e.bytes
	ep.posted--
	e.key.flight--
	if e.key.revoked && e.key.flight == 0 {
		ep.forgo(e.key)
	}
	if e.mr != nil {
		_ = e.mr.close()
	}
}

// delivered appends the slices whose immediates were handled by the peer, and
// whose own requests are complete.
func (ep *endpoint) delivered(q *sendQueue, done []*transport.Slice) []*transport.Slice {
	first := q.done - uint64(len(q.imms)) // number of the first in imms
	for len(q.imms) > 0 && first < q.acked {
		e := &q.imms[0]
		done = append(done, e.s)
		ep.settle(q, e)
		q.imms = q.imms[1:]
		first++
	}
	return done
}

// acknowledged takes the peer's word that it has handled immediates: the count of
// those of the pair, modulo 2^32.
func (ep *endpoint) acknowledged(pair int, count uint32) error {
	if pair >= ep.n {
		return fmt.Errorf("%w: receive of queue pair %d of %d", transport.ErrProtocol, pair, ep.n)
	}
	if err := ep.pairs.receive(pair, 1); err != nil { // before there is room for its immediate
		return fmt.Errorf("%w: posting a receive: %w", transport.ErrUnreachable, err)
	}
	ep.eps.Lock()
	q := &ep.sends[pair]
	more := count - uint32(q.acked)
	if uint64(more) > q.announced-q.acked {
		ep.eps.Unlock()
		return fmt.Errorf("%w: %d immediates acknowledged, %d sent", transport.ErrProtocol, count, q.announced)
	}
	q.acked += uint64(more)
	done := ep.delivered(q, nil)
	ep.eps.Unlock()
	transport.CompleteAll(done, nil)
	return nil
}

// polled implements handler: there may be room for more.
func (ep *endpoint) polled() error {
	ep.eps.Lock()
	waiting := len(ep.queue) > 0
	refused := ep.takeRefused()
	ep.eps.Unlock()
	complete(refused)
	if waiting {
		return ep.pump()
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

// stop implements handler: the queue pairs are about to go.
func (ep *endpoint) stop(err error) {
	ep.posting.Lock() // no request is being handed over any more
	defer ep.posting.Unlock()
	ep.eps.Lock()
	defer ep.eps.Unlock()
	ep.broken = err
}

// underWay implements handler.
func (ep *endpoint) underWay() bool {
	ep.eps.Lock()
	defer ep.eps.Unlock()
	for i := range ep.sends {
		if q := &ep.sends[i]; max(q.head, q.flushed) != q.tail {
			return true
		}
	}
	return false
}

// flushed implements handler: requests of a pair end in order.
func (ep *endpoint) flushed(c *completion) {
	ep.eps.Lock()
	defer ep.eps.Unlock()
	pair, seq := int(c.id>>pairShift), c.id&seqMask
	if c.id&receiveID == 0 && pair < ep.n {
		q := &ep.sends[pair]
		if end := q.head + (seq-q.head)&seqMask + 1; end <= q.tail {
			q.flushed = end
		}
	}
}

// released implements handler.
func (ep *endpoint) released() bool { return !ep.underWay() }

// opName implements handler.
func (ep *endpoint) opName(id uint64) string {
	ep.eps.Lock()
	defer ep.eps.Unlock()
	if p := int(id >> pairShift); p < ep.n {
		q := &ep.sends[p]
		return [...]string{"write", "immediate", "read"}[q.ring[(id&seqMask)%uint64(len(q.ring))].op]
	}
	return "request"
}

// ended implements handler: the device touches nothing of ours any more. A request
// that failed for a reason of its own ends its slice with it; the others were
// lost with the connection.
func (ep *endpoint) ended(err error, failed uint64) {
	theirs := err
	if _, own := errors.AsType[*CompletionError](err); own {
		theirs = fmt.Errorf("%w: connection lost: %v", transport.ErrUnreachable, err)
	}
	ep.eps.Lock()
	refused := ep.takeRefused()
	unsure := false
	end := func(e *sent, err error) {
		if e.s != nil {
			unsure = unsure || e.op != opRead
			refused = append(refused, refusal{e.s, err})
			if e.mr != nil {
				_ = e.mr.close()
			}
		}
	}
	for i := range ep.sends {
		q := &ep.sends[i]
		for j := range q.imms {
			end(&q.imms[j], theirs)
		}
		reason := theirs
		for ; q.head != q.tail; q.head++ {
			if requestID(i, q.head) == failed {
				reason = err
			}
			e := &q.ring[q.head%uint64(len(q.ring))]
			end(e, reason)
			if e.s != nil {
				reason = theirs
			}
		}
		q.imms = nil
	}
	for _, k := range ep.keys {
		for _, s := range k.waiting {
			refused = append(refused, refusal{s, theirs})
		}
	}
	for _, s := range ep.queue {
		refused = append(refused, refusal{s, theirs})
	}
	ep.queue, ep.keys, ep.recent = nil, nil, nil
	ep.posted, ep.bytes = 0, 0
	ep.eps.Unlock()
	ep.rail.ended(ep, unsure)
	complete(refused)
}

// Close implements transport.Endpoint.
func (ep *endpoint) Close() error {
	ep.fail(net.ErrClosed)
	<-ep.over
	return nil
}
