package rdma

import (
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"kvferry/transport"
)

// A link is what both sides of a connection have: the control connection, the
// queue pairs and the memory that letters are in.
//
//	scratch   | long letters, to us or from us | letters to us, depth a pair | letters from us, the same |
//
// Its poller takes completions for as long as the link holds, then tears the
// queue pairs down: from then on the device touches nothing of it.
type link struct {
	rail  *Rail
	dev   device   // stays open until release, which counts the link out of rail.users
	c     net.Conn // closed by fail
	peer  string   // its control connection's address
	pairs pairs
	n     int // pairs
	depth int // operations under way in each, and immediates not acknowledged

	most    int64 // bytes of one request
	inlined int   // bytes that go with it

	mem     []byte // scratch, outside the Go heap
	unmap   func() error
	scratch memory
	theirs  remoteMemory // the peer's letters

	out  []byte        // frames to send
	kick chan struct{} // there are some, or the link has failed; room for one

	mu       sync.Mutex // guards out, err
	drained  *sync.Cond // of mu: out has been taken, or err is set
	err      error
	gone     bool          // err is that the control connection ended; the device may know why
	refuses  bool          // the peer's queue pair has refused a request: the device will say which
	failedID uint64        // request whose failure err is
	over     chan struct{} // closed when all is done
}

// handler is the side's part of the poller: an endpoint, or a served link. frame is called by
// the reader of the control connection, all others by the poller.
type handler interface {
	// completed takes a completion that went well.
	completed(c *completion) error
	// polled is called after each run of completions.
	polled() error
	// frame takes a frame of the peer's.
	frame(f *frame) error
	// stop is called when the link has failed, before its queue pairs go.
	stop(err error)
	// flushed takes a completion that went badly.
	flushed(c *completion)
	// underWay says that requests are posted whose completions have not come.
	underWay() bool
	// released says that the device will not touch memory for this side any more,
	// once nothing is under way and the queue pairs are in error.
	released() bool
	// opName says what a request was.
	opName(id uint64) string
	// ended is called last, when the device touches nothing any more. failed is the
	// request whose own failure err is, or no request's.
	ended(err error, failed uint64)
}

// newLink makes n queue pairs of that depth, and their scratch, for a control connection. They
// are not connected yet. Until run, the link is given back by release and c is the caller's;
// run does both.
func (r *Rail) newLink(c net.Conn, n, depth int) (*link, error) {
	dev, err := r.use()
	if err != nil {
		return nil, err
	}
	l := &link{
		rail: r, dev: dev, c: c, peer: c.RemoteAddr().String(), n: n, depth: depth,
		kick: make(chan struct{}, 1), over: make(chan struct{}), failedID: noRequest,
	}
	l.drained = sync.NewCond(&l.mu)
	info := dev.info()
	l.most, l.inlined = int64(info.maxMessage), info.maxInline
	if l.mem, l.unmap, err = transport.MapMemory(n*longSlots*longLen + 2*n*depth*letterLen); err != nil {
		r.users.Done()
		return nil, fmt.Errorf("mmap: %w", err)
	}
	if l.scratch, err = dev.register(l.mem); err == nil {
		l.pairs, err = dev.pairs(n, depth)
	}
	if err != nil {
		l.release()
		return nil, err
	}
	return l, nil
}

// release frees what newLink made.
func (l *link) release() {
	if l.pairs != nil {
		_ = l.pairs.close()
	}
	if l.scratch != nil {
		_ = l.scratch.close()
	}
	_ = l.unmap()
	l.rail.users.Done()
}

// greeting is ours.
func (l *link) greeting(name transport.Name, lost []transport.Secret) *greeting {
	info := l.dev.info()
	_, rkey := l.scratch.keys()
	return &greeting{
		name: name, depth: uint32(l.depth), pairs: l.pairs.addrs(), lost: lost,
		at:      portAddr{gid: info.gid.addr, lid: info.port.lid, mtu: info.port.mtu},
		mailbox: remoteMemory{l.scratch.addr(), rkey},
	}
}

// connect starts the queue pairs with what the peer said of its. Depth and MTU are the lesser
// of both sides'.
func (l *link) connect(g *greeting) error {
	if len(g.pairs) != l.n {
		return fmt.Errorf("%w: %d queue pairs, not %d", transport.ErrProtocol, len(g.pairs), l.n)
	}
	l.theirs = g.mailbox
	l.depth = min(l.depth, int(g.depth))
	at := g.at
	at.mtu = min(at.mtu, l.dev.info().port.mtu)
	return l.pairs.start(g.pairs, at)
}

