package sim

import (
	"time"

	"kvferry/attempt"
	"kvferry/connector"
	"kvferry/engine"
	"kvferry/fabric"
	"kvferry/handoff"
	"kvferry/kvcache"
	"kvferry/placement"
)

// A node is one daemon: its core, its modelled GPU and its NICs.
type node struct {
	c     *cluster
	name  string
	core  *connector.Core
	pool  *kvcache.Pool
	tiers *kvcache.Tiers
	cost  *engine.CostModel
	tx    []*port // by NIC
	rx    []*port
	leaf  leaf
	bus   bus

	inbox, spare []connector.Event
	ready        bool // in the cluster's list of nodes with something in the inbox
	wakeAt       time.Duration
	batch        *engine.Step         // under way
	doneAt       time.Duration        // its end
	endAt        time.Duration        // when that, or that of the steps to coast through, is in the agenda
	left         int                  // steps to coast through, from this one on
	flights      []*flight            // scratch: the step's
	tokens       []kvcache.Token      // it samples
	askers       map[uint64]asker     // of v0's tensors, by our transfer
	load         *placement.Candidate // what the proxy knows of us
	coming       int                  // legs on their way to us
	comingBlocks int                  // of these prompts
	posting      *transfer            // last of those that start at a time to come
	sending      *transfer            // a convoy over our NICs, out
	receiving    *transfer            // and in
	stats        NodeStats            // so far
	at           time.Duration        // up to when stats count blocks
}

type asker struct {
	node *node
	id   uint64
}

// tell puts an event in the node's inbox; it is handled at this moment, after
// what was told before.
func (n *node) tell(ev connector.Event) {
	n.inbox = append(n.inbox, ev)
	n.rouse()
}

// rouse has the node look around at this moment.
func (n *node) rouse() {
	n.halt()
	if !n.ready {
		n.ready = true
		n.c.ready = append(n.c.ready, n)
	}
}

// step lets the core handle the inbox and does what it wants done.
func (n *node) step() {
	now := n.c.now
	events := n.inbox
	n.inbox, n.spare, n.ready = n.spare[:0], events, false
	n.count(now)
	for _, ev := range events {
		if s, ok := ev.(connector.Submit); ok {
			n.coming--
			n.comingBlocks -= n.c.cfg.Profile.KVGeometry.Blocks(len(s.Prompt))
		}
	}
	a := n.core.Step(now, events...)
	clear(events)

	a.Perform(driver{n})
	if a.Wake > 0 && a.Wake < fabric.Never && (n.wakeAt <= now || a.Wake < n.wakeAt) {
		n.wakeAt = max(a.Wake, now)
		n.c.agenda.Push(n.wakeAt, event{node: n, kind: wake})
	}
	n.report()
	if !n.ready && n.left == 0 && n.endAt > now {
		n.coast() // what came has changed nothing for the step under way
	}
}

// driver is the node as its core sees it.
type driver struct{ *node }

func (d driver) Launch(s *engine.Step, layers, _ bool) { d.launch(s, layers) }
func (d driver) Copy(c engine.Copy)                    { d.c.copy(d.node, c) }
func (d driver) Token(t connector.Token)               { d.c.token(d.node, t) }
func (d driver) Move(m *connector.Move)                { d.move(m) }
func (d driver) Reserved(o *connector.Offer)           { d.c.reserved(d.node, o) }
func (d driver) Prefilled(p *connector.Prefilled)      { d.c.prefilled(d.node, p) }
func (d driver) Migrated(m *connector.Migrated)        { d.c.migrated(d.node, m) }
func (d driver) Finished(f *connector.Finished)        { d.c.finished(d.node, f) }
func (d driver) Failed(f *connector.Failed)            { d.c.failed(d.node, f) }
func (d driver) Ask(q connector.Ask)                   { d.ask(q) }
func (d driver) Answer(q connector.Answer)             { d.answer(q) }

// Check has everything right: no bytes move here.
func (d driver) Check(k *connector.Check) {
	d.tell(connector.Checked{ID: k.ID, Part: k.Part, Blocks: len(k.Refs) * (1 + k.More)})
}

