package pacing

import (
	"time"

	"kvferry/internal/clock"
)

// A Bus is what joins a node's GPUs with its host memory and with its NICs, and the disk below:
// modelled, as a Link is. What the GPU sends and what comes to it share its two ways with what NICs
// send from its memory and bring there. Its methods may be called from any goroutine.
type Bus struct {
	network *network
	ways    [3]*port
}

// A Way is what a copy crosses.
type Way uint8

const (
	Up   Way = iota // out of the GPU's memory
	Down            // into it
	Disk            // from the disk to host memory or back: it does one thing at a time
)

// NewBus returns a bus of these rates, in bytes/s. The caller has it Run, and closes it.
func NewBus(pcie, disk float64, clk clock.Clock) (*Bus, error) {
	w, err := newNetwork(clk)
	if err != nil {
		return nil, err
	}
	b := &Bus{network: w}
	for way, rate := range [...]float64{Up: pcie, Down: pcie, Disk: disk} {
		b.ways[way] = newPort(rate)
	}
	return b, nil
}

// Join returns the link with the bus between it and the GPU's memory: what moves over it crosses
// both. A nil bus changes nothing, and a nil link is no modelled one.
func (b *Bus) Join(link *Link) *Link {
	if b == nil || link == nil {
		return link
	}
	l := *link
	l.bus = b
	return &l
}

// Copy has n bytes cross the bus, and calls done with the time at which they have, on a goroutine
// of the bus's. since is as that of Pacer.Move.
func (b *Bus) Copy(now, since time.Duration, n int64, way Way, done func(at time.Duration)) {
	d := new(Delivery)
	d.tell = func() { done(d.At()) }
	b.network.start(began(now, since), n, d, b.ways[way])
}

// Run tells of what has crossed the bus, or a link that was joined to it, until stop is closed.
func (b *Bus) Run(stop <-chan struct{}) { b.network.run(stop) }

// Close frees what New took, after Run has returned.
func (b *Bus) Close() { b.network.timer.Close() }
