package transport

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/transport/pacing"
)

// A Request moves one range between local memory and a target.
type Request struct {
	Op     Op
	Local  []byte // inside one registered Segment
	Offset int64  // in the target, bytes
	// Target, if not nil, is meant in place of Submit's: another segment or window of the same peer.
	Target *Target
}

// BatchOptions say how a batch ends and who hears of it.
type BatchOptions struct {
	// Timeout, from Submit, and Deadline bound the batch; the earlier one
	// counts. With neither it is Config.DefaultTimeout.
	Timeout  time.Duration
	Deadline time.Time
	// Imm is delivered to the target's engine if HasImm, after all bytes of
	// the batch are applied, once, and only if they all were.
	Imm    uint64
	HasImm bool
	// Message, if not nil, is delivered so in place of Imm: up to MaxMessage bytes, none too, with this engine's
	// Config.Name, after WRITEs and READs alike. The bytes are the caller's again when Submit returns. Messages of
	// several batches come in any order.
	Message []byte
	// Priority says whether the batch may go past others. By default small ones do.
	Priority Priority
	// OnDone is called once, after Done is closed. It must not block: it runs
	// on the goroutine that completed the batch, which may be one that is within Submit,
	// of this batch or another: if it fails at once, and on rails that copy by
	// themselves, see Carrier. It may Submit; it must not close a segment or the engine.
	OnDone func(*Batch)
	// OnApplied, if not nil, is called when bytes [from, to) of a request, named by its index, have been moved. It is
	// called at once, while the bytes may be in the CPU's cache, for each byte once, and before OnDone. Nothing
	// writes to these bytes any more. Calls come on the goroutines that complete slices and may overlap; they must
	// not block.
	OnApplied func(request, from, to int)
	// Since is when the caller's schedule had the batch submitted, by the engine's
	// clock: a paced batch occupies the link from then on. It is for callers that
	// keep an absolute schedule and wake a little late; 0 is now.
	Since time.Duration
	// Tag names the serving request in errors.
	Tag string
}

// A Status is how a batch stands. All but InFlight are terminal.
type Status uint8

const (
	InFlight Status = iota
	Completed
	Failed
	TimedOut
	Canceled
)

func (s Status) String() string {
	return [...]string{"in flight", "completed", "failed", "timed out", "canceled"}[s]
}

// A Batch is a set of requests under way. It ends exactly once, soon after
// its deadline at the latest, and before its engine's Close returns. Its methods may be called at any time, also
// long after it has ended; they do not block.
type Batch struct {
	e      *Engine
	t      *Target
	opt    BatchOptions
	slices []Slice
	segs   []*Segment
	others []*Target // that requests name, without t
	bytes  int64
	reads  bool // a request is a READ
	posted time.Duration
	paced  *pacing.Delivery // by the modelled link
	done   chan struct{}

	// pending counts slices not completed; whoever brings it to zero
	// advances the batch. Submit holds one until it has queued all.
	pending atomic.Int64
	// paths have carried slices of it, bits by path.index.
	paths atomic.Uint64
	// aborted is set when the batch can no longer complete, before its
	// slices are taken out of the paths' queues.
	aborted atomic.Bool

	mu        sync.Mutex
	phase     phase
	cause     error  // why it is aborted
	status    Status // what it will be
	again     []*Slice
	imm       Imm
	parts     []Imm // of the message; the last is the immediate
	riding    riding
	fence     Secret // of a batch that is one: of the connection to end
	deadline  time.Duration
	timer     *time.Timer // runs expire
	err       error
	completed time.Duration
}

type phase uint8

const (
	moving     phase = iota // slices are queued or posted
	held                    // all bytes are there; the modelled link is not
	signalling              // the immediate is queued or posted
	over
)

// Done is closed when the batch has ended. From then on the engine does not
// touch its requests' local memory.
func (b *Batch) Done() <-chan struct{} { return b.done }

// Err is nil while the batch is under way and if it completed; otherwise it is
// an *Error.
func (b *Batch) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// Status is how the batch stands.
func (b *Batch) Status() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase != over {
		return InFlight
	}
	return b.status
}

// Bytes is the sum of the requests' lengths.
func (b *Batch) Bytes() int64 { return b.bytes }

// Posted is when the batch was submitted, by the engine's clock.
func (b *Batch) Posted() time.Duration { return b.posted }