// Halt lets a move end: it is on the network.
func (d driver) Halt(uint64) {}

// Close has nobody to wait for.
func (d driver) Close(id uint64) { d.tell(connector.Closed{ID: id}) }

// Drop is of what a driver knows of requests; this one knows nothing.
func (d driver) Drop(uint64) {}

// report is what a real node tells the proxy after each iteration.
func (n *node) report() {
	l := n.core.Load()
	n.load.WaitingTokens, n.load.LinkQueuedBytes = l.WaitingTokens, n.core.LinkQueued()
	n.load.Adapters, n.load.AdapterSlots = l.Adapters, l.AdapterSlots
}

// outlook is that of the legs submitted so far, as a prompt that would go ahead has it.
func (n *node) outlook() attempt.Outlook {
	l := n.core.Load()
	return attempt.Outlook{RoundTrip: 2 * n.c.cfg.RPC, Sequences: l.Room - n.coming, Blocks: n.pool.Free() - l.Running - n.comingBlocks}
}

// count adds to the integral of used blocks what has passed since the last time.
func (n *node) count(now time.Duration) {
	used := n.pool.Used()
	n.stats.BlockSeconds += float64(used) * (now - n.at).Seconds()
	n.stats.PeakBlocks = max(n.stats.PeakBlocks, used)
	n.at = now
}

// launch has the engine compute a step.
func (n *node) launch(s *engine.Step, layers bool) {
	n.batch = s
	n.compute()
	if layers {
		n.tellLayers()
	}
	n.launched()
}

// compute runs the step under way.
func (n *node) compute() {
	d := n.cost.Run(n.batch)
	n.doneAt = n.batch.At + d
	n.stats.steps(n.batch.Kind, d)
	n.tokens = n.tokens[:0]
	for i := range n.batch.Works {
		if w := &n.batch.Works[i]; w.Sample {
			n.tokens = append(n.tokens, w.Seq.NextToken(n.c.cfg.Profile.Vocab))
		}
	}
}

// tellLayers says when the KV of the layers will be there. That of the last is there when the step
// is done. The layers of several prompts take turns.
func (n *node) tellLayers() {
	times := make([]time.Duration, n.c.cfg.Profile.KVGeometry.Layers-1)
	for l := range times {
		times[l] = n.layerAt(l)
	}
	if len(n.tokens) == 1 && len(times) > 0 {
		n.tell(connector.LayerDone{At: times[0], After: times[1:]})
		return
	}
	for l, at := range times {
		n.tell(connector.LayerDone{Layer: l, At: at})
	}
}

// layerAt is when the KV of a layer is there: the layers take equal parts of the
// step.
func (n *node) layerAt(l int) time.Duration {
	layers := n.c.cfg.Profile.KVGeometry.Layers
	return n.batch.At + (n.doneAt-n.batch.At)*time.Duration(l+1)/time.Duration(layers)
}

// move starts a transfer to or from the request's other node, now or when the
// layer that it moves will be there. Moves come in the order of those times, mostly.
func (n *node) move(m *connector.Move) {
	f := n.c.flights[m.ID]
	t := &transfer{flight: f, node: n, from: n, to: f.compute, imm: m.Imm, token: m.Token, since: m.Since, after: m.After}
	t.moved = connector.Moved{ID: m.ID, Part: m.Part, Bytes: n.bytes(m, len(f.prompt)), Posted: max(m.Since, n.c.now)}
	if t.moved.Bytes == 0 {
		t.moved.More = len(m.After)
		t.moved.At = n.c.now
		n.tell(t.moved)
		return
	}
	if t.to == n {
		t.to = f.decode
	}
	if t.migrates = m.To != ""; t.migrates {
		t.to = n.c.names[m.To]
	}
	if !m.Write {
		t.from, t.to = t.to, t.from
	}
	n.schedule(t)
}

