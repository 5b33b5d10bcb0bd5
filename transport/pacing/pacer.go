package pacing

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"kvferry/clock"
	"kvferry/fabric"
)

// A Pacer says when what moves over a node's modelled NIC would have arrived. What moves at once
// shares the NIC's rate, each way by itself, as package fabric has it. Its methods may be called
// from any goroutine.
type Pacer struct {
	link  Link
	clock clock.Clock
	timer clock.Timer
	kick  chan struct{}

	mu       sync.Mutex
	network  fabric.Network[*Delivery]
	now      time.Duration // of the network
	tx, rx   *fabric.Port[*Delivery]
	arriving []*Delivery // the NIC is through with them; they take its latency
}

// A Delivery is something that moves over a modelled link. A nil Delivery has been delivered.
type Delivery struct {
	at time.Duration // of the Pacer until it is over

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

// New returns a pacer of a link. The caller has it Run, which frees what it has.
func New(link Link, clk clock.Clock) (*Pacer, error) {
	timer, err := clk.NewTimer()
	if err != nil {
		return nil, fmt.Errorf("pacing: %w", err)
	}
	return &Pacer{
		link: link, clock: clk, timer: timer, kick: make(chan struct{}, 1),
		tx: fabric.NewPort[*Delivery](link.BytesPerSecond), rx: fabric.NewPort[*Delivery](link.BytesPerSecond),
	}, nil
}

// Move has n bytes go over the link, out of the node or into it. since is when that began; it
// may lie a little back, as far as nothing has ended since, and counts from now if it is 0 or yet
// to come.
func (p *Pacer) Move(now, since time.Duration, n int64, in bool) *Delivery {
	d := new(Delivery)
	port := p.tx
	if in {
		port = p.rx
	}
	if since > 0 {
		now = min(now, since)
	}
	p.mu.Lock()
	p.now = max(p.now, now)
	before, moving := p.network.First()
	p.network.Start(p.now, float64(n), []*fabric.Port[*Delivery]{port}, d)
	first, _ := p.network.First()
	p.mu.Unlock()
	if moving && first >= before {
		return d // the timer is early enough
	}
	select {
	case p.kick <- struct{}{}:
	default:
	}
	return d
}

// Run tells of what has been delivered until stop is closed. What has not then never is.
func (p *Pacer) Run(stop <-chan struct{}) {
	defer p.timer.Close()
	var due []*Delivery
	for {
		due = p.due(due[:0], p.clock.Now())
		for _, d := range due {
			d.end()
		}
		clear(due)
		select {
		case <-p.timer.C():
		case <-p.kick:
		case <-stop:
			return
		}
	}
}

// due takes out what is delivered by now, and sets the timer to when something more is.
func (p *Pacer) due(all []*Delivery, now time.Duration) []*Delivery {
	p.mu.Lock()
	defer p.mu.Unlock()
	next, moving := p.network.First()
	for ; moving && next <= now; next, moving = p.network.First() {
		at := next
		p.now = max(p.now, at)
		d := p.network.Finish(p.now)
		d.at = at + p.link.Latency
		p.arriving = append(p.arriving, d)
	}
	n := 0
	for n < len(p.arriving) && p.arriving[n].at <= now {
		n++
	}
	all = append(all, p.arriving[:n]...)
	p.arriving = slices.Delete(p.arriving, 0, n)
	if len(p.arriving) > 0 && (!moving || p.arriving[0].at < next) {
		next, moving = p.arriving[0].at, true
	}
	if moving {
		p.timer.Set(next)
	}
	return all
}
