package sim

import (
	"container/heap"
	"math"
	"time"

	"kvferry/config"
	"kvferry/connector"
	"kvferry/kvcache"
)

// A NIC is one network interface of a node. It sends and receives at its rate at
// the same time.
type NIC struct {
	BytesPerSecond float64       `json:"bytes_per_second"`
	Latency        time.Duration `json:"latency_ns"` // last byte out to last byte in, once a transfer
}

func (n NIC) validate() error {
	var bad config.Faults
	if !(n.BytesPerSecond > 0) || math.IsInf(n.BytesPerSecond, 0) {
		bad.Add("BytesPerSecond", n.BytesPerSecond, "use a rate above 0")
	}
	config.Between(&bad, "Latency", n.Latency, 0, time.Hour)
	return bad.Err("sim.NIC")
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
	due   flowHeap // active flows, by when their next transfer is over
	spare []*flow
	mark  uint64 // of the search under way

	ports []*port // scratch of share
	reach []*flow
	tight queue[float64, *port] // by what they can give each of their transfers
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
	parts      queue[float64, *transfer] // by the served that ends their part here
	next       time.Duration             // when the first of parts is over
	index      int                       // in due

	mark  uint64
	fixed bool // scratch of share
}

// A transfer is one Move of a node.
type transfer struct {
	parts    int // under way
	flight   *flight
	node     *node
	from, to *node // one of them is node
	moved    connector.Moved
	imm      bool // to is told, with
	token    kvcache.Token
	since    time.Duration // starts then, if that is to come
	next     *transfer     // in the node's list of those to start, then in the flight's of those landed
}

// lane is a pair of ports and the share of a transfer that goes over it.
type lane struct {
	tx, rx *port
	share  float64
}

// flow is the one under way, or nil. Ports have few.
func (l lane) flow() *flow {
	for _, f := range l.tx.flows {
		if f.rx == l.rx {
			return f
		}
	}
	return nil
}

// start sends bytes over lanes, each its share.
func (n *network) start(now time.Duration, bytes float64, lanes []lane, t *transfer) {
	t.parts = len(lanes)
	for _, l := range lanes {
		l.tx.bytes += bytes * l.share
		l.rx.bytes += bytes * l.share
		f := l.flow()
		if f == nil {
			f = n.open(now, l.tx, l.rx)
		}
		f.serve(now)
		f.parts.push(f.served+bytes*l.share, t)
		n.share(now, f)
	}
}

func (n *network) open(now time.Duration, tx, rx *port) *flow {
	var f *flow
	if k := len(n.spare); k > 0 {
		f, n.spare = n.spare[k-1], n.spare[:k-1]
		*f = flow{parts: queue[float64, *transfer]{heap: f.parts.heap[:0]}}
	} else {
		f = new(flow)
	}
	f.tx, f.rx, f.at, f.index = tx, rx, now, -1
	f.inTx, f.inRx = len(tx.flows), len(rx.flows)
	tx.flows, rx.flows = append(tx.flows, f), append(rx.flows, f)
	return f
}

func (n *network) close(f *flow) {
	heap.Remove(&n.due, f.index)
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

// finish ends the part of a transfer that first announced, and returns the
// transfer if that was its last.
func (n *network) finish(now time.Duration) *transfer {
	f := n.due[0]
	f.serve(now)
	goal, _ := f.parts.first()
	t := f.parts.pop()
	// Times are whole nanoseconds and rates are not: served may be off the goal by
	// the bytes of a nanosecond, and is set right where the transfer is the only
	// one left, so that the error does not add up.
	f.served = max(f.served, goal)
	if f.parts.len() == 0 {
		tx, rx := f.tx, f.rx
		n.close(f)
		n.shareAt(now, tx)
		n.shareAt(now, rx)
	} else {
		n.share(now, f)
	}
	t.parts--
	if t.parts > 0 {
		return nil
	}
	return t
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
		n.set(f, min(f.tx.rate, f.rx.rate)/float64(f.parts.len()), now)
		return
	}
	n.connected(f)
	n.tight.heap, n.tight.seq = n.tight.heap[:0], 0
	for _, p := range n.ports {
		p.left, p.weight = p.rate, 0
		for _, g := range p.flows {
			p.weight += g.parts.len()
		}
		n.tight.push(p.left/float64(p.weight), p)
	}
	for settled := 0; settled < len(n.reach); {
		least, _ := n.tight.first()
		p := n.tight.pop()
		if p.weight == 0 {
			continue
		}
		// What others left it can only have grown since it was put there.
		if share := p.left / float64(p.weight); share > least {
			n.tight.push(share, p)
			continue
		}
		for _, g := range p.flows {
			if g.fixed {
				continue
			}
			g.fixed = true
			settled++
			w := g.parts.len()
			for _, q := range [...]*port{g.tx, g.rx} {
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
	goal, _ := f.parts.first()
	wait := max(math.Ceil((goal-f.served)/rate*1e9), 0)
	f.next = never
	if wait < float64(never-now) {
		f.next = now + time.Duration(wait)
	}
	if f.index < 0 {
		heap.Push(&n.due, f)
	} else {
		heap.Fix(&n.due, f.index)
	}
}

// never is when nothing happens any more: 146 years.
const never = time.Duration(math.MaxInt64 / 2)

type flowHeap []*flow

func (h flowHeap) Len() int           { return len(h) }
func (h flowHeap) Less(i, j int) bool { return h[i].next < h[j].next }
func (h flowHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *flowHeap) Push(x any) {
	f := x.(*flow)
	f.index = len(*h)
	*h = append(*h, f)
}

func (h *flowHeap) Pop() any {
	old := *h
	f := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	f.index = -1
	return f
}
