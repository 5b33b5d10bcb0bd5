package kvtransfer

import (
	"slices"
	"time"

	"kvferry/transport"
)

// A lane is the moves between this node and another one: so many under way, and the
// others in the order in which they came. It is guarded by the agent's lock.
type lane struct {
	peer    string
	moves   int // under way
	bytes   int // of these
	waiting []*move
}

// A move is one part of a transfer on its way through the node.
type move struct {
	t     *Transfer
	bytes int
	since time.Duration // when it came
	reqs  []transport.Request
	opt   transport.BatchOptions
	done  func(Moved)
	ended bool // before Submit had returned

	digested Digested // of a move with Move.Digest
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

// end is of a move that is not under way any more.
func (n *lane) end(v *move) {
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

// pump submits what there is room for in a lane.
func (a *Agent) pump(n *lane) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for v := n.next(a.cfg.UnderWay); v != nil; v = n.next(a.cfg.UnderWay) {
		v.opt.OnDone = func(b *transport.Batch) { a.moved(n, v, b) }
		a.mu.Unlock()
		b := a.tx.Submit(v.t.target, v.reqs, v.opt) // may end, and call OnDone, before it returns
		a.mu.Lock()
		if v.ended {
			continue
		}
		v.t.batches[b] = struct{}{}
		if v.t.canceled != nil { // meanwhile
			a.mu.Unlock()
			b.Cancel()
			a.mu.Lock()
		}
	}
	if n.moves == 0 && len(n.waiting) == 0 && a.lanes[n.peer] == n {
		delete(a.lanes, n.peer)
	}
}

// laneLocked is the lane to a peer.
func (a *Agent) laneLocked(peer string) *lane {
	n := a.lanes[peer]
	if n == nil {
		n = &lane{peer: peer}
		a.lanes[peer] = n
	}
	return n
}
