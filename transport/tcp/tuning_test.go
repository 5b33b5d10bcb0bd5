package tcp

import (
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// A history is a connection as the kernel shows it, look by look.
type history struct {
	t   *testing.T
	u   tuning
	now time.Duration
	i   info
}

func begin(t *testing.T, roundTrip time.Duration) *history {
	return &history{t: t, u: tuning{losses: &losses{}}, i: info{RTT: roundTrip, MinRTT: roundTrip, SendBuffer: 87380, RecvBuffer: 131072, Congestion: cubic, Window: 14480}}
}

// look has the connection send and lose so many segments since the last look, and does what is
// decided.
func (h *history) look(sent, lost uint64) decision {
	h.now += tuneEvery
	h.i.Sent += sent
	h.i.Resent += lost
	d := h.u.step(h.now, h.i)
	if d.Congestion != "" {
		h.i.Congestion = d.Congestion
	}
	if d.SendBuffer > 0 {
		h.i.SendBuffer = d.SendBuffer
	}
	if d.RecvBuffer > 0 {
		h.i.RecvBuffer = d.RecvBuffer
	}
	return d
}

// until looks for so long, and returns when congestion control changed, or 0.
func (h *history) until(d time.Duration, sent, lost uint64) time.Duration {
	h.t.Helper()
	for from := h.now; h.now-from < d; {
		if got := h.look(sent, lost); got.Congestion != "" {
			return h.now - from
		}
	}
	return 0
}

// TestLossWithoutQueue: a path that loses packets and has no queue goes to bbr within a second or
// so, comes back when nothing was lost for long, and stays longer the next time.
func TestLossWithoutQueue(t *testing.T) {
	h := begin(t, 2*ms)
	if took := h.until(10*time.Second, 1000, 0); took != 0 {
		t.Fatalf("changed without a loss after %v", took)
	}
	h.i.RTT = 2500 * time.Microsecond
	took := h.until(10*time.Second, 1000, 1)
	if h.i.Congestion != bbr || took > 2*time.Second {
		t.Fatalf("after %v of 0.1 %% loss: %s", took, h.i.Congestion)
	}
	// Losses go on: it stays.
	if took := h.until(5*time.Minute, 1000, 1); took != 0 {
		t.Fatalf("back after %v although packets are lost", took)
	}
	for calm := leastCalm; calm <= 4*leastCalm; calm *= 2 {
		took := h.until(time.Hour, 1000, 0)
		if h.i.Congestion != cubic || took < calm-tuneEvery || took > calm+2*tuneEvery {
			t.Fatalf("%s after %v without a loss, want %v", h.i.Congestion, took, calm)
		}
		if h.until(10*time.Second, 1000, 5); h.i.Congestion != bbr {
			t.Fatal("losses do not bring it back to bbr")
		}
	}
}

// TestSentForNothing: packets that were late, and were sent again for nothing, are no loss once the peer
// has said so.
func TestSentForNothing(t *testing.T) {
	h := begin(t, 2*ms)
	for range 100 {
		h.until(2*time.Second, 1000, 0)
		h.look(1000, 20)
		h.i.Resent -= 20
		if h.look(1000, 0); h.i.Congestion != cubic {
			t.Fatalf("after %v: %s", h.now, h.i.Congestion)
		}
	}
}

// TestLossOfQueue: what is lost because a queue was full is cubic's own doing.
func TestLossOfQueue(t *testing.T) {
	h := begin(t, 2*ms)
	h.i.RTT = 40 * ms
	if took := h.until(time.Minute, 1000, 3); took != 0 {
		t.Errorf("changed after %v: %s", took, h.i.Congestion)
	}
}

// TestJitter: round trips that vary are no queue.
func TestJitter(t *testing.T) {
	h := begin(t, 2*ms)
	h.i.RTT, h.i.Jitter = 12*ms, 9*ms
	if h.until(10*time.Second, 1000, 2); h.i.Congestion != bbr {
		t.Error("round trips of 2 to 22 ms were taken for a queue")
	}
}

// TestManyConnections: several connections with one host decide together, as soon as one that carries as
// much does, and all are what one is, one that is made later at its first look.
func TestManyConnections(t *testing.T) {
	alone := begin(t, 20*ms)
	took := alone.until(time.Minute, 1000, 1)
	var all []*history
	shared := &losses{}
	for range 4 {
		h := begin(t, 20*ms)
		h.u.losses = shared
		all = append(all, h)
	}
	changed := time.Duration(0)
	for look := 0; changed == 0 && look < 1000; look++ {
		for i, h := range all {
			lost := uint64(0)
			if look%4 == i {
				lost = 1
			}
			if h.look(250, lost); h.i.Congestion == bbr {
				changed = h.now
			}
		}
	}
	if changed == 0 || changed > took+2*tuneEvery {
		t.Errorf("four change after %v, one that carries as much after %v", changed, took)
	}
	for i, h := range all {
		if h.look(250, 0); h.i.Congestion != bbr {
			t.Errorf("connection %d keeps %s", i, h.i.Congestion)
		}
	}
	late := begin(t, 20*ms)
	late.u.losses, late.now = shared, changed
	if d := late.look(0, 0); d.Congestion != bbr || d.Why == "" {
		t.Errorf("one that is made later: %+v", d)
	}
	// One that is at rest does not keep the others from cubic; and all go back.
	for range (leastCalm + time.Second) / tuneEvery {
		for _, h := range all {
			h.look(250, 0)
		}
		late.look(0, 0)
	}
	for i, h := range append(all, late) {
		if h.i.Congestion != cubic {
			t.Errorf("connection %d keeps %s", i, h.i.Congestion)
		}
	}
}

// TestSlowLoss: on cubic a path that loses much carries little, and is known by few losses.
func TestSlowLoss(t *testing.T) {
	h := begin(t, 40*ms)
	for h.now < 3*time.Second && h.i.Congestion == cubic {
		h.look(15, 0)
		h.look(15, 1)
	}
	if h.i.Congestion != bbr {
		t.Error("300 packets a second, 10 of them lost: cubic after 3 s")
	}
}

// TestShrunken: on a long path cubic carries ever less, and so sees ever fewer losses: few of them are
// enough once its window is a part of what it was, though no queue ever stood. On a path that became
// narrower, or was always so, a queue stands.
func TestShrunken(t *testing.T) {
	long := func(window int64, trip time.Duration) *history {
		h := begin(t, 100*ms)
		h.i.Window = 1 << 20
		h.until(2*time.Second, 30, 0) // it filled the path
		h.i.Window, h.i.RTT = window, trip
		return h
	}
	// lossy loses a packet every two seconds, at 300 a second.
	lossy := func(h *history) time.Duration {
		for from := h.now; h.now < from+12*time.Second; {
			h.until(2*time.Second, 15, 0)
			if h.look(15, 1).Congestion != "" {
				return h.now - from
			}
		}
		return 0
	}
	if took := lossy(long(50_000, 100*ms)); took == 0 || took > 5*time.Second {
		t.Errorf("a twentieth of the window, no queue: bbr after %v", took)
	}
	for name, h := range map[string]*history{
		"a window as it was": long(900_000, 100*ms), "a queue": long(50_000, 160*ms),
	} {
		if took := lossy(h); took != 0 {
			t.Errorf("%s: bbr after %v", name, took)
		}
	}
	// What one burst loses, in half a second, is looked at once.
	h := long(50_000, 100*ms)
	for range 10 {
		if h.look(500, 1).Congestion != "" {
			t.Fatal("a burst was taken for a path that loses packets")
		}
	}
}

// TestSlowStart: a window that is in use, on a path that never lost a packet and has no queue, is too
// small. That is found once.
func TestSlowStart(t *testing.T) {
	stuck := func() *history {
		h := begin(t, 40*ms)
		h.i.Window, h.i.Unacked = 500_000, 490_000
		return h
	}
	for name, change := range map[string]func(*info){
		"slow start goes on":     func(i *info) { i.SlowStart = true },
		"the window is not used": func(i *info) { i.Unacked = 300_000 },
		"a queue stands":         func(i *info) { i.RTT = 44 * ms },
		"packets were lost":      func(i *info) { i.Resent = 1 },
		"a short path":           func(i *info) { i.RTT, i.MinRTT = ms, ms },
	} {
		h := stuck()
		change(&h.i)
		if took := h.until(10*time.Second, 100, 0); took != 0 {
			t.Errorf("%s: %s after %v", name, h.i.Congestion, took)
		}
	}
	h := stuck()
	if took := h.until(10*time.Second, 100, 0); h.i.Congestion != bbr || took > time.Second {
		t.Errorf("%s after %v", h.i.Congestion, took)
	}
	if took := h.until(time.Hour, 100, 0); h.i.Congestion != cubic || took < leastCalm-tuneEvery {
		t.Errorf("%s after %v", h.i.Congestion, took)
	}
	if h.until(time.Hour, 100, 0); h.i.Congestion != cubic {
		t.Error("a second time")
	}
}

// TestRareLoss: one packet in 10,000 is less than bbr costs; and a path that was left alone shows
// nothing.
func TestRareLoss(t *testing.T) {
	h := begin(t, 2*ms)
	for range 100 {
		if took := h.until(500*ms, 1000, 0); took != 0 {
			t.Fatal("changed without a loss")
		}
		if h.look(1000, 1).Congestion != "" {
			t.Fatal("changed for a loss of 0.01 %")
		}
	}
	h.i.Congestion, h.u.losses.to = bbr, bbr
	if took := h.until(time.Hour, 0, 0); took != 0 {
		t.Errorf("back after %v at rest", took)
	}
}

// TestChosen: what the user has chosen stays.
func TestChosen(t *testing.T) {
	h := begin(t, 20*ms)
	h.u = tuning{congestionFixed: true, sendFixed: true}
	h.i.Rate, h.i.Window = 1e9, 100<<20
	for range 1000 {
		if d := h.look(1000, 10); d.Congestion != "" || d.SendBuffer != 0 {
			t.Fatalf("%+v", d)
		}
	}
}

// TestBuffers: a send buffer holds two windows, a receive buffer what comes in two round trips;
// they grow by half again and more at a time, and end at a bound. On a short path the send buffer is
// fixed, and the receive buffer the kernel's.
func TestBuffers(t *testing.T) {
	h := begin(t, 100*ms)
	steps := 0
	for h.i.Window = 14480; h.i.Window < 1<<30; h.i.Window += h.i.Window / 8 {
		if h.look(10, 0).SendBuffer > 0 {
			steps++
		}
		if h.i.SendBuffer < mostBuffer && int64(h.i.SendBuffer) < 4*h.i.Window {
			t.Fatalf("%d bytes for a window of %d", h.i.SendBuffer, h.i.Window)
		}
	}
	if h.i.SendBuffer != mostBuffer || steps > 30 {
		t.Errorf("%d bytes after %d steps", h.i.SendBuffer, steps)
	}
	h = begin(t, 100*ms)
	for range 100 {
		h.i.Received += uint64(62.5e6 * tuneEvery.Seconds())
		h.look(10, 0)
	}
	if want := 4 * 6_250_000; h.i.RecvBuffer < want || h.i.RecvBuffer > 2*want {
		t.Errorf("%d bytes to receive 62.5 MB/s at 100 ms", h.i.RecvBuffer)
	}
	h = begin(t, ms/20)
	h.i.Window = 100 << 20
	for range 100 {
		h.i.Received += 1 << 30
		h.look(10, 0)
	}
	if h.i.SendBuffer != shortPath || h.i.RecvBuffer != 131072 {
		t.Errorf("on a short path %d and %d bytes", h.i.SendBuffer, h.i.RecvBuffer)
	}
	h = begin(t, 0)
	if d := h.look(10, 0); d != (decision{}) {
		t.Errorf("before a round trip is known: %+v", d)
	}
}

// TestWhy: who reads the log is told of the path.
func TestWhy(t *testing.T) {
	h := begin(t, 2*ms)
	for range 1000 {
		if d := h.look(1000, 2); d.Congestion != "" {
			if !strings.Contains(d.Why, "0.2 % of its packets") || !strings.Contains(d.Why, "2ms") {
				t.Error(d.Why)
			}
			return
		}
	}
	t.Error("never changed")
}
