package pacing

import (
	"sync"
	"time"

	"kvferry/clock"
	"kvferry/fabric"
)

// A Pacer says when what moves over a node's modelled NIC would have arrived. What moves at once
// shares the NIC's rate, each way by itself, as package fabric has it. Its methods may be called
// from any goroutine.
type Pacer struct {
	latency time.Duration
	network *network
	tx, rx  []*port // that what goes out crosses, and what comes in
	bus     bool    // the network is a bus's, which runs it
}

// A Delivery is something that moves over a modelled link. A nil Delivery has been delivered.
type Delivery struct {
	latency time.Duration
	at      time.Duration // of the network until it is over

	mu   sync.Mutex
	over bool
	tell func()
}

// Held reports whether the link has not delivered it yet; then it calls tell when it has, on a
// goroutine of its own, in place of what it was given before.
func (d *Delivery) Held(tell func()) bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tell = tell
	return !d.over
}

// At is when the link delivered it, 0 before that.
func (d *Delivery) At() time.Duration {
	if d == nil {
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.over {
		return 0
	}
	return d.at
}

func (d *Delivery) end() {
	d.mu.Lock()
	d.over = true
	tell := d.tell
	d.mu.Unlock()
	if tell != nil {
		tell()
	}
}

func newPort(rate float64) *port { return fabric.NewPort[*Delivery](rate) }

// New returns a pacer of a link. The caller has it Run, which frees what it has.
func New(link Link, clk clock.Clock) (*Pacer, error) {
	p := &Pacer{latency: link.Latency, tx: []*port{newPort(link.BytesPerSecond)}, rx: []*port{newPort(link.BytesPerSecond)}}
	if b := link.bus; b != nil {
		p.network, p.bus = b.network, true
		p.tx, p.rx = append(p.tx, b.ways[Up]), append(p.rx, b.ways[Down])
		return p, nil
	}
	var err error
	p.network, err = newNetwork(clk)
	return p, err
}

// Move has n bytes go over the link, out of the node or into it. since is when that began; it
// may lie a little back, as far as nothing has ended since, and counts from now if it is 0 or yet
// to come.
func (p *Pacer) Move(now, since time.Duration, n int64, in bool) *Delivery {
	d, ports := &Delivery{latency: p.latency}, p.tx
	if in {
		ports = p.rx
	}
	p.network.start(now, since, n, d, ports...)
	return d
}

// Run tells of what has been delivered until stop is closed. What has not then never is.
func (p *Pacer) Run(stop <-chan struct{}) {
	if p.bus {
		<-stop
		return
	}
	defer p.network.timer.Close()
	p.network.run(stop)
}
