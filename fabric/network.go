package fabric

import (
	"container/heap"
	"math"
	"slices"
	"time"
)

// A Network is ports and the transfers over them, each with something of the caller's, T.
// At any moment each transfer has its max-min fair rate: no transfer could go faster without
// slowing one that is no faster than itself. The zero Network is ready to use. Not safe for
// concurrent use.
//
// Transfers over the same ports have the same rate always, so a flow
// counts what each of them has got since the flow began (served), and a transfer
// is over when served reaches its goal: a change of rate touches the flow, not
// its transfers. A change can matter only to flows that are connected to it
// through ports, so only these are computed again.
type Network[T any] struct {
	due   flowHeap[T] // active flows, by when their next transfer is over
	spare []*flow[T]
	mark  uint64 // of the search under way

	ports []*Port[T] // scratch of share
	reach []*flow[T]
	tight Queue[float64, *Port[T]] // by what they can give each of their transfers
}

// A Port is what transfers share: one direction of a NIC, of a switch's uplink or of a bus.
type Port[T any] struct {
	rate  float64 // bytes/s
	bytes float64 // carried
	flows []*flow[T]

	mark   uint64
	left   float64 // scratch of share: rate not yet given out
	weight int     // and transfers that have none yet
}

// NewPort returns a port that carries so many bytes a second.
func NewPort[T any](rate float64) *Port[T] { return &Port[T]{rate: rate} }

// Bytes is what the port has carried or has to carry of what was started.
func (p *Port[T]) Bytes() float64 { return p.bytes }

// A flow is the transfers over the same ports.
type flow[T any] struct {
	ports  []*Port[T]
	in     []int // where it is in the ports' lists
	rate   float64
	served float64 // bytes each transfer got since the flow began
	at     time.Duration
	parts  Queue[float64, T] // by the served that ends them
	next   time.Duration     // when the first of parts is over
	index  int               // in due

	mark  uint64
	fixed bool // scratch of share
}

// Start begins a transfer over ports, each of them once, in an order that is always the same
// for the same ports. now never goes back, in any method.
func (n *Network[T]) Start(now time.Duration, bytes float64, ports []*Port[T], what T) {
	n.Carried(bytes, ports)
	f := flowOver(ports)
	if f == nil {
		f = n.open(now, ports)
	}
	f.serve(now)
	f.parts.Push(f.served+bytes, what)
	n.share(now, f)
}

// Alone is how long a transfer takes if nothing else crosses its ports meanwhile; false if something does now.
func (n *Network[T]) Alone(bytes float64, ports []*Port[T]) (took time.Duration, alone bool) {
	rate := ports[0].rate
	for _, p := range ports {
		if len(p.flows) > 0 {
			return 0, false
		}
		rate = min(rate, p.rate)
	}
	return lasts(bytes, rate), true
}

// Carried counts a transfer that was over, and was not started.
func (n *Network[T]) Carried(bytes float64, ports []*Port[T]) {
	for _, p := range ports {
		p.bytes += bytes
	}
}

// lasts is how long so many bytes take, Never if that is too long.
func lasts(bytes, rate float64) time.Duration {
	if ns := max(math.Ceil(bytes/rate*1e9), 0); ns < float64(Never) {
		return time.Duration(ns)
	}
	return Never
}

// flowOver is the flow over ports, or nil. Ports have few.
func flowOver[T any](ports []*Port[T]) *flow[T] {
	last := len(ports) - 1
	for _, f := range ports[0].flows {
		if f.ports[len(f.ports)-1] == ports[last] && slices.Equal(f.ports, ports) {
			return f
		}
	}
	return nil
}

func (n *Network[T]) open(now time.Duration, ports []*Port[T]) *flow[T] {
	if len(n.spare) == 0 {
		n.spare = append(n.spare, new(flow[T]))
	}
	last := len(n.spare) - 1
	f := n.spare[last]
	n.spare = n.spare[:last]
	f.parts.Clear()
	*f = flow[T]{ports: f.ports[:0], in: f.in[:0], parts: f.parts}
	f.at, f.index = now, -1
	for _, p := range ports {
		f.ports, f.in = append(f.ports, p), append(f.in, len(p.flows))
		p.flows = append(p.flows, f)
	}
	return f
}

func (n *Network[T]) close(f *flow[T]) {
	heap.Remove(&n.due, f.index)
	for i, p := range f.ports {
		end := len(p.flows) - 1
		last := p.flows[end]
		p.flows[f.in[i]] = last
		last.in[slices.Index(last.ports, p)] = f.in[i]
		p.flows = p.flows[:end]
	}
	n.spare = append(n.spare, f)
}