// Due is when the modelled link has delivered the batch, zero before that and without one. The
// bytes may arrive later than that.
func (b *Batch) Due() time.Duration { return b.paced.At() }

// Completed is when the batch ended; zero before that.
func (b *Batch) Completed() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.completed
}

// Submit starts a batch and returns at once. Its immediate comes with t's key. reqs is the caller's again, the memory that
// it names when the batch is done. A faulty request, a closed target or engine make a
// batch that has failed already; no requests, no immediate and no message make one that has completed.
//
// Err says why a batch failed: ErrInvalid, ErrBounds, ErrNotRegistered, ErrNoPath of the request
// itself; ErrBadKey (see ErrUnconfirmed too), ErrAccess, ErrBounds of the target; ErrBusy; ErrUnreachable if
// Config.Retries are used up; ErrDeadline, with the last failure; ErrCanceled;
// net.ErrClosed.
func (e *Engine) Submit(t *Target, reqs []Request, opt BatchOptions) *Batch {
	b := &Batch{e: e, t: t, opt: opt, posted: e.cfg.Clock.Now(), done: make(chan struct{})}
	if len(reqs) == 0 && !opt.HasImm && opt.Message == nil {
		b.end(Completed, nil)
		return b
	}
	if t == nil || t.e != e || !t.acquire() {
		b.end(Failed, fmt.Errorf("%w: the target is not open on this engine", ErrInvalid))
		return b
	}
	timeout := e.timeout(opt)
	if timeout <= 0 {
		t.release()
		b.end(TimedOut, ErrDeadline)
		return b
	}
	err := b.slice(reqs)
	if err == nil {
		err = b.cutMessage()
	}
	if err != nil {
		b.releaseAll()
		b.end(Failed, err)
		return b
	}
	if !e.enter(b, timeout) {
		b.releaseAll()
		b.end(Failed, net.ErrClosed)
		return b
	}
	b.post()
	return b
}

func (e *Engine) timeout(opt BatchOptions) time.Duration {
	d := opt.Timeout
	if d <= 0 && opt.Deadline.IsZero() {
		return e.cfg.DefaultTimeout
	}
	if !opt.Deadline.IsZero() {
		if left := time.Until(opt.Deadline); d <= 0 || left < d {
			return left
		}
	}
	return d
}

// end makes a batch terminal that never started.
func (b *Batch) end(status Status, err error) {
	b.mu.Lock()
	b.cause = b.wrap("submit", err, "", "")
	b.status = status
	b.finish()
}

// post queues the slices on their paths.
func (b *Batch) post() {
	b.pending.Store(int64(len(b.slices)+max(len(b.parts)-1, 0)) + 1)
	if p := b.e.pacer; p != nil && b.fence == (Secret{}) {
		var err error
		if b.paced, err = p.Move(b.posted, b.opt.Since, b.bytes, b.reads, b.t.peer.paths[0].addr()); err != nil {
			b.abort(Failed, err, "", "")
		}
	}
	run := make([]*Slice, len(b.slices))
	for i := range b.slices {
		run[i] = &b.slices[i]
	}
	b.t.peer.assign(run)
	b.sendParts()
	b.sliceDone(1)
}

// sliceDone takes n slices off the batch.
func (b *Batch) sliceDone(n int) {
	if b.pending.Add(int64(-n)) == 0 {
		b.advance()
	}
}

// applied calls OnApplied for each of a run of completed slices.
func (b *Batch) applied(run []*Slice) {
	if b.opt.OnApplied == nil {
		return
	}
	for _, s := range run {
		if len(s.Local) > 0 {
			b.opt.OnApplied(s.request, s.from, s.from+len(s.Local))
		}
	}
}

// advance moves a batch without pending slices to its next phase.
func (b *Batch) advance() {
	b.mu.Lock()
	switch {
	case b.phase == over:
		b.mu.Unlock()
	case b.cause != nil:
		b.finish()
	case b.phase != signalling && b.paced.Held(b.advance):
		b.phase = held
		b.mu.Unlock()
	case b.phase != signalling && b.opt.HasImm && !b.riding.arrived:
		b.signal()
	default:
		b.status = Completed
		b.finish()
	}
}

