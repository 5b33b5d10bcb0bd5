package node

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"kvferry/connector"
	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/kvtransfer"
	"kvferry/proto"
	"kvferry/transport"
)

// This file is what the worker does with KV bytes, in the order a transfer meets it: grant,
// offer, move, check, close. Package kvtransfer does it; here are the requests around it.

// A legKey is what a leg's moves are known by when the proxy says that they were wrong.
type legKey struct {
	sess *session
	sid  uint64
}

// open grants the other side a transfer's blocks: to read what is computed, or to write what
// is reserved. The hidden states are moved with tensors only. What is offered is held for a
// lease; what is reserved, until its request ends.
func (w *worker) open(l *live, o connector.Offer) (*proto.KVRef, error) {
	terms := kvtransfer.Terms{
		Op: transport.Read, Blocks: o.Blocks, First: o.First, Tokens: o.Tokens, Hidden: l.handoff.Parts == handoff.Tensors, Tag: l.name,
		Lease: w.cfg.HoldTimeout,
		OnEnd: func(e kvtransfer.End) {
			if e == kvtransfer.Lapsed {
				w.post(connector.Lapsed{ID: o.ID})
				return
			}
			w.post(connector.Closed{ID: o.ID})
		},
	}
	if l.handoff.Offers(handoff.DecodeLeg) {
		terms.Op, terms.Lease = transport.Write, 0
		terms.OnArrival = func(a kvtransfer.Arrival) {
			w.post(connector.Arrived{ID: o.ID, Part: numberOf(a.Layer), Token: a.Value, At: a.At})
		}
	}
	g, err := w.kv.Grant(o.Transfer, terms)
	if err != nil {
		return nil, err
	}
	l.grant, l.granted = g, o.Transfer
	d := g.Descriptor()
	d.Addr = w.peer.addr
	return refOf(d), nil
}

// reserved offers a decode node's blocks to the prefill side, which writes to them.
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

// move moves one part of a transfer.
func (w *worker) move(m connector.Move) {
	l := w.live[m.ID]
	var t *kvtransfer.Transfer
	switch {
	case l != nil && m.To != "":
		t = l.out
	case l != nil:
		t = l.moves
	}
	if t == nil {
		w.post(connector.Moved{ID: m.ID, Part: m.Part, Err: errors.New("no target")})
		return
	}
	op := transport.Read
	if m.Write {
		op = transport.Write
	}
	t.Move(kvtransfer.Move{
		Op: op, Part: partOf(l.handoff, m.Part), Pairs: m.Pairs, Tokens: m.Tokens, Since: m.Since, Notify: m.Imm, Value: m.Token,
		Done: func(e kvtransfer.Moved) {
			if errors.Is(e.Err, kvtransfer.ErrWithdrawn) {
				e.Err = withdrawn{e.Err}
			}
			w.post(connector.Moved{ID: m.ID, Part: m.Part, Bytes: e.Bytes, Posted: e.Posted, At: e.At, Err: e.Err})
		},
	})
}

// withdrawn is kvtransfer.ErrWithdrawn as the core knows it.
type withdrawn struct{ error }

func (e withdrawn) Is(target error) bool { return target == connector.ErrWithdrawn }
func (e withdrawn) Unwrap() error        { return e.error }

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
	part := partOf(l.handoff, c.Part)
	whole := true // the blocks are checked completely by now
	switch {
	case c.Again:
		whole = false
	case part.Plane == kvtransfer.K: // with V
		w.judge(l, nil)
		w.post(connector.Checked{ID: c.ID, Part: c.Part})
		return
	case part.Plane == kvtransfer.V:
		part, whole = kvtransfer.Whole, false
	case part.Plane == kvtransfer.KV && part.Layer != kvtransfer.AllLayers:
		l.parts++
		whole = l.parts == w.cfg.Profile.KVGeometry.Layers
	}
	w.kv.Check(kvtransfer.Check{Checker: w.checker(l, c), Blocks: c.Refs, First: c.First, Part: part}, func(e kvtransfer.Checked) {
		ev := connector.Checked{ID: c.ID, Part: c.Part, Bad: e.Bad, Err: e.Err}
		if whole {
			ev.Blocks = e.Blocks
		}
		w.run(func() connector.Event {
			if !c.Again { // what has changed here since came right
				w.judge(l, e.Err)
			}
			return ev
		})
	})
}

// checker is what a leg's blocks are compared with, nil for nothing.
func (w *worker) checker(l *live, c connector.Check) kvtransfer.Checker {
	if l.checker == nil || w.landed == nil {
		return l.checker
	}
	c.Refs = slices.Clone(c.Refs) // the core's own
	return lookedAt{l.checker, sync.OnceFunc(func() { w.landed(c) })}
}

// lookedAt is a checker that tells a test before it looks.
type lookedAt struct {
	kvtransfer.Checker
	before func()
}

func (k lookedAt) Check(src []byte, index, layer int) error {
	k.before()
	return k.Checker.Check(src, index, layer)
}

// judge takes what the check of a part of our own moves has found, for the rails that
// carried it: all parts right, or one wrong.
func (w *worker) judge(l *live, err error) {
	if l.leg != handoff.DecodeLeg || l.moves == nil || l.checker == nil {
		return
	}
	if err != nil {
		l.moves.Blame(err)
		return
	}
	if l.right++; l.right == l.handoff.Parts.Count(w.cfg.Profile.KVGeometry.Layers) {
		l.moves.Vouch()
	}
}

// close ends the other side's access and our own moves, then says Closed.
func (w *worker) close(id uint64) {
	l := w.live[id]
	if l != nil && l.moves != nil {
		l.moves.Cancel()
	}
	if l == nil || l.grant == nil {
		w.post(connector.Closed{ID: id})
		return
	}
	l.grant.Close()
}

// ask sends a message about a request's transfer to the node that holds it.
func (w *worker) ask(a connector.Ask) {
	l := w.live[a.ID]
	switch {
	case l == nil || l.moves == nil:
	case a.Release:
		l.moves.Release()
	default:
		w.peer.produce(l.remote, a.ID)
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
	case errors.Is(f.Err, connector.ErrUndirected):
		code = proto.FailCode_FAIL_UNDIRECTED
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

// defaultDeadline bounds a request whose proxy named no deadline.
const defaultDeadline = 10 * time.Minute
