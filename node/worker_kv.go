package node

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"kvferry/connector"
	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/proto"
	"kvferry/transport"
)

// This file is what the worker does with KV bytes, in the order a transfer meets
// it: window, offer, move, check, close.

// open makes the window of a transfer: its blocks, in its direction, under keys of
// their own, so that closing it ends this transfer's access and no other's.
func (w *worker) open(l *live, o connector.Offer) (*proto.KVRef, error) {
	op, ranges := connector.Window(w.slab.Geometry(), l.handoff, o.Blocks)
	win, err := w.kv.Window(w.windowName(o.Transfer), op, ranges)
	if err != nil {
		return nil, err
	}
	l.window, l.transfer = win, o.Transfer
	ref := &proto.KVRef{
		NodeId: w.cfg.ID, GrpcAddr: w.peer.addr, TransferId: o.Transfer, Tokens: uint32(o.Tokens),
		Segment: segmentToProto(win.Info()), Blocks: make([]*proto.Block, len(o.Blocks)),
	}
	for i, b := range o.Blocks {
		ref.Blocks[i] = &proto.Block{Index: uint32(o.First + i), Id: uint32(b.ID), Generation: b.Gen}
	}
	return ref, nil
}

// windowName is what a transfer's window is called, here and by the immediates that
// come through it.
func (w *worker) windowName(transfer uint64) string { return fmt.Sprintf("%s/%d", w.cfg.ID, transfer) }

// reserved offers a decode node's blocks to the prefill side.
func (w *worker) reserved(o connector.Offer) {
	l := w.live[o.ID]
	if l == nil {
		return
	}
	ref, err := w.open(l, o)
	if err != nil {
		w.fail(l, o.ID, fmt.Errorf("%w: opening the window: %w", connector.ErrTransfer, err))
		return
	}
	l.slot = &slot{id: o.ID, window: w.windowName(o.Transfer)}
	w.slots.Store(slotOf(o.Transfer), l.slot)
	m := w.message(l.sess)
	m.Reserved = append(m.Reserved, &proto.Reserved{Id: l.sid, Kv: ref})
}

func (w *worker) prefilled(p connector.Prefilled) {
	l := w.live[p.ID]
	if l == nil {
		return
	}
	l.done = true
	out := &proto.Prefilled{Id: l.sid, Breakdown: breakdown(p.Breakdown), CachedTokens: uint32(p.Cached)}
	if p.Offer != nil {
		ref, err := w.open(l, *p.Offer)
		if err != nil {
			w.fail(l, p.ID, fmt.Errorf("%w: opening the window: %w", connector.ErrTransfer, err))
			return
		}
		ref.FirstToken = p.FirstToken
		out.Kv = ref
	}
	m := w.message(l.sess)
	m.Prefilled = append(m.Prefilled, out)
}

// fail reports an error that the core does not know of, and has it forget the
// request.
func (w *worker) fail(l *live, id uint64, err error) {
	w.failed(connector.Failed{ID: id, Err: fmt.Errorf("request %s: %w", l.name, err)})
	w.post(connector.Cancel{ID: id})
}

// slotOf is the part of a transfer ID that fits into an immediate.
func slotOf(transfer uint64) uint64 { return transfer & (1<<24 - 1) }

// A slot is a transfer that immediates may tell of: the request that waits for it, and
// the window that they must come through.
type slot struct {
	id      uint64
	window  string
	strayed atomic.Bool // one came through another, and the log says so
}

// immediate is called by a rail when a write's data is in our slab. Who may write for
// one transfer may not speak for another.
func (w *worker) immediate(imm transport.Immediate) {
	n, layer, token := connector.DecodeImm(imm.Value)
	s, ok := w.slots.Load(n)
	if !ok {
		return // of a transfer that has been given up
	}
	to := s.(*slot)
	if to.window != imm.Segment {
		if !to.strayed.Swap(true) {
			w.log.Warn("immediates dropped: they came through another transfer's window", "window", imm.Segment, "for", to.window, "rail", imm.Rail)
		}
		return
	}
	w.post(connector.Arrived{ID: to.id, Part: layer, Token: token, At: w.clk.Now()})
}

