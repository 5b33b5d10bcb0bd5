package kvtransfer

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/transport"
)

// ErrWithdrawn is of moves that came when their grant had ended.
var ErrWithdrawn = errors.New("the other node has withdrawn the transfer")

// maxLag is how far back the end of a move may be dated, to when the modelled link had it
// delivered: bytes that are later than that are a fact, and not a matter of when somebody
// looked.
const maxLag = 2 * time.Millisecond

// Options of a transfer.
type Options struct {
	// Tag names the request in errors.
	Tag string
	// Key is what Agent.Blame knows the transfer by, also for a while after its end. It is
	// comparable; nil if nobody will blame it.
	Key any
	// Deadline, on the clock of Config.Transport, is when all moves end that have not by
	// then. 0 is none: then the caller cancels what takes too long.
	Deadline time.Duration
}

// A Transfer moves parts to or from the blocks of one grant of a peer's.
type Transfer struct {
	a        *Agent
	d        Descriptor
	opt      Options
	target   *transport.Target
	released atomic.Bool
	timer    *time.Timer // of the deadline; nil without one

	// Guarded by the agent's lock.
	batches  map[*transport.Batch]struct{} // under way
	moves    int                           // these, and those that wait for room in their lane
	canceled error                         // why
	closed   bool
	wrote    bool
	trail    transport.Trail // which way its moves went
	judged   bool            // whether it has been said if that was a good one
	wrong    error           // what the other side has said of it
}

// Open prepares moves to or from the blocks of a peer's grant. The caller closes it.
func (a *Agent) Open(d Descriptor, opt Options) (*Transfer, error) {
	target, err := a.tx.Open(d.Segment)
	if err != nil {
		return nil, err
	}
	t := &Transfer{a: a, d: d, opt: opt, target: target, batches: make(map[*transport.Batch]struct{})}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, errors.Join(net.ErrClosed, target.Close())
	}
	a.open[t] = struct{}{}
	if opt.Key != nil && a.live[opt.Key] == nil {
		a.live[opt.Key] = t
	}
	if opt.Deadline > 0 {
		t.timer = time.AfterFunc(opt.Deadline-a.clk.Now(), func() { t.cancel(transport.ErrDeadline) })
	}
	return t, nil
}

// Descriptor is what the transfer was opened with.
func (t *Transfer) Descriptor() Descriptor { return t.d }

// Move is one part of a transfer.
type Move struct {
	Op    transport.Op // the grant's
	Part  Part
	Pairs []kvcache.Pair // blocks here, the caller's until Done, and there
	// Tokens of the sequence, if there are fewer so far than the grant has room for; else 0.
	Tokens int
	// Since is when the caller's schedule had or has it start, 0 for now; see
	// transport.BatchOptions.
	Since time.Duration
	// Notify, of a Write, is the peer's Arrival when all bytes of the move are there, with
	// Value, a number of the caller's, and the digests of the blocks, whose indices follow one
	// another.
	Notify bool
	Value  uint32
	// Digest has the full blocks of a Read of Whole digested as they land, while their bytes are in the CPU's cache.
	// Moved.Digested saves the Check of these blocks from reading them again.
	Digest bool
	// Done is called once, perhaps before Move has returned: it must not wait for its caller.
	Done func(Moved)
}

// Moved is how a move has ended.
type Moved struct {
	Bytes      int64         // moved
	Posted, At time.Duration // when it was under way, and when it ended
	// Err is nil if all bytes are where they should be; of a Write also if the peer ended
	// the grant before it had confirmed them, which it does once it has all it needs, and
	// says elsewhere if it does so for another reason. It wraps ErrWithdrawn if the grant
	// had ended before, and the transport's errors.
	Err error
	// Digested has the digests of the blocks if Move.Digest was set.
	Digested Digested
}

// Move starts a move, once there is room for it beside others to the same peer. One that
// names a layer, a plane or a local block that there is not ends at once, with
// transport.ErrInvalid.
func (t *Transfer) Move(m Move) {
	a := t.a
	local := make([]kvcache.Ref, len(m.Pairs))
	for i, p := range m.Pairs {
		local[i] = p.Local
	}
	if err := m.Part.check(a.cfg.Slab, local); err != nil { // what is not the peer's to give the peer refuses
		m.Done(Moved{Err: fmt.Errorf("kvtransfer: move for %q, grant %d of %s: %w: %w", t.opt.Tag, t.d.Transfer, t.d.Node, transport.ErrInvalid, err)})
		return
	}
	config.Default(&m.Tokens, t.d.Tokens)
	v := &move{t: t, since: a.clk.Now(), reqs: Requests(a.cfg.Slab, m.Op, m.Part, m.Pairs, m.Tokens), done: m.Done}
	v.opt = transport.BatchOptions{Timeout: a.cfg.Timeout, Since: m.Since, Tag: t.opt.Tag}
	if m.Notify {
		first := 0
		if len(m.Pairs) > 0 {
			first = m.Pairs[0].Index
		}
		n := Notice{t.d.Transfer, m.Part.Layer, m.Value, digests(a.cfg.Slab, m.Part, local, first, m.Tokens, maxSums)}
		v.opt.Message = n.Encode()
	}
	if m.Digest && m.Op == transport.Read && m.Part == Whole && len(m.Pairs) > 0 {
		v.digested = newDigested(a.cfg.Slab, local, m.Pairs[0].Index, m.Tokens)
		v.opt.OnApplied = v.digested.landed
	}
	for _, r := range v.reqs {
		v.bytes += len(r.Local)
	}
	a.mu.Lock()
	err := t.canceled
	if t.closed || a.closed {
		err = net.ErrClosed
	}
	if err != nil {
		a.mu.Unlock()
		m.Done(Moved{Err: err})
		return
	}
	a.background.Add(1) // until Done
	t.moves++
	t.wrote = t.wrote || m.Op == transport.Write
	n := a.laneLocked(t.peer())
	n.waiting = append(n.waiting, v)
	a.mu.Unlock()
	a.pump(n)
}

