package transport

import (
	"slices"

	"kvferry/transport/selection"
)

// A Priority says how a batch goes where others have bytes under way to the same peer.
type Priority uint8

const (
	// BySize is Urgent for batches of up to 32 KiB, and Bulk for others.
	BySize Priority = iota
	// Bulk batches go in the order of their submission, more or less.
	Bulk
	// Urgent batches of up to 1 MiB go past the others, within a ninth of what the path carries.
	Urgent
)

// urgent says whether the batch is to go past others. Immediates by themselves are small, and
// so are fences.
func (b *Batch) urgent() bool {
	if b.opt.Priority == BySize {
		return b.bytes <= selection.Small
	}
	return b.opt.Priority == Urgent
}

// A path has a second connection, its express, which is made when a slice is first to go past
// others: those are before it in the path's queue, in the endpoint's, in a frame of a megabyte
// and in the kernel's buffer, or before its queue pair. It is a path by itself, with an endpoint
// that is lost, fenced and made again like any other, and has no slices that could not go with the
// others as well: nobody waits for it to be connected, and while it is not they do go with the
// others. A batch goes one way or the other as a whole; of two batches the second may be the
// first to arrive.
//
//	bulk    ──► queue ──► endpoint ─┐
//	                                ├──► the peer's rail
//	urgent  ──► queue ──► endpoint ─┘

// past is the express of the path, if slices of so many bytes are to go over it now, and else
// the path.
func (p *path) past(run []*Slice) *path {
	under := p.inflight.Load()
	p.meterMu.Lock()
	fits := p.bound.Fits(size(run), under)
	p.meterMu.Unlock()
	if !fits {
		return p
	}
	x := p.express.Load()
	if x == nil {
		x = p.open()
	}
	switch {
	case x == nil:
		return p
	case !x.up.Load():
		x.prepare()
		return p
	}
	p.meterMu.Lock()
	defer p.meterMu.Unlock()
	if !p.bound.Take(size(run), under) {
		return p // others took it meanwhile
	}
	return x
}

// open makes the express of a path that is connected: then its address is the one.
func (p *path) open() *path {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.express.Load()
	if x == nil && p.conn != nil && !p.closed {
		x = &path{e: p.e, peer: p.peer, index: p.index, rail: p.rail, acct: p.acct, bulk: p, addrs: []string{p.addr()}, stop: make(chan struct{})}
		p.express.Store(x)
	}
	return x
}

// all are the peer's paths and their expresses.
func (g *peer) all() []*path {
	all := make([]*path, 0, 2*len(g.paths))
	for _, p := range g.paths {
		all = append(all, p)
		if x := p.express.Load(); x != nil {
			all = append(all, x)
		}
	}
	return all
}

// hasten sends slices that are to go past others, and reports whether it has. All are of
// one batch, or come from one path.
func (g *peer) hasten(run []*Slice) bool {
	if !slices.ContainsFunc(g.paths, func(p *path) bool { return p.inflight.Load() >= selection.Behind }) {
		return false // most often
	}
	if slices.ContainsFunc(run, func(s *Slice) bool { return !s.batch.urgent() || s.batch != run[0].batch }) {
		return false
	}
	p := g.soonest(run[0])
	if slices.ContainsFunc(run, func(s *Slice) bool { return s.rank(p) == selection.Unusable }) {
		return false
	}
	x := p.past(run)
	if x == p {
		return false
	}
	x.take(run)
	x.enqueue(run)
	return true
}
