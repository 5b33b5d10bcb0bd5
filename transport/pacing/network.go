package pacing

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"kvferry/fabric"
	"kvferry/internal/clock"
)

// A network says when what crosses modelled ports is over. Its methods may be called from any
// goroutine.
type network struct {
	clock clock.Clock
	timer clock.Timer
	kick  chan struct{}

	mu       sync.Mutex
	fabric   fabric.Network[*Delivery] // nil: another node's
	now      time.Duration             // of the fabric
	moving   int                       // in the fabric, less other nodes'
	arriving []*Delivery               // through with the ports; they take their latency. By the time at which they are over
	alarm    time.Duration             // what the timer is set to, 0 for nothing
	others   func()                    // has begin called for what other nodes have begun; nil without a ledger
}

type port = fabric.Port[*Delivery]

func newNetwork(clk clock.Clock) (*network, error) {
	timer, err := clk.NewTimer()
	if err != nil {
		return nil, fmt.Errorf("pacing: %w", err)
	}
	return &network{clock: clk, timer: timer, kick: make(chan struct{}, 1)}, nil
}

// began is when something began that is told of now: it may lie a little back, as far as nothing has
// ended since, and is now if since is 0 or yet to come.
func began(now, since time.Duration) time.Duration {
	if since > 0 {
		return min(now, since)
	}
	return now
}

// start has n bytes cross ports from at on, and take d's latency then.
func (w *network) start(at time.Duration, n int64, d *Delivery, ports ...*port) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begin(at, n, d, ports)
	w.wake()
}

// begin has n bytes move from at on, or from when something last began or ended. d is nil of what
// another node moves. The caller holds the lock, and calls wake.
func (w *network) begin(at time.Duration, n int64, d *Delivery, ports []*port) {
	w.finish(at)
	w.now = max(w.now, at)
	if d != nil {
		w.moving++
	}
	w.fabric.Start(w.now, float64(n), ports, d)
}

// wake has run look again, unless the timer is early enough.
func (w *network) wake() {
	if first, _ := w.fabric.First(); w.alarm > 0 && first >= w.alarm {
		return
	}
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// finish ends what the ports are through with by now.
func (w *network) finish(now time.Duration) {
	for next, moving := w.fabric.First(); moving && next <= now; next, moving = w.fabric.First() {
		w.now = max(w.now, next)
		d := w.fabric.Finish(w.now)
		if d == nil {
			continue
		}
		w.moving--
		d.at = next + d.latency
		i, _ := slices.BinarySearchFunc(w.arriving, d.at+1, func(a *Delivery, at time.Duration) int { return cmp.Compare(a.at, at) })
		w.arriving = slices.Insert(w.arriving, i, d)
	}
}

// run tells of what is over until stop is closed. What is not then never is.
func (w *network) run(stop <-chan struct{}) {
	var due []*Delivery
	for {
		due = w.due(due[:0], w.clock.Now())
		for _, d := range due {
			d.end()
		}
		clear(due)
		select {
		case <-w.timer.C():
		case <-w.kick:
		case <-stop:
			return
		}
	}
}

// due takes out what is over by now, and sets the timer to when something more is.
func (w *network) due(all []*Delivery, now time.Duration) []*Delivery {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.others != nil && w.moving > 0 {
		w.others()
	}
	w.finish(now)
	n := 0
	for n < len(w.arriving) && w.arriving[n].at <= now {
		n++
	}
	all = append(all, w.arriving[:n]...)
	w.arriving = slices.Delete(w.arriving, 0, n)
	w.alarm = 0
	if len(w.arriving) > 0 {
		w.alarm = w.arriving[0].at
	}
	if next, _ := w.fabric.First(); w.moving > 0 && (w.alarm == 0 || next < w.alarm) {
		w.alarm = next
	}
	if w.alarm > 0 {
		w.timer.Set(w.alarm)
	}
	return all
}