// peer is what the transfer's lane is known by.
func (t *Transfer) peer() string {
	if t.d.Addr != "" {
		return t.d.Addr
	}
	return t.d.Node
}

// moved is a move that has ended.
func (a *Agent) moved(n *lane, v *move, b *transport.Batch) {
	end := Moved{Posted: b.Posted(), At: b.Completed(), Err: b.Err(), Digested: v.digested}
	if due := b.Due(); due > 0 && end.At-due < maxLag {
		end.At = max(due, end.Posted) // the link's time, not when that was noticed
	}
	late := errors.Is(end.Err, transport.ErrDeadline)
	switch {
	case end.Err == nil:
		end.Bytes = b.Bytes()
	case errors.Is(end.Err, transport.ErrUnconfirmed):
		// The other node has ended its grant because it has all parts, or for a reason of
		// its own that it says elsewhere. This one has done its part.
		end.Err, end.Bytes = nil, b.Bytes()
	case errors.Is(end.Err, transport.ErrBadKey): // the window was open when its key was made known
		end.Err = fmt.Errorf("%w: %w", ErrWithdrawn, end.Err)
	}
	t := v.t
	a.mu.Lock()
	if errors.Is(end.Err, transport.ErrCanceled) && t.canceled != nil && !errors.Is(t.canceled, transport.ErrCanceled) {
		end.Err = fmt.Errorf("%w: %w", t.canceled, end.Err)
	}
	v.ended = true
	delete(t.batches, b)
	t.moves--
	t.trail.Add(b.Trail())
	n.end(v)
	var behind []*move
	if late {
		// The other node does not get on: what has waited for as long ends too.
		now := a.clk.Now()
		behind = n.remove(func(w *move) bool { return now-w.since >= a.cfg.Timeout })
		for _, w := range behind {
			w.t.moves--
		}
	}
	a.mu.Unlock()
	a.pump(n)
	for _, w := range behind {
		a.tell(w, Moved{Err: fmt.Errorf("behind another: %w", b.Err())})
	}
	a.tell(v, end)
}

// tell says how a move has ended.
func (a *Agent) tell(v *move, m Moved) {
	v.done(m)
	a.background.Done()
}

// Cancel ends the transfer's moves: those that wait at once, those under way as soon as
// nothing touches their memory any more. Moves that come later end at once.
func (t *Transfer) Cancel() { t.cancel(transport.ErrCanceled) }

func (t *Transfer) cancel(why error) {
	a := t.a
	a.mu.Lock()
	if t.canceled == nil {
		t.canceled = why
	}
	under := slices.Collect(maps.Keys(t.batches))
	n := a.lanes[t.peer()]
	var waiting []*move
	if n != nil {
		waiting = n.remove(func(v *move) bool { return v.t == t })
		t.moves -= len(waiting)
	}
	a.mu.Unlock()
	for _, b := range under {
		b.Cancel()
	}
	for _, v := range waiting {
		a.tell(v, Moved{Err: why})
	}
	if n != nil {
		a.pump(n)
	}
}

// Release tells the peer that its blocks are not needed any more, once.
func (t *Transfer) Release() {
	if !t.released.Swap(true) && t.a.cfg.Release != nil {
		t.a.cfg.Release(t.d)
	}
}

// Moves is how many moves have not ended.
func (t *Transfer) Moves() int {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	return t.moves
}

// Close cancels what has not ended. well says that all was written that should be, by an
// engine whose peers can tell right bytes from wrong ones: of what it wrote the agent then
// thinks well unless somebody blames it within 5 s.
func (t *Transfer) Close(well bool) {
	if t.timer != nil {
		t.timer.Stop()
	}
	t.cancel(net.ErrClosed)
	a := t.a
	a.mu.Lock()
	if t.closed {
		a.mu.Unlock()
		return
	}
	t.closed = true
	delete(a.open, t)
	if t.opt.Key != nil && a.live[t.opt.Key] == t {
		delete(a.live, t.opt.Key)
	}
	judge := a.retireLocked(t, well)
	a.mu.Unlock()
	judge()
	_ = t.target.Close() // never fails: it lets connections go
}
