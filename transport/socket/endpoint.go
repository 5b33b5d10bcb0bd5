package socket

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"kvferry/transport"
	"kvferry/transport/connection"
	"kvferry/transport/pages"
)

const (
	// frameBytes ends a frame: a frame is acknowledged as a whole, and 1 MiB
	// is where its own costs fall below 1 % of its copies.
	frameBytes = 1 << 20
	// referBytes ends one whose bytes are copied by reference: what it costs to
	// wake the cores that share a copy is then 1 % of it.
	referBytes = 8 << 20
)

// An endpoint is the initiator's side of a connection.
//
//	Post ──► queue ──► send ──► socket ──► receive ──► Complete
//	                    └── writes, reads ──┘  frames sent and not answered
type endpoint struct {
	rail   *Rail
	addr   string
	secret transport.Secret
	c      Conn
	in     stream
	out    *gather
	peer   Memory        // nil if frames carry bytes
	lease  lease         // of what the peer lends
	kick   chan struct{} // queue is not empty, or err is set
	over   chan struct{} // everything is completed

	mu     sync.Mutex
	queue  []*transport.Slice
	room   connection.Room
	writes []*frame
	reads  []*frame
	poked  atomic.Bool
	copied uint64 // sequence number of the last READ frame whose bytes are here
	err    error

	// Of send only.
	work   []*transport.Slice // taken off the queue, not yet in a frame
	*lists                    // nil while it waits
	seq    uint64
	told   uint64 // sequence number of the last release
	bulk   mover
}

// A frame is sent and not yet answered.
type frame struct {
	seq    uint64
	count  int                // descriptors
	slices []*transport.Slice // as many, or none: see sendImm
	bytes  int64              // of slices
	small  bool               // bulk gives way to it, see precedence
	naks   []refusal
}

type refusal struct {
	index int
	code  code
}

var framePool = sync.Pool{New: func() any { return &frame{slices: make([]*transport.Slice, 0, maxCount)} }}

// Secret implements transport.Endpoint.
func (ep *endpoint) Secret() transport.Secret { return ep.secret }

// Post implements transport.Endpoint.
func (ep *endpoint) Post(slices []*transport.Slice) (int, error) {
	ep.mu.Lock()
	if ep.err != nil {
		ep.mu.Unlock()
		return 0, ep.err
	}
	n := ep.room.Take(slices)
	ep.queue = append(ep.queue, slices[:n]...)
	ep.mu.Unlock()
	if n > 0 {
		ep.wake()
	}
	return n, nil
}

// UnderWay implements bundle.Member.
func (ep *endpoint) UnderWay() int64 {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.room.UnderWay()
}

// Over implements bundle.Member.
func (ep *endpoint) Over() <-chan struct{} { return ep.over }

// Gauge implements transport.Gauge.
func (ep *endpoint) Gauge() transport.Flow {
	if ep.rail.cfg.Gauge == nil {
		return transport.Flow{}
	}
	return ep.rail.cfg.Gauge(ep.c)
}

// Poke implements transport.Gauge.
func (ep *endpoint) Poke() {
	if ep.rail.cfg.Gauge == nil {
		return
	}
	ep.poked.Store(true)
	ep.wake()
}

// pokeBytes are more than two packets of 9,000 bytes: a kernel may wait for the second before it
// acknowledges the first (RFC 5681, 4.2).
var pokeBytes [20 << 10]byte

// poke sends what the peer's kernel acknowledges at once.
func (ep *endpoint) poke() error {
	r := request{op: opPoke, bytes: int64(len(pokeBytes))}
	ep.head = r.append(ep.head[:0])
	return writeFrame(ep.c, ep.out, nil, append(ep.vec[:0], ep.head, pokeBytes[:]))
}

// wake has send look at the queue once more. One kick is enough for any number of reasons:
// send looks at all of them before it waits again.
func (ep *endpoint) wake() {
	select {
	case ep.kick <- struct{}{}:
	default:
	}
}

// Close implements transport.Endpoint.
func (ep *endpoint) Close() error {
	ep.fail(net.ErrClosed)
	<-ep.over
	return nil
}

// fail breaks the endpoint; the first reason stands.
func (ep *endpoint) fail(err error) {
	ep.mu.Lock()
	first := ep.err == nil
	if first {
		ep.err = err
	}
	ep.mu.Unlock()
	if first {
		_ = ep.c.Close()
		ep.wake()
	}
}

// lost breaks the endpoint with an error that has its slices tried again.
func (ep *endpoint) lost(err error) {
	ep.fail(fmt.Errorf("%w: connection lost: %w", transport.ErrUnreachable, err))
}

