package sim

import (
	"container/heap"
	"fmt"
	"math"
	"time"
)

// A NIC is one network interface of a node. It sends and receives at its rate at
// the same time.
type NIC struct {
	BytesPerSecond float64       `json:"bytes_per_second"`
	Latency        time.Duration `json:"latency_ns"` // last byte out to last byte in, once a transfer
}

func (n NIC) validate() error {
	switch {
	case !(n.BytesPerSecond > 0) || math.IsInf(n.BytesPerSecond, 0):
		return fmt.Errorf("rate is %v bytes/s: must be above 0", n.BytesPerSecond)
	case n.Latency < 0 || n.Latency > time.Hour:
		return fmt.Errorf("latency is %v: must be from 0 to 1h", n.Latency)
	}
	return nil
}

// A network is every node's NICs and the transfers between them. At any moment
// each transfer has its max-min fair rate: no transfer could go faster without
// slowing one that is no faster than itself.
//
// Transfers between the same two ports have the same rate always, so a flow
// counts what each of them has got since the flow began (served), and a transfer
// is over when served reaches its goal: a change of rate touches the flow, not
// its transfers. A change can matter only to flows that are connected to it
// through ports, so only these are computed again.
type network struct {
	flows map[[2]*port]*flow
	due   flowHeap // active flows, by when their next transfer is over
	spare []*flow
	mark  uint64 // of the search under way

	ports []*port // scratch of share
	reach []*flow
	tight tightHeap
}

// A port is one direction of one NIC.
type port struct {
	rate  float64 // bytes/s
	flows []*flow
	bytes float64 // carried

	mark   uint64
	left   float64 // scratch of share: rate not yet given out
	weight int     // and transfers that have none yet
}

// A flow is the transfers between two ports.
type flow struct {
	tx, rx     *port
	inTx, inRx int // where it is in the ports' lists
	rate       float64
	served     float64 // bytes each transfer got since the flow began
	at         time.Duration
	parts      partHeap
	next       time.Duration // when the first of parts is over
	place      int           // in due

	mark  uint64
	fixed bool // scratch of share
}

// A part of a transfer goes over one pair of ports.
type part struct {
	goal float64 // of the flow's served
	seq  uint64
	t    *transfer
}

// A transfer is one Move of a node.
type transfer struct {
	parts   int // under way
	latency time.Duration
	done    func(at time.Duration)
}

func newNetwork() *network { return &network{flows: make(map[[2]*port]*flow)} }

// lane is a pair of ports and the share of a transfer that goes over it.
type lane struct {
	tx, rx *port
	share  float64
}

// start sends bytes over lanes, each its share. done is called when all is there.
func (n *network) start(now time.Duration, bytes float64, lanes []lane, t *transfer) {
	t.parts = len(lanes)
	for _, l := range lanes {
		l.tx.bytes += bytes * l.share
		l.rx.bytes += bytes * l.share
		f := n.flows[[2]*port{l.tx, l.rx}]
		if f == nil {
			f = n.open(now, l.tx, l.rx)
		}
		f.serve(now)
		f.parts.seq++
		heap.Push(&f.parts, part{goal: f.served + bytes*l.share, seq: f.parts.seq, t: t})
		n.share(now, f)
	}
}

func (n *network) open(now time.Duration, tx, rx *port) *flow {
	var f *flow
	if k := len(n.spare); k > 0 {
		f, n.spare = n.spare[k-1], n.spare[:k-1]
		*f = flow{parts: partHeap{list: f.parts.list[:0]}}
	} else {
		f = new(flow)
	}
	f.tx, f.rx, f.at, f.place = tx, rx, now, -1
	f.inTx, f.inRx = len(tx.flows), len(rx.flows)
	tx.flows, rx.flows = append(tx.flows, f), append(rx.flows, f)
	n.flows[[2]*port{tx, rx}] = f
	return f
}

func (n *network) close(f *flow) {
	heap.Remove(&n.due, f.place)
	delete(n.flows, [2]*port{f.tx, f.rx})
	last := f.tx.flows[len(f.tx.flows)-1]
	f.tx.flows[f.inTx], last.inTx = last, f.inTx
	f.tx.flows = f.tx.flows[:len(f.tx.flows)-1]
	last = f.rx.flows[len(f.rx.flows)-1]
	f.rx.flows[f.inRx], last.inRx = last, f.inRx
	f.rx.flows = f.rx.flows[:len(f.rx.flows)-1]
	n.spare = append(n.spare, f)
}

// first is when the next transfer is over; false if there is none.
func (n *network) first() (time.Duration, bool) {
	if len(n.due) == 0 {
		return 0, false
	}
	return n.due[0].next, true
}

// finish ends the transfer that first announced.
func (n *network) finish(now time.Duration) {
	f := n.due[0]
	f.serve(now)
	p := heap.Pop(&f.parts).(part)
	// Times are whole nanoseconds and rates are not: served may be off the goal by
	// the bytes of a nanosecond, and is set right where the transfer is the only
	// one left, so that the error does not add up.
	f.served = max(f.served, p.goal)
	if len(f.parts.list) == 0 {
		tx, rx := f.tx, f.rx
		n.close(f)
		n.shareAt(now, tx)
		n.shareAt(now, rx)
	} else {
		n.share(now, f)
	}
	p.t.parts--
	if p.t.parts == 0 {
		p.t.done(now + p.t.latency)
	}
}

