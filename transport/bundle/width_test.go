package bundle

import (
	"testing"
	"time"
)

// A path plays an endpoint, as fast as its number of connections makes it.
type path struct {
	w    Width
	now  time.Duration
	l    Look
	rate func(conns int) float64 // bytes/s; 0 is at rest
	loss float64                 // packets
	deaf bool                    // no connection can be added
}

func newPath(rate func(int) float64) *path {
	return &path{l: Look{Conns: 1}, rate: rate, now: time.Minute}
}

// pass lets time pass and returns the numbers of connections that there were, without repetitions.
func (p *path) pass(d time.Duration) (conns []int) {
	for end := p.now + d; p.now < end; p.now += Often {
		rate := p.rate(p.l.Conns)
		p.l.Busy = rate > 0
		p.l.Moved += uint64(rate * Often.Seconds())
		p.l.Resent += uint64(p.loss * rate * Often.Seconds() / packet)
		if more := p.w.Step(p.now, p.l); more < 0 || !p.deaf {
			p.l.Conns += more
		}
		if n := len(conns); n == 0 || conns[n-1] != p.l.Conns {
			conns = append(conns, p.l.Conns)
		}
	}
	return conns
}

// cores is a path of which each connection carries 4 GB/s, and all together not more than most.
func cores(most float64) func(int) float64 {
	return func(conns int) float64 { return min(4e9*float64(conns), most) }
}

func equal(t *testing.T, what string, got []int, want ...int) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %v connections, want %v", what, got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: %v connections, want %v", what, got, want)
		}
	}
}

// TestWidth: as many connections as make the path faster, and one more for a moment.
func TestWidth(t *testing.T) {
	p := newPath(cores(11e9))
	equal(t, "three fill it", p.pass(20*time.Second), 1, 2, 3, 4, 3)
	if conns := p.pass(10 * time.Minute); len(conns) < 3 || len(conns) > 15 || p.l.Conns != 3 {
		t.Errorf("in ten minutes of no gain: %v", conns)
	}
	// There is always as much as one core carries: it ends at the most there may be.
	p = newPath(cores(1e12))
	equal(t, "faster with each", p.pass(time.Minute), 1, 2, 3, 4, 5, 6)
}

// TestWidthSlow: a path that any core carries has one connection, always.
func TestWidthSlow(t *testing.T) {
	for _, rate := range []float64{60e6, 240e6, 0.99e9} {
		p := newPath(func(int) float64 { return rate })
		equal(t, "slow", p.pass(time.Hour), 1)
	}
}

// TestWidthFull: what a fast link carries does not grow with connections: each trial is over in three
// seconds, and they become rare.
func TestWidthFull(t *testing.T) {
	p := newPath(cores(1.2e9))
	two := time.Duration(0)
	for range int(time.Hour / Often) {
		if p.pass(Often); p.l.Conns > 1 {
			two += Often
		}
	}
	if two < time.Second || two > 36*time.Second {
		t.Errorf("%v of an hour were trials", two)
	}
}

// TestWidthLosses: a path that loses packets is full.
func TestWidthLosses(t *testing.T) {
	p := newPath(cores(11e9))
	p.loss = 1e-3
	equal(t, "loses", p.pass(time.Hour), 1)
	p.loss = 1e-5
	equal(t, "loses next to nothing", p.pass(20*time.Second), 1, 2, 3, 4, 3)
}

// TestWidthSentForNothing: packets that were taken for lost and have arrived are no losses.
func TestWidthSentForNothing(t *testing.T) {
	p := newPath(cores(11e9))
	p.l.Resent = 1000
	for range 20 * time.Second / Often {
		p.pass(Often)
		p.l.Resent--
	}
	equal(t, "fewer are lost at each look", []int{p.l.Conns}, 3)
}

// TestWidthRest: connections go when the path is at rest for long, and a trial that ends in rest is none.
func TestWidthRest(t *testing.T) {
	p := newPath(cores(11e9))
	p.pass(20 * time.Second)
	carry := p.rate
	p.rate = func(int) float64 { return 0 }
	equal(t, "at rest for a moment", p.pass(restful/2), 3)
	equal(t, "at rest", p.pass(time.Minute), 3, 2, 1)
	p.rate = carry
	p.pass(2500 * time.Millisecond)
	if p.l.Conns != 2 {
		t.Fatalf("%d connections in the trial", p.l.Conns)
	}
	p.rate = func(int) float64 { return 0 }
	equal(t, "at rest in a trial", p.pass(time.Second), 1)
	p.rate = carry
	equal(t, "a pause after that", p.pass(firstPause-2*time.Second), 1)
	equal(t, "and again", p.pass(20*time.Second), 1, 2, 3, 4, 3)

	// Bursts, with pauses between them, show no rate.
	p = newPath(nil)
	p.rate = func(conns int) float64 {
		if p.now%(500*time.Millisecond) < Often {
			return 0
		}
		return carry(conns)
	}
	equal(t, "bursts", p.pass(time.Minute), 1)
}

// TestWidthRefused: a connection that cannot be made is asked for again, ever more rarely, and none is
// taken back for it.
func TestWidthRefused(t *testing.T) {
	p := newPath(cores(11e9))
	p.deaf = true
	equal(t, "refused", p.pass(10*time.Minute), 1)
	p.deaf = false
	p.pass(mostPause + time.Minute)
	equal(t, "at last", p.pass(Often), 3)
}