// run carries slices until the endpoint breaks, and completes those left.
func (ep *endpoint) run() {
	defer ep.rail.wg.Done()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		ep.send()
	}()
	ep.receive()
	<-sent
	ep.in.src.light(false)
	ep.mu.Lock()
	err := ep.err
	unsure := len(ep.writes) > 0 // the target may still apply them
	frames := append(ep.writes, ep.reads...)
	rest := append(ep.work, ep.queue...)
	ep.writes, ep.reads, ep.work, ep.queue = nil, nil, nil, nil
	ep.mu.Unlock()
	ep.rail.ended(ep, unsure)
	for _, f := range frames {
		f.answered()
		ep.drop(f.slices, err)
	}
	transport.CompleteAll(rest, err)
	close(ep.over)
}

// drop completes slices of a connection that is over. Those whose local memory is gone, which may have broken it, fail.
func (ep *endpoint) drop(slices []*transport.Slice, err error) {
	if ep.peer == nil && !errors.Is(err, syscall.EFAULT) {
		transport.CompleteAll(slices, err)
		return
	}
	for _, s := range slices {
		why := err
		if !pages.Permit(s.Local, s.Op == transport.Read) {
			why = transport.ErrMemory
		}
		s.Complete(why)
	}
}

// send turns the queue into frames.
func (ep *endpoint) send() {
	ep.lists = takeLists()
	defer func() { ep.giveBack() }()
	var spare []*transport.Slice
	for {
		ep.mu.Lock()
		if ep.err != nil {
			ep.mu.Unlock()
			return
		}
		ep.work, ep.queue = ep.queue, spare
		ep.mu.Unlock()
		spare = ep.work
		if len(ep.work) == 0 {
			sent, err := ep.sendRelease()
			if err == nil && !sent && ep.poked.Swap(false) {
				sent, err = true, ep.poke()
			}
			if err != nil {
				ep.lost(err)
				return
			}
			if !sent {
				spare = rested(spare)
				ep.wait()
			}
			continue
		}
		for len(ep.work) > 0 {
			var err error
			if ep.peer != nil && ep.work[0].HasImm {
				err = ep.sendImm()
			} else {
				err = ep.sendFrame()
			}
			if err != nil {
				ep.lost(err)
				return
			}
		}
		clear(spare)
		spare = spare[:0]
	}
}

// wait waits for a kick, with no more memory than that takes.
func (ep *endpoint) wait() {
	select { // most often, where much is going on
	case <-ep.kick:
		return
	default:
	}
	ep.mu.Lock()
	if len(ep.queue) == 0 {
		ep.queue = rested(ep.queue)
	}
	ep.mu.Unlock()
	ep.giveBack()
	ep.lists = nil
	<-ep.kick
	ep.lists = takeLists()
}

// sendFrame sends the first slices of ep.work.
func (ep *endpoint) sendFrame() error {
	f := framePool.Get().(*frame)
	op, most := ep.work[0].Op, int64(frameBytes)
	if ep.peer != nil {
		most = referBytes
	}
	n := 0
	for _, s := range ep.work {
		size := int64(len(s.Local))
		if s.Op != op || n == maxCount || n > 0 && f.bytes+size > most || s.HasImm && ep.peer != nil {
			break
		}
		f.bytes += size
		n++
		if s.HasImm {
			break // its immediate ends the frame
		}
	}
	f.slices = append(f.slices, ep.work[:n]...)
	last := f.slices[n-1]
	ep.describe(f, request{op: op, hasImm: last.HasImm, count: n, bytes: f.bytes}, f.slices)
	ep.vec = append(ep.vec[:0], ep.head)
	if op == transport.Write {
		for _, s := range f.slices {
			if len(s.Local) > 0 {
				ep.vec = append(ep.vec, s.Local)
			}
		}
	}
	ep.underWay(f, op, n)
	if op == transport.Write && ep.peer == nil && ep.bulk.due(f.bytes) {
		sharedPrecedence.wait()
	}
	return writeFrame(ep.c, ep.out, ep.peer, ep.vec)
}

// describe makes ep.head what is before the frame's bytes.
func (ep *endpoint) describe(f *frame, r request, slices []*transport.Slice) {
	ep.seq++
	f.seq, r.seq, f.count = ep.seq, ep.seq, r.count
	ep.in.src.light(r.bytes <= lightBytes)
	last := slices[len(slices)-1]
	if r.hasImm {
		r.text = len(last.Imm.Text)
	}
	ep.head = r.append(ep.appendRelease(ep.head[:0]))
	for _, s := range slices {
		d := desc{key: s.Key, offset: uint64(s.Offset), length: uint64(len(s.Local))}
		ep.head = d.append(ep.head)
	}
	switch {
	case r.hasImm:
		behind := last.Behind
		if ep.peer != nil && len(last.Local) > 0 {
			behind++ // its own bytes, see sendImm
		}
		ep.head = appendImm(ep.head, &last.Imm, behind)
	case r.op == transport.Write && ep.peer != nil:
		for _, s := range slices {
			ep.head = appendAddress(ep.head, s.Local)
		}
	}
}