// check compares a part that landed with what the executor says it must be. Of
// tensors K is checked with V: they lie side by side. Hidden states are used at once,
// and not looked at again. Where the executor cannot say, nothing is compared: no block
// counts as checked, and nobody is praised or blamed for the bytes.
func (w *worker) check(c connector.Check) {
	l := w.live[c.ID]
	if l == nil {
		w.post(connector.Checked{ID: c.ID, Part: c.Part, Err: errors.New("no such request")})
		return
	}
	layers := w.slab.Geometry().Layers
	c.Refs = slices.Clone(c.Refs) // the core's own
	var from, to int
	hidden, whole := false, true
	switch {
	case c.Again:
		from, to, whole = 0, layers, false
	case c.Part == connector.PartAll:
		from, to = 0, layers
	case l.handoff.Parts == handoff.Layers:
		from, to = c.Part, c.Part+1
		l.parts++
		whole = l.parts == layers
	case c.Part == connector.TensorK: // with V
		whole = false
	case c.Part == connector.TensorV:
		from, to, whole = 0, layers, false
	default:
		hidden = w.slab.Geometry().HiddenSize > 0
	}
	w.background.Go(func() {
		if w.landed != nil {
			w.landed(c)
		}
		ev := connector.Checked{ID: c.ID, Part: c.Part}
		if l.checker == nil {
			w.post(ev)
			return
		}
		if whole {
			ev.Blocks = len(c.Refs)
		}
		for i, ref := range c.Refs {
			var err error
			for layer := from; layer < to && err == nil; layer++ {
				err = l.checker.Check(w.slab.Layer(ref.ID, layer), c.First+i, layer)
			}
			if hidden && err == nil {
				err = l.checker.CheckHidden(w.slab.Hidden(ref.ID), c.First+i)
			}
			if err != nil {
				ev.Bad++
				ev.Err = errors.Join(ev.Err, err)
			}
		}
		w.run(func() connector.Event {
			if !c.Again { // what has changed here since came right
				w.judge(l, ev.Err)
			}
			return ev
		})
	})
}

// close ends the other side's access and our own moves, then says Closed.
func (w *worker) close(id uint64) {
	l := w.live[id]
	if l == nil {
		w.post(connector.Closed{ID: id})
		return
	}
	w.cancelMoves(l)
	w.shut(l, func() { w.post(connector.Closed{ID: id}) })
}

// shut closes the window, which waits for operations under way, then calls done.
func (w *worker) shut(l *live, done func()) {
	win := l.window
	if win == nil {
		done()
		return
	}
	l.window = nil
	if l.slot != nil {
		w.slots.CompareAndDelete(slotOf(l.transfer), l.slot)
	}
	w.background.Go(func() {
		if err := win.Close(); err != nil {
			w.log.Warn("closing a transfer's window", "request", l.name, "err", err)
		}
		done()
	})
}

// ask sends a message about a request's transfer to the node that holds it.
func (w *worker) ask(a connector.Ask) {
	if l := w.live[a.ID]; l != nil && l.remote != nil {
		w.peer.ask(l, a)
	}
}

func (w *worker) failed(f connector.Failed) {
	l := w.live[f.ID]
	if l == nil {
		return
	}
	code, retry := proto.FailCode_FAIL_INTERNAL, true
	switch {
	case errors.Is(f.Err, connector.ErrDeadline):
		code, retry = proto.FailCode_FAIL_DEADLINE, false
	case errors.Is(f.Err, connector.ErrInvalid), errors.Is(f.Err, engine.ErrTooLong), errors.Is(f.Err, engine.ErrPoolSize):
		code, retry = proto.FailCode_FAIL_INVALID, false
	case errors.Is(f.Err, connector.ErrChanged):
		code, retry = proto.FailCode_FAIL_CHANGED, !errors.Is(f.Err, connector.ErrUsed)
	case errors.Is(f.Err, connector.ErrContent):
		code = proto.FailCode_FAIL_CONTENT
	case errors.Is(f.Err, connector.ErrTransfer):
		code = proto.FailCode_FAIL_TRANSFER
	}
	w.log.Warn("request failed", "request", l.name, "err", f.Err)
	m := w.message(l.sess)
	m.Failed = append(m.Failed, &proto.Failed{Id: l.sid, Code: code, Message: f.Err.Error(), Retryable: retry, Breakdown: breakdown(f.Breakdown)})
}

func segmentToProto(s transport.SegmentInfo) *proto.Segment {
	p := &proto.Segment{Name: s.Name, Length: uint64(s.Length), Location: s.Location}
	for _, r := range s.Rails {
		p.Rails = append(p.Rails, &proto.RailAddr{Rail: r.Rail, Addr: r.Addr, Key: uint64(r.Key), Rank: int32(r.Rank)})
	}
	return p
}

func segmentFromProto(p *proto.Segment) transport.SegmentInfo {
	s := transport.SegmentInfo{Name: p.GetName(), Length: int64(p.GetLength()), Location: p.GetLocation()}
	for _, r := range p.GetRails() {
		s.Rails = append(s.Rails, transport.RailAddr{Rail: r.GetRail(), Addr: r.GetAddr(), Key: transport.Key(r.GetKey()), Rank: int(r.GetRank())})
	}
	return s
}

// defaultDeadline bounds a request whose proxy named no deadline.
const defaultDeadline = 10 * time.Minute
