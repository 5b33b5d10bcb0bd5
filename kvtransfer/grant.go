package kvtransfer

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"kvferry/kvcache"
	"kvferry/transport"
)

// Terms are what a grant lets a peer do.
type Terms struct {
	Op     transport.Op  // Read: the blocks are offered. Write: they are reserved for the peer.
	Blocks []kvcache.Ref // the caller's until OnEnd
	First  int           // index of Blocks[0] in the sequence's block table
	Tokens int           // of the sequence: its last block may be full in part
	Hidden bool          // the blocks' hidden states too
	Tag    string        // names the request in the log
	// Digest has the full blocks of a Write grant digested as they land, while their bytes are in the CPU's cache, if the
	// rails watch writes. Arrival.Landed saves the Check of these blocks from reading them again.
	Digest bool

	// Lease is how long the grant lasts if nobody ends it, from the call of Grant or Renew.
	// 0 is until somebody does; less is an error.
	Lease time.Duration
	// OnArrival, of a Write grant, is told of each part that the peer has written and
	// notified. The bytes are in the blocks. It must not be nil.
	OnArrival func(Arrival)
	// OnEnd is called once, when no peer can touch the blocks any more, perhaps before
	// what ends the grant has returned. It may be nil.
	OnEnd func(End)
}

// An Arrival is a part that a peer has written.
type Arrival struct {
	Layer   int           // AllLayers if it was everything
	Value   uint32        // of the peer's Move
	At      time.Duration // when that was heard
	Digests Digests       // of what was written, for its Check
	Landed  Digested      // the digests that were made as it landed, if Terms.Digest was set
}

// End is why a grant has ended.
type End uint8

const (
	Closed   End = iota // by its owner
	Released            // the peer needs it no more
	Lapsed              // its lease is over
	Shutdown            // the agent was closed
)

func (e End) String() string {
	return [...]string{"closed", "released", "lapsed", "shut down"}[e]
}

// A Descriptor is what a peer must be told of a grant to use it. Whoever has it may.
type Descriptor struct {
	Node string // with the blocks
	// Addr is where the node takes messages. The caller fills it in; moves to and from one
	// address share what may be under way, and without one, those to and from one node.
	Addr     string
	Transfer uint64 // the grant's
	Tokens   int
	Segment  transport.SegmentInfo
	Blocks   []kvcache.Entry
	// Digests and Hidden have a sum for each block of a Read grant: of all its layers, and of its
	// hidden states.
	Digests, Hidden Digests
}

// A Grant lets a peer read or write blocks of ours, for one transfer.
type Grant struct {
	a        *Agent
	transfer uint64
	name     string // of the window, here and by the notices that come through it
	terms    Terms
	window   *transport.Window
	landed   Digested    // of a Write grant with Terms.Digest
	lease    *time.Timer // nil without one
	strayed  atomic.Bool // a notice came through another window, and the log says so
	over     atomic.Bool
}

// Grant opens blocks to a peer. transfer names the grant among all that this node makes or
// has made, also before it started again: a late message of an earlier one must find
// nothing.
func (a *Agent) Grant(transfer uint64, terms Terms) (*Grant, error) {
	switch {
	case terms.Op == transport.Write && terms.OnArrival == nil:
		return nil, fmt.Errorf("kvtransfer: grant %d: OnArrival is nil: a peer that writes says what has arrived", transfer)
	case terms.Lease < 0:
		return nil, fmt.Errorf("kvtransfer: grant %d: Lease is %v: use a duration above 0, or 0 for none", transfer, terms.Lease)
	}
	terms.Blocks = slices.Clone(terms.Blocks)
	g := &Grant{a: a, transfer: transfer, terms: terms, name: fmt.Sprintf("%s/%d", a.cfg.Name, transfer)}
	geometry := a.cfg.Slab.Geometry()
	var err error
	if open := ranges(geometry, terms.Blocks, terms.Hidden); terms.Digest && terms.Op == transport.Write {
		g.landed = newDigested(a.cfg.Slab, terms.Blocks, terms.First, terms.Tokens)
		g.window, err = a.segment.WatchedWindow(g.name, open, g.landed.wrote())
	} else {
		g.window, err = a.segment.Window(g.name, terms.Op, open)
	}
	if err != nil {
		return nil, err
	}
	if err := a.keep(g); err != nil {
		return nil, errors.Join(err, g.window.Close())
	}
	return g, nil
}

// keep makes a grant known to the agent.
func (a *Agent) keep(g *Grant) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.closed:
		return net.ErrClosed
	case a.grants[g.transfer] != nil:
		return fmt.Errorf("kvtransfer: there is a grant %d already", g.transfer)
	}
	a.background.Add(1) // until OnEnd
	a.grants[g.transfer] = g
	if g.terms.Lease > 0 {
		g.lease = time.AfterFunc(g.terms.Lease, func() { g.end(Lapsed) })
	}
	return nil
}

// Descriptor is what the peer must be told.
func (g *Grant) Descriptor() Descriptor {
	d := Descriptor{
		Node: g.a.cfg.Name, Transfer: g.transfer, Tokens: g.terms.Tokens,
		Segment: g.window.Info(), Blocks: make([]kvcache.Entry, len(g.terms.Blocks)),
	}
	for i, b := range g.terms.Blocks {
		d.Blocks[i] = kvcache.Entry{Index: g.terms.First + i, Ref: b}
	}
	if t := &g.terms; t.Op == transport.Read {
		d.Digests = digests(g.a.cfg.Slab, Whole, t.Blocks, t.First, t.Tokens, len(t.Blocks))
		d.Hidden = digests(g.a.cfg.Slab, Part{Layer: AllLayers, Plane: Hidden}, t.Blocks, t.First, t.Tokens, len(t.Blocks))
	}
	return d
}

// Renew starts the lease again: the peer is there, and still needs the blocks. It reports
// whether the grant is open.
func (g *Grant) Renew() bool {
	if g.over.Load() {
		return false
	}
	// One that lapses at this moment has been renewed too late.
	return g.lease == nil || g.lease.Reset(g.terms.Lease)
}

// Renew is Grant.Renew of a grant by its number.
func (a *Agent) Renew(transfer uint64) bool {
	a.mu.Lock()
	g := a.grants[transfer]
	a.mu.Unlock()
	return g != nil && g.Renew()
}

// Close ends the peer's access. OnEnd says when it has ended, unless it was about to be
// called for another reason already.
func (g *Grant) Close() { g.end(Closed) }

// Released is the message that a peer needs a grant no more. Of one that is not known it
// means nothing: such messages may be repeated.
func (a *Agent) Released(transfer uint64) {
	a.mu.Lock()
	g := a.grants[transfer]
	a.mu.Unlock()
	if g != nil {
		g.end(Released)
	}
}

func (g *Grant) end(why End) {
	if g.over.Swap(true) {
		return
	}
	a := g.a
	a.mu.Lock()
	if g.lease != nil {
		g.lease.Stop()
	}
	delete(a.grants, g.transfer)
	a.mu.Unlock()
	go func() {
		defer a.background.Done()
		// Waits for operations under way.
		if err := g.window.Close(); err != nil {
			a.cfg.Logger.Warn("closing a transfer's window", "request", g.terms.Tag, "err", err)
		}
		if g.terms.OnEnd != nil {
			g.terms.OnEnd(why)
		}
	}()
}