// underWay files a frame whose answer may come from now on, and takes the first n
// slices off ep.work.
func (ep *endpoint) underWay(f *frame, op transport.Op, n int) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if f.small = ep.room.UnderWay() <= lightBytes; f.small {
		sharedPrecedence.sent()
	}
	if op == transport.Write {
		ep.writes = append(ep.writes, f)
	} else {
		ep.reads = append(ep.reads, f)
	}
	ep.work = ep.work[n:]
}

// receive takes the target's answers.
func (ep *endpoint) receive() {
	for {
		b, err := ep.in.next(responseLen)
		if err != nil {
			ep.lost(err)
			return
		}
		r, err := parseResponse(b)
		if err == nil {
			switch r.typ {
			case ack:
				err = ep.acked(r)
			case nak:
				err = ep.refused(r)
			case data:
				err = ep.arrived(r)
			case reset:
				err = codeProtocol.err()
			}
		}
		if errors.Is(err, transport.ErrProtocol) {
			ep.fail(err)
			return
		} else if err != nil {
			ep.lost(err)
			return
		}
	}
}

// acked completes the WRITE frames up to r.seq.
func (ep *endpoint) acked(r response) error {
	for {
		ep.mu.Lock()
		if len(ep.writes) == 0 || ep.writes[0].seq > r.seq {
			ep.mu.Unlock()
			return nil
		}
		f := ep.pop(&ep.writes)
		if len(ep.writes) == 0 && ep.peer != nil {
			ep.wake() // sendImm may wait
		}
		ep.mu.Unlock()
		f.complete()
	}
}

// pop takes the first frame off a list. The caller holds ep.mu.
func (ep *endpoint) pop(list *[]*frame) *frame {
	f := (*list)[0]
	(*list)[0] = nil
	if *list = (*list)[1:]; len(*list) == 0 {
		*list = rested(*list)
	}
	ep.room.Free(len(f.slices), f.bytes)
	f.answered()
	return f
}

// answered is for a frame whose answer is here, or does not come any more.
func (f *frame) answered() {
	if f.small {
		f.small = false
		sharedPrecedence.answered()
	}
}

// refused notes a slice that the target did not carry out.
func (ep *endpoint) refused(r response) error {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	for _, list := range [2][]*frame{ep.writes, ep.reads} {
		for _, f := range list {
			if f.seq == r.seq && r.index < f.count {
				if n := len(f.naks); n > 0 && f.naks[n-1].index >= r.index {
					return fmt.Errorf("%w: slice %d of frame %d refused out of order", transport.ErrProtocol, r.index, r.seq)
				}
				f.naks = append(f.naks, refusal{r.index, r.code})
				return nil
			}
		}
	}
	return fmt.Errorf("%w: nak of slice %d of frame %d, which is not under way", transport.ErrProtocol, r.index, r.seq)
}

// arrived reads a READ frame's bytes into local memory.
func (ep *endpoint) arrived(r response) error {
	ep.mu.Lock()
	var f *frame
	if len(ep.reads) > 0 {
		f = ep.reads[0]
	}
	ep.mu.Unlock()
	if f == nil || f.seq != r.seq {
		return fmt.Errorf("%w: data of frame %d, which is not the next", transport.ErrProtocol, r.seq)
	}
	want := f.bytes
	l := takeLists()
	defer l.giveBack()
	dst := l.vec[:0]
	naks := f.naks
	for i, s := range f.slices {
		if len(naks) > 0 && naks[0].index == i {
			want -= int64(len(s.Local))
			naks = naks[1:]
			continue
		}
		if len(s.Local) > 0 {
			dst = append(dst, s.Local)
		}
	}
	if r.bytes != want {
		return fmt.Errorf("%w: frame %d brings %d bytes, not %d", transport.ErrProtocol, r.seq, r.bytes, want)
	}
	l.vec = dst
	if ep.peer != nil {
		return ep.borrow(f, l)
	}
	err := ep.in.scatter(dst)
	clear(l.vec)
	if err != nil {
		return err
	}
	ep.mu.Lock()
	ep.pop(&ep.reads)
	ep.mu.Unlock()
	f.complete()
	return nil
}

// complete ends the frame's slices and recycles it.
func (f *frame) complete() {
	start := 0
	if len(f.slices) == 0 {
		f.naks = f.naks[:0]
	}
	for _, n := range f.naks {
		transport.CompleteAll(f.slices[start:n.index], nil)
		f.slices[n.index].Complete(n.code.err())
		start = n.index + 1
	}
	transport.CompleteAll(f.slices[start:], nil)
	clear(f.slices)
	f.slices, f.naks, f.bytes = f.slices[:0], f.naks[:0], 0
	framePool.Put(f)
}