// signal queues the immediate. The caller holds b.mu; signal unlocks it.
func (b *Batch) signal() {
	if b.fence != (Secret{}) {
		b.imm = b.fence.fence()
	} else if !b.number() {
		b.cause, b.status = b.wrap("immediate", ErrBusy, "", ""), Failed
		b.finish()
		return
	}
	b.phase = signalling
	s := &Slice{Op: Write, HasImm: true, Imm: b.imm, batch: b, target: b.t}
	b.again = append(b.again, s)
	b.pending.Store(1)
	b.mu.Unlock()
	b.t.peer.signal([]*Slice{s})
}

// fenceWithin bounds one attempt to have a lost connection ended by the target. It
// takes a round trip behind what is under way on another path; a path that stalls
// gives it back sooner.
const fenceWithin = 5 * time.Second

// fence asks a target's engine, over any path that is up, to end connections of
// this engine's that were lost, one by one, and tells done when nothing comes from them any more.
func (e *Engine) fence(t *Target, lost []Secret, done func(error)) {
	b := &Batch{e: e, t: t, fence: lost[0], posted: e.cfg.Clock.Now(), done: make(chan struct{})}
	b.opt = BatchOptions{HasImm: true, Tag: "fence", OnDone: func(b *Batch) {
		if err := b.Err(); err != nil || len(lost) == 1 {
			done(err)
			return
		}
		e.fence(t, lost[1:], done)
	}}
	if !t.acquire() {
		b.end(Failed, ErrInvalid)
		return
	}
	if !e.enter(b, fenceWithin) {
		b.releaseAll()
		b.end(Failed, net.ErrClosed)
		return
	}
	b.post()
}

// abort makes the batch fail once its posted slices are done. It reports
// whether it was this call that did.
func (b *Batch) abort(status Status, err error, rail, peer string) bool {
	b.mu.Lock()
	if b.phase == over || b.cause != nil {
		b.mu.Unlock()
		return false
	}
	b.cause, b.status = b.wrap("", err, rail, peer), status
	waiting := b.phase == held
	unsent := len(b.riding.again)
	b.riding.again = nil
	b.mu.Unlock()
	b.aborted.Store(true)
	b.t.peer.purge(b)
	if unsent > 0 {
		b.sliceDone(unsent)
	}
	if waiting {
		b.advance()
	}
	return true
}

// retry returns a copy of s to post instead: the original has completed and
// may complete no more.
func (b *Batch) retry(s *Slice) *Slice {
	n := &Slice{
		Op: s.Op, HasImm: s.HasImm && len(s.Local) == 0, Local: s.Local, LocalKey: s.LocalKey, Key: s.Key, Offset: s.Offset, Imm: s.Imm,
		batch: b, request: s.request, from: s.from, seg: s.seg, target: s.target, tries: s.tries + 1,
	}
	if s.Op == Write && len(s.Local) > 0 {
		n.stale = s.conn.Load()
	}
	b.mu.Lock()
	b.again = append(b.again, n)
	b.mu.Unlock()
	return n
}

// reason is why the batch was aborted.
func (b *Batch) reason() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cause
}

// on reports whether a slice of the batch is posted on c.
func (b *Batch) on(c *connection) bool {
	posted := func(s *Slice) bool { return s.conn.Load() == c && !s.done.Load() }
	for i := range b.slices {
		if posted(&b.slices[i]) {
			return true
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.again, posted)
}

// wrap says where err happened, unless it does already.
func (b *Batch) wrap(op string, err error, rail, peer string) error {
	if err == nil {
		return nil
	}
	if op == "" {
		op = "immediate"
		if len(b.slices) > 0 {
			op = b.slices[0].Op.String()
		}
	}
	if peer == "" && b.t != nil && len(b.t.peer.paths) == 1 {
		p := b.t.peer.paths[0]
		rail, peer = p.name(), p.addr()
	}
	var have *Error
	if errors.As(err, &have) && have == err {
		err = have.Err
	}
	return &Error{Op: op, Rail: rail, Peer: peer, Tag: b.opt.Tag, Err: err}
}

// finish ends the batch. The caller holds b.mu; finish unlocks it.
func (b *Batch) finish() {
	started := b.timer != nil
	if started {
		b.timer.Stop()
	}
	b.phase = over
	b.err = b.cause
	b.completed = b.e.cfg.Clock.Now()
	imm, signalled := b.imm, b.imm.Source != 0
	b.mu.Unlock()
	if signalled {
		b.e.outbox.End(imm)
	}
	if started {
		b.releaseAll()
	}
	close(b.done)
	if b.opt.OnDone != nil {
		b.opt.OnDone(b)
	}
	if started {
		b.e.leave(b)
	}
}