// schedule starts a transfer, now or when its time has come.
func (n *node) schedule(t *transfer) {
	switch {
	case t.since <= n.c.now:
		n.c.post(t)
	case n.posting == nil:
		n.posting = t
		n.c.agenda.Push(t.since, event{transfer: t, kind: post})
	case t.since < n.posting.since: // of a layer that waited for its destination
		n.c.agenda.Push(t.since, event{transfer: t, kind: post})
	default:
		n.posting.next = t
		n.posting = t
	}
}

// post starts a transfer, and sees to the next of the node's.
func (c *cluster) post(t *transfer) {
	c.disperse(t.from.sending)
	c.disperse(t.to.receiving)
	if len(t.after) == 0 || !c.convoy(t) {
		t.uncouple()
		c.start(t)
	}
	next := t.next
	t.next = nil
	switch {
	case next != nil:
		c.agenda.Push(next.since, event{transfer: next, kind: post})
	case t.node.posting == t:
		t.node.posting = nil
	}
}

// sent has both sides know of a transfer once its last byte is there, or the node of a copy. Of layers
// only the one that completes the KV changes what they do: the others
// are told with it, which spares each request a hundred steps of its nodes.
func (c *cluster) sent(t *transfer, at time.Duration) {
	f := t.flight
	t.moved.At = at + c.latency
	switch {
	case t.migrates:
		c.agenda.Push(t.moved.At, event{transfer: t, kind: landed})
		return
	case f == nil:
		t.node.tell(connector.Copied{ID: t.copy, At: c.now})
		return
	}
	f.parts += 1 + t.moved.More
	t.next, f.landed = f.landed, t
	if c.cfg.Handoff.Parts == handoff.Layers && f.parts < c.cfg.Profile.KVGeometry.Layers {
		return
	}
	f.landed = nil
	c.agenda.Push(t.moved.At, event{transfer: t, kind: landed})
}

// landed tells both sides of a transfer and of those before it.
func (t *transfer) landed() {
	if t.next != nil {
		t.next.landed()
	}
	if t.imm {
		t.to.tell(connector.Arrived{ID: t.moved.ID, Part: t.moved.Part, More: t.moved.More, Token: t.token, At: t.moved.At})
	}
	t.node.tell(t.moved)
}

// bytes is the payload of a move: package connector's Requests makes as many of
// it.
func (n *node) bytes(m *connector.Move, tokens int) int64 {
	if len(m.Pairs) == 0 {
		return 0
	}
	g := n.c.cfg.Profile.KVGeometry
	if m.To != "" {
		tokens = m.Tokens
	}
	tokens -= m.Pairs[0].Index * g.BlockTokens // pairs are the blocks from there to the end
	switch {
	case m.Part == connector.PartAll:
		return int64(tokens * g.TokenBytes())
	case m.Write:
		return int64(tokens * g.TokenBytes() / g.Layers)
	case m.Part == connector.TensorHidden:
		return int64(tokens * g.HiddenTokenBytes())
	default:
		return int64(tokens * g.TokenBytes() / 2)
	}
}

// ask takes a question about a transfer to the node that has it.
func (n *node) ask(q connector.Ask) {
	p := n.c.names[q.Node]
	if q.Release {
		delete(p.askers, q.Transfer)
		n.c.send(p, connector.Release{Transfer: q.Transfer}, n.c.now+n.c.cfg.RPC)
		return
	}
	p.askers[q.Transfer] = asker{n, q.ID}
	n.c.send(p, connector.Produce{Transfer: q.Transfer}, n.c.now+n.c.cfg.RPC)
}

// answer tells the node that asked.
func (n *node) answer(a connector.Answer) {
	k, ok := n.askers[a.Transfer]
	if !ok {
		return
	}
	var ev connector.Event = connector.Produced{ID: k.id, Tensor: a.Tensor}
	if a.Gone {
		delete(n.askers, a.Transfer)
		ev = connector.Gone{ID: k.id, Err: connector.ErrWithdrawn}
	}
	n.c.send(k.node, ev, n.c.now+n.c.cfg.RPC)
}