// letterTo is our slot for a letter to the peer, and letterFrom the peer's for one
// to us. The layout of both scratches is the same, except for their depths: each
// side writes at the stride that both know, the lesser depth. A slot is used again
// after depth more immediates, and by then this one has been acknowledged: place sees to it.
func (l *link) letterTo(pair int, seq uint64) (mem []byte, local, remote uint64) {
	slot := uint64(pair*l.depth) + seq%uint64(l.depth)
	first := uint64(l.n * longSlots * longLen)
	at := first + (uint64(len(l.mem))-first)/2 + slot*letterLen
	return l.mem[at : at+letterLen], l.scratch.addr() + at, l.theirs.addr + first + slot*letterLen
}

func (l *link) letterFrom(pair int, seq uint64) []byte {
	at := uint64(l.n*longSlots*longLen) + (uint64(pair*l.depth)+seq%uint64(l.depth))*letterLen
	return l.mem[at : at+letterLen]
}

// long is the slot of a long letter: where it begins in both sides' scratch, and ours.
func (l *link) long(pair int, seq uint64) (at uint64, mem []byte) {
	at = (uint64(pair*longSlots) + seq%longSlots) * longLen
	return at, l.mem[at : at+longLen]
}

// send queues a frame for the peer, and may be called with any lock but the link's. It never
// blocks.
func (l *link) send(f frame) {
	l.mu.Lock()
	l.out = f.append(l.out)
	l.mu.Unlock()
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// fail ends the link; the first reason stands. It returns at once; over is closed when the
// link has ended.
func (l *link) fail(err error) {
	l.mu.Lock()
	first := l.err == nil
	if first {
		l.err = err
		l.drained.Broadcast()
	}
	l.mu.Unlock()
	if first {
		_ = l.c.Close()
		l.pairs.interrupt()
		select {
		case l.kick <- struct{}{}:
		default:
		}
	}
}

// failed is why the link ended, nil while it holds.
func (l *link) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// lost ends the link with an error that has its slices tried again.
func (l *link) lost(format string, args ...any) {
	l.fail(fmt.Errorf("%w: "+format, append([]any{transport.ErrUnreachable}, args...)...))
}

// run carries the link until it fails. Where the device has said of every request
// that it is over, nobody waits for the queue pairs to be destroyed: rxe takes 50 s
// for that after a peer that did not answer.
func (l *link) run(h handler) {
	var control sync.WaitGroup
	control.Go(l.write)
	control.Go(func() { l.read(h) })
	l.poll(h)
	h.stop(l.failed())
	l.drain(h)
	released := h.released()
	control.Wait()
	if !released {
		l.release()
	}
	h.ended(l.failed(), l.failedID)
	close(l.over)
	if released {
		l.release()
	}
}

// write sends queued frames, many at once if the connection is slow. Its two buffers change
// places: what send appends to is never what is being written.
func (l *link) write() {
	var spare []byte
	for range l.kick {
		l.mu.Lock()
		b, err := l.out, l.err
		l.out = spare[:0]
		l.drained.Broadcast()
		l.mu.Unlock()
		if err != nil {
			return
		}
		if _, err := l.c.Write(b); err != nil {
			l.lost("control connection: %w", err)
			return
		}
		spare = b
	}
}

// read takes the peer's frames. That the connection ends is how a side learns
// that the other is gone.
func (l *link) read(h handler) {
	r := &frameReader{r: l.c}
	var f frame
	for {
		err := readFrame(r, &f)
		if err == nil && f.typ == frameRefused {
			l.mu.Lock()
			l.refuses = true
			l.mu.Unlock()
			continue
		}
		if err == nil {
			err = h.frame(&f)
			if err == nil {
				l.waitDrained()
				continue
			}
			l.fail(err)
			return
		}
		l.mu.Lock()
		l.gone = l.err == nil
		l.mu.Unlock()
		l.lost("control connection: %w", err)
		return
	}
}

// mostOut bounds the frames that wait to be sent, in bytes, beyond which none of the peer's is taken: most of its frames
// are answered. The slices of a full queue ask for 120 KB of keys, and the keys that are revoked at a time are bounded by
// the windows that are open.
const mostOut = 1 << 20

// waitDrained returns when few frames wait to be sent, or the link has failed.
func (l *link) waitDrained() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.out) > mostOut && l.err == nil {
		l.drained.Wait()
	}
}

