package node

import (
	"errors"
	"fmt"
	"time"

	"kvferry/connector"
	"kvferry/handoff"
	"kvferry/kvcache"
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
		terms.Op, terms.Lease, terms.Digest = transport.Write, 0, w.checks.landing
		terms.OnArrival = func(a kvtransfer.Arrival) {
			w.run(func() connector.Event {
				l.digested = a.Landed
				l.expect(kvtransfer.Part{Layer: a.Layer}, a.Digests, len(o.Blocks), w.cfg.Profile.KVGeometry.Layers)
				return connector.Arrived{ID: o.ID, Part: numberOf(a.Layer), Token: a.Value, At: a.At}
			})
		}
	} else {
		w.lend(legKey{l.sess, l.sid}, l, o.First, o.Blocks)
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

// Reserved offers a decode node's blocks to the prefill side, which writes to them.
func (w *worker) Reserved(o *connector.Offer) {
	l := w.live[o.ID]
	if l == nil {
		return
	}
	ref, err := w.open(l, *o)
	if err != nil {
		w.fail(l, o.ID, fmt.Errorf("%w: opening the window: %w", connector.ErrTransfer, err))
		return
	}
	m := w.message(l.sess)
	m.Reserved = append(m.Reserved, &proto.Reserved{Id: l.sid, Kv: ref})
}

func (w *worker) Prefilled(p *connector.Prefilled) {
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
	w.Failed(&connector.Failed{ID: id, Err: fmt.Errorf("request %s: %w", l.name, err)})
	w.post(connector.Cancel{ID: id})
}

// Move moves one part of a transfer.
func (w *worker) Move(wanted *connector.Move) {
	m := *wanted // for Done
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
		w.writes(l, m)
	}
	t.Move(kvtransfer.Move{
		// The last move of a request that goes on elsewhere is told of by the proxy: its digests go with it.
		Op: op, Part: partOf(l.handoff, m.Part), Pairs: m.Pairs, Tokens: m.Tokens, Since: m.Since, Notify: m.Write, Value: m.Token,
		Digest: w.checks.landing,
		Done: func(e kvtransfer.Moved) {
			if errors.Is(e.Err, kvtransfer.ErrWithdrawn) {
				e.Err = known{e.Err, connector.ErrWithdrawn}
			}
			w.run(func() connector.Event {
				l.digested = e.Digested
				return connector.Moved{ID: m.ID, Part: m.Part, Bytes: e.Bytes, Posted: e.Posted, At: e.At, Err: e.Err}
			})
		},
	})
}

// writes remembers the blocks that a move writes to another node.
func (w *worker) writes(l *live, m connector.Move) {
	if len(m.Pairs) == 0 || m.Part > 0 { // the moves of later layers are of the same blocks
		return
	}
	key := any(legKey{l.sess, l.sid})
	if m.To != "" {
		key = migrationKey{l.sess, l.sid}
	}
	refs := make([]kvcache.Ref, len(m.Pairs))
	for i, p := range m.Pairs {
		refs[i] = p.Local
	}
	w.lend(key, l, m.Pairs[0].Index, refs)
}

// known is an error of kvtransfer's as the core knows it.
type known struct {
	error
	as error
}

func (e known) Is(target error) bool { return target == e.as }
func (e known) Unwrap() error        { return e.error }

// Check compares a part that landed with the digests that came with it, or blocks with those
// that they had here before. Of tensors K is checked with V: they lie side by side. Hidden
// states are used at once, and not looked at again. Where there are no digests nothing is
// compared: no block counts as checked, and nobody is praised for the bytes.
func (w *worker) Check(wanted *connector.Check) {
	c := *wanted // for what comes after it
	l := w.live[c.ID]
	ev := connector.Checked{ID: c.ID, Part: c.Part, Again: c.Again}
	if c.Again {
		ev.Refs = c.Refs
	}
	if l == nil {
		ev.Err = errors.New("no such request")
		w.post(ev)
		return
	}
	if w.landed != nil {
		w.landed(c)
	}
	part := partOf(l.handoff, c.Part)
	whole := true // the blocks are checked completely by now
	k := kvtransfer.Check{Blocks: c.Refs, First: c.First, Part: part}
	switch {
	case c.Again:
		whole, k.Part = false, kvtransfer.Whole
	case !w.checks.landing:
		w.post(ev)
		return
	case part.Plane == kvtransfer.K: // with V
		w.vouch(l)
		w.post(ev)
		return
	case part.Plane == kvtransfer.V:
		k.Part, whole = kvtransfer.Whole, false
	case part.Plane == kvtransfer.KV && part.Layer != kvtransfer.AllLayers:
		l.parts++
		whole = l.parts == w.cfg.Profile.KVGeometry.Layers
	}
	if !c.Again {
		k.Want, k.Landed = l.wanted(k.Part, c.First), l.digested
	}
	w.kv.Check(k, func(e kvtransfer.Checked) {
		ev.Bad, ev.From, ev.Err = e.Bad, e.From, e.Err
		if whole {
			ev.Blocks = e.Blocks
		}
		w.run(func() connector.Event {
			if !c.Again && e.Err == nil && e.Blocks > 0 {
				w.vouch(l)
			}
			return ev
		})
	})
}

// vouch counts a part of our own moves that came right, and has the rails praised that carried
// them when all have. If one came wrong, the proxy finds out where it went bad.
func (w *worker) vouch(l *live) {
	if l.leg != handoff.DecodeLeg || l.moves == nil {
		return
	}
	if l.right++; l.right == l.handoff.Parts.Count(w.cfg.Profile.KVGeometry.Layers) {
		l.moves.Vouch()
	}
}

// Close ends the other side's access and our own moves, then says Closed.
func (w *worker) Close(id uint64) {
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

// Ask sends a message about a request's transfer to the node that holds it.
func (w *worker) Ask(a connector.Ask) {
	l := w.live[a.ID]
	switch {
	case l == nil || l.moves == nil:
	case a.Release:
		l.moves.Release()
	default:
		w.peer.produce(l.remote, a.ID)
	}
}

func (w *worker) Failed(f *connector.Failed) {
	l := w.live[f.ID]
	if l == nil {
		return
	}
	code, retry := faultOf(f.Err)
	w.log.Warn("request failed", "request", l.name, "err", f.Err)
	m := w.message(l.sess)
	m.Failed = append(m.Failed, &proto.Failed{Id: l.sid, Code: code, Message: f.Err.Error(), Retryable: retry, Breakdown: breakdown(f.Breakdown)})
}

// defaultDeadline bounds a request whose proxy named no deadline.
const defaultDeadline = 10 * time.Minute
