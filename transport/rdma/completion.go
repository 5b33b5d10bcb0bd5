package rdma

import (
	"errors"
	"fmt"
	"slices"

	"kvferry/transport"
)

// completed implements handler: a send completion ends every request up to it, as those of a
// queue pair are carried out in order (InfiniBand Architecture Specification, volume 1,
// 9.5 and 10.8) and only every signalEvery-th says so. Slices are completed without the lock:
// who hears of it may post.
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
	end := q.head + (seq-q.head)&seqMask + 1 // the id has the lower 48 bits of a number
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

// settle takes a slice off the books: its bytes off the pair, the window and the room, itself off
// its key, and the registration that was made for it. The caller holds the lock.
func (ep *endpoint) settle(q *sendQueue, e *sent) {
	q.bytes -= e.bytes
	ep.flight -= e.bytes
	ep.room.Free(1, e.bytes)
	e.key.flight--
	if e.key.revoked && e.key.flight == 0 {
		ep.forgo(e.key)
	}
	if e.mr != nil {
		_ = e.mr.close()
	}
}

// delivered appends the slices whose immediates were handled by the peer, and
// whose own requests are complete. Both are waited for: the peer's word may be here before
// the completion of the request, and the device still reads the memory then. The caller holds
// the lock.
func (ep *endpoint) delivered(q *sendQueue, done []*transport.Slice) []*transport.Slice {
	first := q.done - uint64(len(q.imms)) // number of the first in imms
	for len(q.imms) > 0 && first < q.acked {
		e := &q.imms[0]
		if err := q.refused[first]; err != nil {
			delete(q.refused, first)
			ep.refused = append(ep.refused, refusal{e.s, err}) // polled completes them
		} else {
			done = append(done, e.s)
		}
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
	for range more {
		if err := verdict(ep.letterFrom(pair, q.acked), q.acked); err != nil {
			if q.refused == nil {
				q.refused = make(map[uint64]error)
			}
			q.refused[q.acked] = err
		}
		q.acked++
	}
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

// stop implements handler: the queue pairs are about to go. It takes both locks, so that after it
// nobody hands requests over, now or later.
func (ep *endpoint) stop(err error) {
	ep.posting.Lock() // no request is being handed over any more
	defer ep.posting.Unlock()
	ep.eps.Lock()
	defer ep.eps.Unlock()
	ep.broken = err
}

// underWay implements handler. Requests that were flushed stay in the ring for ended, which
// completes their slices, and are under way no more.
func (ep *endpoint) underWay() bool {
	ep.eps.Lock()
	defer ep.eps.Unlock()
	return slices.ContainsFunc(ep.sends, func(q sendQueue) bool { return max(q.head, q.flushed) != q.tail })
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
// lost with the connection. unsure says that writes may still be applied by the target, which
// then has to be told of this connection's secret before they are sent again.
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
			// The device names a request; a slice ends with the last of its own. So the reason
			// goes on to the next request that ends a slice, and no further.
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
	ep.eps.Unlock()
	ep.rail.ended(ep, unsure)
	complete(refused)
}