// poll takes completions until the link has failed.
func (l *link) poll(h handler) {
	buf := make([]completion, 64)
	spin := spinner{most: max(l.rail.cfg.Poll, 0), score: maxScore}
	for l.failed() == nil {
		n, err := l.pairs.poll(buf, spin.next())
		spin.found(n > 0)
		if err == nil && n == 0 {
			if n, err = l.pairs.arm(buf); err == nil && n == 0 {
				err = l.pairs.sleep()
			}
		}
		if err != nil {
			l.lost("polling: %w", err)
			return
		}
		for i := 0; i < n; i++ {
			c := &buf[i]
			if c.status != statusOK {
				l.failedID = c.id
				err := l.refused(c, h)
				if c.id&receiveID != 0 { // they fail when a request of the peer's was refused
					_ = l.c.SetWriteDeadline(time.Now().Add(drainFor))
					_, _ = l.c.Write((&frame{typ: frameRefused}).append(nil))
				}
				l.fail(err)
				h.flushed(c)
				for i++; i < n; i++ { // what came with it
					l.ended(&buf[i], h)
				}
				return
			}
			if err := h.completed(c); err != nil {
				l.fail(err)
				return
			}
		}
		if err := h.polled(); err != nil {
			l.fail(err)
			return
		}
	}
}

// refused is the error of a completion that went badly.
func (l *link) refused(c *completion, h handler) error {
	op := "receive"
	if c.id&receiveID == 0 {
		op = h.opName(c.id)
	}
	return &CompletionError{Rail: l.rail.cfg.Name, Peer: l.peer, Op: op, Status: uint32(c.status), Vendor: c.vendor}
}

// A spinner says how long to poll before sleeping: Config.Poll where that has paid
// off of late, and nothing but a probe now and then where completions take longer.
// Then it only took the CPU from those who wait for them.
type spinner struct {
	most    time.Duration // Config.Poll, or 0
	score   int           // above 0 it pays off
	skipped int           // polls without spinning since the last probe
	spun    bool          // the poll under way spins
}

// They are chosen: a spinner stops after at most 16 polls in vain, and a probe of 20 µs in 32
// sleeps is less than 1 % of a core where a completion takes 100 µs and more.
const (
	maxScore   = 16
	probeEvery = 32
)

// next is how long the poll to come is to spin.
func (s *spinner) next() time.Duration {
	s.spun = s.score > 0
	if !s.spun {
		if s.skipped++; s.skipped == probeEvery {
			s.skipped, s.spun = 0, true
		}
	}
	if !s.spun {
		return 0
	}
	return s.most
}

// found says whether the poll had completions. One that had pays for three that
// had none.
func (s *spinner) found(any bool) {
	switch {
	case !s.spun:
	case any:
		s.score = min(s.score+3, maxScore)
	default:
		s.score = max(s.score-1, 0)
	}
}

// noRequest is no request's id.
const noRequest = ^uint64(0)

// drainFor bounds the wait for flushed requests. They come within microseconds;
// what a device never says of them does not matter once its queue pairs are gone.
// refusedFor bounds the wait for a refusal that the peer has announced.
const (
	drainFor   = 100 * time.Millisecond
	refusedFor = 2 * time.Second
)

// drain takes the completions that come once the queue pairs are in error, so
// that what had been carried out before counts as such. A target whose queue pair
// refuses a request ends the connection, maybe before the refusal is here: the device's
// word on it counts more, and is waited for before the queue pairs are put in error.
func (l *link) drain(h handler) {
	l.mu.Lock()
	gone, wait := l.gone, drainFor
	if l.refuses {
		wait = refusedFor
	}
	l.mu.Unlock()
	if gone && !l.settle(h, wait) {
		return
	}
	if l.pairs.fail() == nil {
		l.settle(h, drainFor)
	}
}

// settle takes completions until none is under way, for a while at most, or one was
// not carried out. It is false if the device does not say.
func (l *link) settle(h handler, most time.Duration) bool {
	buf := make([]completion, 64)
	for start := time.Now(); h.underWay() && time.Since(start) < most; {
		n, err := l.pairs.poll(buf, 0)
		if err != nil {
			return false
		}
		refused := false
		for i := range buf[:n] {
			l.ended(&buf[i], h)
			refused = refused || buf[i].status != statusOK && buf[i].status != statusFlushed
		}
		if refused {
			break // the others follow once the queue pairs are in error
		}
		if n == 0 {
			time.Sleep(100 * time.Microsecond)
		}
	}
	return true
}

// ended takes a completion of a link that has failed.
func (l *link) ended(c *completion, h handler) {
	if c.status == statusOK {
		_ = h.completed(c)
		return
	}
	h.flushed(c)
	if c.status == statusFlushed || c.id&receiveID != 0 {
		return
	}
	refused := l.refused(c, h) // takes the side's lock, which comes before ours
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		l.failedID, l.gone = c.id, false
		l.err = refused
	}
}

// A frameReader reads ahead, so that frames that came together cost one call.
type frameReader struct {
	r   io.Reader
	buf [64 * frameLen]byte
	at  int
	end int
}

func (f *frameReader) Read(b []byte) (int, error) {
	if f.at == f.end {
		n, err := f.r.Read(f.buf[:])
		if n == 0 {
			return 0, err
		}
		f.at, f.end = 0, n
	}
	n := copy(b, f.buf[f.at:f.end])
	f.at += n
	return n, nil
}
