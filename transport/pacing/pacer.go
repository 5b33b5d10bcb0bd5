package pacing

import (
	"fmt"
	"sync"
	"time"

	"kvferry/fabric"
	"kvferry/internal/clock"
)

// A Pacer says when what moves over a node's modelled NIC would have arrived. What moves at once
// shares the NIC's rate, each way by itself, as package fabric has it; with a ledger it shares the
// NIC at the other end too, with what other nodes move. Its methods may be called from any goroutine.
type Pacer struct {
	latency time.Duration
	network *network
	tx, rx  []*port // that what goes out crosses, and what comes in
	bus     bool    // the network is a bus's, which runs it
	ledger  *ledger // nil: this node knows of no other
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

// New returns a pacer of a link. The caller has it Run, which frees what it has. A ledger, if one is
// named, is a file that the nodes of this machine share, and rails are those that they know this
// one by.
func New[R interface{ Addr() string }](link Link, file string, clk clock.Clock, rails []R) (*Pacer, error) {
	p := &Pacer{latency: link.Latency, tx: []*port{newPort(link.BytesPerSecond)}, rx: []*port{newPort(link.BytesPerSecond)}}
	if b := link.bus; b != nil {
		p.network, p.bus = b.network, true
		p.tx, p.rx = append(p.tx, b.ways[Up]), append(p.rx, b.ways[Down])
	} else {
		var err error
		if p.network, err = newNetwork(clk); err != nil {
			return nil, err
		}
	}
	if file == "" {
		return p, nil
	}
	var addrs []string
	for _, r := range rails {
		addrs = append(addrs, r.Addr())
	}
	var err error
	if p.ledger, err = openLedger(file, p.network, nic{p.tx, p.rx}, line{Addrs: addrs, Rate: link.BytesPerSecond}); err != nil {
		p.close()
		return nil, fmt.Errorf("pacing: %w", err)
	}
	return p, nil
}

// Move has n bytes go over the link, out of the node or into it, to or from a peer's rail. since is
// when that began; it may lie a little back, as far as nothing has ended since, and counts from now
// if it is 0 or yet to come. An error is the ledger's.
func (p *Pacer) Move(now, since time.Duration, n int64, in bool, peer string) (*Delivery, error) {
	at, d, ports := began(now, since), &Delivery{latency: p.latency}, p.tx
	if in {
		ports = p.rx
	}
	if p.ledger == nil || n == 0 {
		p.network.start(at, n, d, ports...)
		return d, nil
	}
	if err := p.ledger.move(at, n, d, in, peer); err != nil {
		return nil, fmt.Errorf("pacing: %w", err)
	}
	return d, nil
}

// Run tells of what has been delivered until stop is closed. What has not then never is.
func (p *Pacer) Run(stop <-chan struct{}) {
	defer p.close()
	if p.bus {
		<-stop
		return
	}
	p.network.run(stop)
}

func (p *Pacer) close() {
	if p.ledger != nil {
		p.ledger.close()
	}
	if !p.bus {
		p.network.timer.Close()
	}
}