// First is when the next transfer is over; false if there is none.
func (n *Network[T]) First() (time.Duration, bool) {
	if len(n.due) == 0 {
		return 0, false
	}
	return n.due[0].next, true
}

// Finish ends the transfer that First announced.
func (n *Network[T]) Finish(now time.Duration) T {
	f := n.due[0]
	f.serve(now)
	goal, _ := f.parts.First()
	what := f.parts.Pop()
	// Times are whole nanoseconds and rates are not: served may be off the goal by
	// the bytes of a nanosecond, and is set right where the transfer is the only
	// one left, so that the error does not add up.
	f.served = max(f.served, goal)
	if f.parts.Len() > 0 {
		n.share(now, f)
		return what
	}
	n.close(f)
	for _, p := range f.ports {
		n.shareAt(now, p)
	}
	return what
}

// shareAt shares again around a port that a flow has left.
func (n *Network[T]) shareAt(now time.Duration, p *Port[T]) {
	if len(p.flows) > 0 {
		n.share(now, p.flows[0])
	}
}

// share computes the rates of the flows that are connected with f by filling
// ports up: the port that has least to give each of its transfers settles their
// rate; what they leave at the other ports is for the rest.
func (n *Network[T]) share(now time.Duration, f *flow[T]) {
	if least, alone := f.alone(); alone { // as most are
		f.serve(now)
		n.set(f, least/float64(f.parts.Len()), now)
		return
	}
	n.connected(f)
	n.tight.Clear()
	for _, p := range n.ports {
		p.left, p.weight = p.rate, 0
		for _, g := range p.flows {
			p.weight += g.parts.Len()
		}
		n.tight.Push(p.left/float64(p.weight), p)
	}
	for settled := 0; settled < len(n.reach); {
		least, _ := n.tight.First()
		p := n.tight.Pop()
		if p.weight == 0 {
			continue
		}
		// What others left it can only have grown since it was put there.
		if share := p.left / float64(p.weight); share > least {
			n.tight.Push(share, p)
			continue
		}
		for _, g := range p.flows {
			if g.fixed {
				continue
			}
			g.fixed = true
			settled++
			w := g.parts.Len()
			for _, q := range g.ports {
				q.left = max(q.left-least*float64(w), 0)
				q.weight -= w
			}
			if g.rate != least || g == f {
				g.serve(now)
				n.set(g, least, now)
			}
		}
	}
}

// connected finds the ports and flows that share a port with f, directly or
// through others, in an order that depends on history alone.
func (n *Network[T]) connected(f *flow[T]) {
	n.mark++
	n.ports, n.reach = n.ports[:0], n.reach[:0]
	visit := func(p *Port[T]) {
		if p.mark != n.mark {
			p.mark = n.mark
			n.ports = append(n.ports, p)
		}
	}
	for _, p := range f.ports {
		visit(p)
	}
	for i := 0; i < len(n.ports); i++ {
		for _, g := range n.ports[i].flows {
			if g.mark != n.mark {
				g.mark, g.fixed = n.mark, false
				n.reach = append(n.reach, g)
				for _, p := range g.ports {
					visit(p)
				}
			}
		}
	}
}

// alone reports whether nothing else crosses its ports, and the rate of the slowest.
func (f *flow[T]) alone() (least float64, alone bool) {
	least = f.ports[0].rate
	for _, p := range f.ports {
		if len(p.flows) > 1 {
			return 0, false
		}
		least = min(least, p.rate)
	}
	return least, true
}

// serve brings what each transfer has got up to now.
func (f *flow[T]) serve(now time.Duration) {
	if now > f.at {
		f.served += f.rate * (now - f.at).Seconds()
		f.at = now
	}
}

// set gives every transfer of the flow a rate from now on.
func (n *Network[T]) set(f *flow[T], rate float64, now time.Duration) {
	f.rate = rate
	goal, _ := f.parts.First()
	f.next = now + min(lasts(goal-f.served, rate), Never-now)
	if f.index < 0 {
		heap.Push(&n.due, f)
	} else {
		heap.Fix(&n.due, f.index)
	}
}

// Never is when nothing happens any more: 146 years.
const Never = time.Duration(math.MaxInt64 / 2)

type flowHeap[T any] []*flow[T]

func (h flowHeap[T]) Len() int           { return len(h) }
func (h flowHeap[T]) Less(i, j int) bool { return h[i].next < h[j].next }
func (h flowHeap[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *flowHeap[T]) Push(x any) {
	f := x.(*flow[T])
	f.index = len(*h)
	*h = append(*h, f)
}

func (h *flowHeap[T]) Pop() any {
	old := *h
	f := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	f.index = -1
	return f
}
