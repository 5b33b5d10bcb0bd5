package node

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"kvferry/connector"
	"kvferry/transport"
)

// maxUnderWay is how many bytes may be under way between this node and another one, or
// one move that is larger. It is what 400 Gbit/s carry in 1.3 ms. What more there
// is to move waits here: in the transfer engine everything under way shares the
// network, so that of 400 prompts that come at once, 6 GB, none would land before its
// deadline.
const maxUnderWay = 64 << 20

// linkLag is how far back the end of a transfer may be dated, to when the modelled link had
// it delivered. It is less than [engine.MaxLag] of a step, as bytes that are late are a
// fact, and not a matter of when somebody looked.
const linkLag = 2 * time.Millisecond

// A lane is the moves between this node and another one: so many under way, and the
// others in the order in which they came. The loop has it to itself.
type lane struct {
	peer    string // address
	moves   int    // under way
	bytes   int    // of these
	waiting []*move
}

// A move is one part of a transfer on its way through the node.
type move struct {
	l     *live
	id    uint64
	part  int
	lane  *lane
	bytes int
	since time.Duration // when it came
	reqs  []transport.Request
	opt   transport.BatchOptions
}

// move moves one part of a transfer, once there is room in the lane.
func (w *worker) move(m connector.Move) {
	l := w.live[m.ID]
	if l == nil || l.target == nil {
		w.post(connector.Moved{ID: m.ID, Part: m.Part, Err: errors.New("no target")})
		return
	}
	v := &move{l: l, id: m.ID, part: m.Part, since: w.clk.Now(), reqs: connector.Requests(w.slab, m, len(l.prompt))}
	v.opt = transport.BatchOptions{Timeout: w.cfg.TransferTimeout, Since: m.Since, Tag: l.name}
	if m.Imm {
		v.opt.HasImm, v.opt.Imm = true, connector.EncodeImm(slotOf(l.remote.GetTransferId()), m.Part, m.Token)
	}
	for _, r := range v.reqs {
		v.bytes += len(r.Local)
	}
	peer := l.remote.GetGrpcAddr()
	if v.lane = w.lanes[peer]; v.lane == nil {
		v.lane = &lane{peer: peer}
		w.lanes[peer] = v.lane
	}
	v.lane.waiting = append(v.lane.waiting, v)
	l.moves++
	w.moveOn(v.lane)
}

// next is the move that may go now, and is under way from then on; nil if there is none.
func (n *lane) next(limit int) *move {
	if len(n.waiting) == 0 || n.moves > 0 && n.bytes+n.waiting[0].bytes > limit {
		return nil
	}
	v := n.waiting[0]
	n.waiting[0] = nil
	n.waiting = n.waiting[1:]
	n.moves++
	n.bytes += v.bytes
	return v
}

// ended is a move that is not under way any more.
func (n *lane) ended(v *move) {
	n.moves--
	n.bytes -= v.bytes
}

// remove takes out those that wait of which a function says so.
func (n *lane) remove(which func(*move) bool) (out []*move) {
	n.waiting = slices.DeleteFunc(n.waiting, func(v *move) bool {
		if !which(v) {
			return false
		}
		out = append(out, v)
		return true
	})
	return out
}

// moveOn submits what there is room for.
func (w *worker) moveOn(n *lane) {
	for v := n.next(w.underWay); v != nil; v = n.next(w.underWay) {
		v.opt.OnDone = func(b *transport.Batch) {
			w.run(func() connector.Event { return w.moved(v, b) })
		}
		b := w.tx.Submit(v.l.target, v.reqs, v.opt)
		if v.l.batches == nil {
			v.l.batches = make(map[*transport.Batch]struct{})
		}
		v.l.batches[b] = struct{}{}
	}
}

// moved is a move that has ended.
func (w *worker) moved(v *move, b *transport.Batch) connector.Event {
	l := v.l
	delete(l.batches, b)
	l.moves--
	v.lane.ended(v)
	if errors.Is(b.Err(), transport.ErrDeadline) {
		w.giveUp(v.lane, b.Err())
	}
	w.moveOn(v.lane)
	if v.lane.moves == 0 {
		delete(w.lanes, v.lane.peer)
	}

	ev := connector.Moved{ID: v.id, Part: v.part, Posted: b.Posted(), At: b.Completed(), Err: b.Err()}
	if due := b.Due(); due > 0 && ev.At-due < linkLag {
		ev.At = max(due, ev.Posted) // the link's time, not when that was noticed
	}
	l.trail.Add(b.Trail())
	switch {
	case ev.Err == nil:
		ev.Bytes = b.Bytes()
	case errors.Is(ev.Err, transport.ErrUnconfirmed):
		// The other node has closed its window because it has all layers, or ended its leg
		// and said so to the proxy. This one has done its part.
		ev.Err, ev.Bytes = nil, b.Bytes()
	case errors.Is(ev.Err, transport.ErrBadKey): // the window was open when its key was made known
		ev.Err = fmt.Errorf("%w: %w", connector.ErrWithdrawn, ev.Err)
	}
	return ev
}

// giveUp ends what has waited for as long as a transfer may take, when one that was
// under way took longer: the other node does not get on.
func (w *worker) giveUp(n *lane, err error) {
	now := w.clk.Now()
	w.endWaiting(n, fmt.Errorf("behind another: %w", err), func(v *move) bool { return now-v.since >= w.cfg.TransferTimeout })
}

// cancelMoves ends the moves of a request, those that wait at once.
func (w *worker) cancelMoves(l *live) {
	for b := range l.batches {
		b.Cancel()
	}
	if l.moves > len(l.batches) {
		w.endWaiting(w.lanes[l.remote.GetGrpcAddr()], transport.ErrCanceled, func(v *move) bool { return v.l == l })
	}
}

func (w *worker) endWaiting(n *lane, err error, which func(*move) bool) {
	for _, v := range n.remove(which) {
		v.l.moves--
		w.post(connector.Moved{ID: v.id, Part: v.part, Err: err})
	}
	w.moveOn(n)
}
