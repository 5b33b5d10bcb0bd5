package sim

import (
	"time"

	"kvferry/connector"
	"kvferry/engine"
	"kvferry/kvcache"
	"kvferry/placement"
)

// A node is one daemon: its core, its modelled GPU and its NICs.
type node struct {
	c    *cluster
	name string
	core *connector.Core
	pool *kvcache.Pool
	cost *engine.CostModel
	tx   []*port
	rx   []*port

	inbox, spare []connector.Event
	ready        bool // in the cluster's list of nodes with something in the inbox
	wakeAt       time.Duration
	doneAt       time.Duration        // of the step under way
	began        time.Duration        // the same
	tokens       []kvcache.Token      // it samples
	askers       map[uint64]asker     // of v0's tensors, by our transfer
	load         *placement.Candidate // what the proxy knows of us
	sent         int                  // prompt tokens submitted since the last step
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
	a := n.core.Step(now, events...)
	clear(events)

	if s := a.Launch; s != nil {
		n.launch(s, a.Layers)
	}
	for _, f := range a.Failed {
		n.c.failed(n, f)
	}
	for _, t := range a.Tokens {
		n.c.token(t)
	}
	for i := range a.Moves {
		n.move(&a.Moves[i])
	}
	for _, k := range a.Checks {
		n.tell(connector.Checked{ID: k.ID, Part: k.Part, Blocks: len(k.Refs)})
	}
	for _, id := range a.Close {
		n.tell(connector.Closed{ID: id})
	}
	for _, q := range a.Ask {
		n.ask(q)
	}
	for _, r := range a.Answer {
		n.answer(r)
	}
	for _, o := range a.Reserved {
		n.c.reserved(n, o)
	}
	for _, p := range a.Prefilled {
		n.c.prefilled(n, p)
	}
	for _, f := range a.Finished {
		n.c.finished(n, f)
	}
	if a.Wake > 0 && a.Wake < never && (n.wakeAt <= now || a.Wake < n.wakeAt) {
		n.wakeAt = max(a.Wake, now)
		n.c.queue.push(event{at: n.wakeAt, node: n, kind: wake})
	}
	n.report()
}

// report is what a real node tells the proxy after each iteration.
func (n *node) report() {
	n.sent = 0
	n.load.WaitingTokens = n.core.Load().WaitingTokens
}

// count adds to the integral of used blocks what has passed since the last time.
func (n *node) count(now time.Duration) {
	used := n.pool.Used()
	n.stats.BlockSeconds += float64(used) * (now - n.at).Seconds()
	n.stats.PeakBlocks = max(n.stats.PeakBlocks, used)
	n.at = now
}

// launch notes when the step ends and what it samples.
func (n *node) launch(s *engine.Step, layers bool) {
	now := n.c.now
	d := n.cost.Run(s)
	n.began, n.doneAt = s.At, s.At+d
	n.stats.steps(s.Kind, d)
	n.tokens = n.tokens[:0]
	for _, w := range s.Works {
		if w.Sample {
			n.tokens = append(n.tokens, w.Seq.NextToken(n.c.cfg.Profile.Vocab))
		}
	}
	if layers {
		n.c.queue.push(event{at: max(n.layerAt(0), now), node: n, kind: layer})
	}
	n.c.queue.push(event{at: max(n.doneAt, now), node: n, kind: stepEnd})
}

// layerAt is when the KV of a layer is there: the layers take equal parts of the
// step.
func (n *node) layerAt(l int) time.Duration {
	layers := n.c.cfg.Profile.KVGeometry.Layers
	return n.began + (n.doneAt-n.began)*time.Duration(l+1)/time.Duration(layers)
}

// layerDone reports a layer and sees to the next.
func (n *node) layerDone(l int) {
	n.tell(connector.LayerDone{Layer: l, At: n.layerAt(l)})
	if next := l + 1; next < n.c.cfg.Profile.KVGeometry.Layers {
		n.c.queue.push(event{at: max(n.layerAt(next), n.c.now), node: n, kind: layer, arg: int32(next)})
	}
}

// move starts a transfer to or from the request's other node.
func (n *node) move(m *connector.Move) {
	f := n.c.flights[m.ID]
	ev := connector.Moved{ID: m.ID, Part: m.Part, Bytes: n.bytes(m, len(f.prompt)), Posted: n.c.now}
	if ev.Bytes == 0 {
		ev.At = n.c.now
		n.tell(ev)
		return
	}
	from, to := n, f.prefill
	if to == n {
		to = f.decode
	}
	if !m.Write {
		from, to = to, from
	}
	imm, part, token := m.Imm, m.Part, m.Token
	lanes := n.c.lanes(from, to)
	n.c.network.start(n.c.now, float64(ev.Bytes), lanes, &transfer{
		latency: n.c.latency,
		done: func(at time.Duration) {
			if imm {
				n.c.send(to, connector.Arrived{ID: ev.ID, Part: part, Token: token, At: at}, at)
			}
			ev.At = at
			n.c.send(n, ev, at)
		},
	})
}

// bytes is the payload of a move: package connector's Requests makes as many of
// it.
func (n *node) bytes(m *connector.Move, tokens int) int64 {
	if len(m.Pairs) == 0 {
		return 0
	}
	g := n.c.cfg.Profile.KVGeometry
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
		ev = connector.Gone{ID: k.id, Err: connector.ErrTransfer}
	}
	n.c.send(k.node, ev, n.c.now+n.c.cfg.RPC)
}