// shareAt shares again around a port that a flow has left.
func (n *network) shareAt(now time.Duration, p *port) {
	if len(p.flows) > 0 {
		n.share(now, p.flows[0])
	}
}

// share computes the rates of the flows that are connected with f by filling
// ports up: the port that has least to give each of its transfers settles their
// rate; what they leave at the other ports is for the rest.
func (n *network) share(now time.Duration, f *flow) {
	if len(f.tx.flows) == 1 && len(f.rx.flows) == 1 { // alone, as most are
		f.serve(now)
		n.set(f, min(f.tx.rate, f.rx.rate)/float64(len(f.parts.list)), now)
		return
	}
	n.connected(f)
	n.tight.list = n.tight.list[:0]
	for _, p := range n.ports {
		p.left, p.weight = p.rate, 0
		for _, g := range p.flows {
			p.weight += len(g.parts.list)
		}
		n.tight.push(tightPort{p.left / float64(p.weight), p})
	}
	for settled := 0; settled < len(n.reach); {
		t := n.tight.pop()
		p := t.port
		if p.weight == 0 {
			continue
		}
		// What others left it can only have grown since it was put there.
		if share := p.left / float64(p.weight); share > t.share {
			n.tight.push(tightPort{share, p})
			continue
		}
		for _, g := range p.flows {
			if g.fixed {
				continue
			}
			g.fixed = true
			settled++
			w := len(g.parts.list)
			for _, q := range [...]*port{g.tx, g.rx} {
				q.left = max(q.left-t.share*float64(w), 0)
				q.weight -= w
			}
			if g.rate != t.share || g == f {
				g.serve(now)
				n.set(g, t.share, now)
			}
		}
	}
}

// connected finds the ports and flows that share a port with f, directly or
// through others, in an order that depends on history alone.
func (n *network) connected(f *flow) {
	n.mark++
	n.ports, n.reach = n.ports[:0], n.reach[:0]
	visit := func(p *port) {
		if p.mark != n.mark {
			p.mark = n.mark
			n.ports = append(n.ports, p)
		}
	}
	visit(f.tx)
	for i := 0; i < len(n.ports); i++ {
		for _, g := range n.ports[i].flows {
			if g.mark != n.mark {
				g.mark, g.fixed = n.mark, false
				n.reach = append(n.reach, g)
				visit(g.tx)
				visit(g.rx)
			}
		}
	}
}

// serve brings what each transfer has got up to now.
func (f *flow) serve(now time.Duration) {
	if now > f.at {
		f.served += f.rate * (now - f.at).Seconds()
		f.at = now
	}
}

// set gives every transfer of the flow a rate from now on.
func (n *network) set(f *flow, rate float64, now time.Duration) {
	f.rate = rate
	wait := max(math.Ceil((f.parts.list[0].goal-f.served)/rate*1e9), 0)
	f.next = never
	if wait < float64(never-now) {
		f.next = now + time.Duration(wait)
	}
	if f.place < 0 {
		heap.Push(&n.due, f)
	} else {
		heap.Fix(&n.due, f.place)
	}
}

// never is when nothing happens any more: 146 years.
const never = time.Duration(math.MaxInt64 / 2)

// tightHeap has the ports of share by what they can give each of their transfers.
type tightHeap struct{ list []tightPort }

type tightPort struct {
	share float64
	port  *port
}

func (h *tightHeap) push(t tightPort) {
	h.list = append(h.list, t)
	i := len(h.list) - 1
	for i > 0 && t.share < h.list[(i-1)/2].share {
		h.list[i] = h.list[(i-1)/2]
		i = (i - 1) / 2
	}
	h.list[i] = t
}

func (h *tightHeap) pop() tightPort {
	top := h.list[0]
	n := len(h.list) - 1
	t := h.list[n]
	h.list = h.list[:n]
	i := 0
	for 2*i+1 < n {
		c := 2*i + 1
		if c+1 < n && h.list[c+1].share < h.list[c].share {
			c++
		}
		if h.list[c].share >= t.share {
			break
		}
		h.list[i] = h.list[c]
		i = c
	}
	if n > 0 {
		h.list[i] = t
	}
	return top
}

type flowHeap []*flow

func (h flowHeap) Len() int           { return len(h) }
func (h flowHeap) Less(i, j int) bool { return h[i].next < h[j].next }
func (h flowHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *flowHeap) Push(x any) {
	f := x.(*flow)
	f.place = len(*h)
	*h = append(*h, f)
}

func (h *flowHeap) Pop() any {
	old := *h
	f := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	f.place = -1
	return f
}

type partHeap struct {
	list []part
	seq  uint64
}

func (h *partHeap) Len() int { return len(h.list) }
func (h *partHeap) Less(i, j int) bool {
	return h.list[i].goal < h.list[j].goal || h.list[i].goal == h.list[j].goal && h.list[i].seq < h.list[j].seq
}
func (h *partHeap) Swap(i, j int) { h.list[i], h.list[j] = h.list[j], h.list[i] }
func (h *partHeap) Push(x any)    { h.list = append(h.list, x.(part)) }
func (h *partHeap) Pop() any {
	p := h.list[len(h.list)-1]
	h.list[len(h.list)-1] = part{}
	h.list = h.list[:len(h.list)-1]
	return p
}
