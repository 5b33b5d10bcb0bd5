package rdma

import (
	"fmt"

	"kvferry/transport"
)

// A sendQueue is what a queue pair has under way: requests head to tail, those of
// a run sharing the completion of its last. Numbers count from 0 and do not wrap; an id has 48
// bits of them. Invariants: tail-head <= len(ring), acked <= announced, announced-acked <= depth.
type sendQueue struct {
	ring       []sent           // request i at i modulo its length, link.depth
	head, tail uint64           // numbers of the oldest and the next request
	flushed    uint64           // requests before this one are over, since the pair failed
	bytes      int64            // of slices under way; the pair with the fewest gets the next
	imms       []sent           // immediates complete here and not acknowledged, in order
	announced  uint64           // immediates posted
	done       uint64           // of them completed here
	acked      uint64           // and by the peer
	refused    map[uint64]error // of them those that the peer refused, by number, until their slices end
}

// sent is a request under way. Its slice, if it ends one, ends with it.
type sent struct {
	s     *transport.Slice
	key   *remoteKey
	bytes int64
	op    opcode
	mr    memory // of local memory that was not registered
}

// place makes the requests of a slice, in ep.wrs, or says that there is no room now. A slice
// larger than the window goes when nothing else is under way. An error is the slice's own. The
// caller holds both locks.
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
	if int(q.tail-q.head)+need > len(q.ring) || s.HasImm && q.announced-q.acked >= ep.unanswered(s) {
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
		ep.write(p, q.announced, s)
	}
	op := opWrite
	if s.Op == transport.Read {
		op = opRead
	}
	for {
		n := min(size, most)
		wr := workRequest{op: op, local: local, lkey: lkey, length: uint32(n), remote: remote, rkey: k.memory.rkey}
		if op == opWrite && !ep.at.unmapped {
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
			wr.imm = announcement(q.announced, s.Imm.Text != "")
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

// unanswered is how many immediates before a slice's the peer may owe an answer to: each has a slot for its letter.
func (ep *endpoint) unanswered(s *transport.Slice) uint64 {
	if s.Imm.Text != "" {
		return uint64(min(ep.depth, longSlots))
	}
	return uint64(ep.depth)
}

// write makes the request of the letter before an immediate, which has that number in its pair.
func (ep *endpoint) write(pair int, number uint64, s *transport.Slice) {
	mem, from, to := ep.letterTo(pair, number)
	n := letterLen
	if s.Imm.Text == "" {
		putLetter(mem, s.Key, &s.Imm)
	} else {
		at, mem := ep.long(pair, number)
		n = putLong(mem, s.Key, &s.Imm)
		from, to = ep.scratch.addr()+at, ep.theirs.addr+at
	}
	own, _ := ep.scratch.keys()
	ep.request(pair, sent{op: opWrite}, workRequest{
		op: opWrite, local: from, lkey: own, length: uint32(n), remote: to, rkey: ep.theirs.rkey, flags: ep.inline(n),
	})
}

// inline has the device take n bytes with the request: it then need not fetch them, which
// is a round trip over PCIe, and their memory is free when the request is posted.
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
// is, for as long as the slice takes: that is right and slow, a quarter of a second a gigabyte.
// Slices of one batch mostly lie in one registration, so the last answer is kept, until
// regions change.
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

// transient registers a slice's memory for as long as the slice takes: whoever settles the
// slice closes the registration.
func (ep *endpoint) transient(s *transport.Slice) (lkey uint32, addr uint64, mr memory, err error) {
	if mr, err = ep.dev.register(s.Local); err != nil {
		return 0, 0, nil, fmt.Errorf("%w: %w", transport.ErrInvalid, err)
	}
	lkey, _ = mr.keys()
	return lkey, mr.addr(), mr, nil
}
