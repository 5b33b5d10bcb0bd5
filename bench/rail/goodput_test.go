package rail

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A testLink carries a test's load as TCP does, in steps of a millisecond.
type testLink struct {
	rate  float64 // bytes a second
	trip  time.Duration
	block int64
	// hold is how often a packet is lost: all that comes behind it counts a round trip later.
	hold time.Duration
	// dip is how often the rate is at half for a tenth of that time.
	dip time.Duration
	// slow is how much faster the rate gets in each round trip, from a window of 14 kB.
	slow float64
	open float64 // bytes of that window, if it has grown before
}

// run moves a load over the link until the meter has seen enough, and returns when that was.
func (l *testLink) run(m *rateMeter) time.Duration {
	const step = time.Millisecond
	var sent, window float64
	open := max(l.open, 14e3) // bytes a round trip
	var counted int64
	past := make([]float64, l.trip/step+1) // sent in the last round trip: a ring
	for now := step; ; now += step {
		if m.Step(now, counted) == enough {
			return now
		}
		if window = float64(m.Window()); now > l.trip {
			open *= 1 + (l.slow-1)*step.Seconds()/l.trip.Seconds()
		}
		r := l.rate
		if l.dip > 0 && now%l.dip < l.dip/10 {
			r /= 2
		}
		i := int(now/step) % len(past)
		back := past[i] // sent a round trip ago: it is known to have arrived
		room := min(open, window) - (sent - back)
		sent += max(0, min(r*step.Seconds(), room))
		past[i] = sent
		if l.hold > 0 && now > l.trip && now%l.hold < l.trip {
			continue
		}
		counted = int64(back) / l.block * l.block
	}
}

// TestMeter: on every link the rate is found within 4 %, is never above the link's (0.2 % are of
// the steps of a millisecond), and no more time is taken than it needs.
func TestMeter(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		testLink
		within time.Duration
	}{
		"memory":                      {testLink{rate: 8e9, trip: ms, block: 1 << 20, slow: 2}, 1200 * ms},
		"10 Gbit/s":                   {testLink{rate: 1.2e9, trip: ms, block: 1 << 20, slow: 2}, 1300 * ms},
		"1 Gbit/s, 20 ms":             {testLink{rate: 119e6, trip: 20 * ms, block: 512 << 10, slow: 2}, 2000 * ms},
		"1 Gbit/s, 100 ms":            {testLink{rate: 119e6, trip: 100 * ms, block: 512 << 10, slow: 2, open: 3e6}, 4000 * ms},
		"10 Mbit/s":                   {testLink{rate: 1.19e6, trip: ms, block: leastBlock, slow: 2}, 2000 * ms},
		"10 Mbit/s, 100 ms":           {testLink{rate: 1.19e6, trip: 100 * ms, block: leastBlock, slow: 2}, 5000 * ms},
		"10 Mbit/s, in lumps":         {testLink{rate: 1.19e6, trip: 20 * ms, block: 512 << 10, slow: 2}, 10001 * ms},
		"1 Mbit/s":                    {testLink{rate: 119e3, trip: ms, block: leastBlock, slow: 2}, 10001 * ms},
		"80 Mbit/s, 20 ms, lossy":     {testLink{rate: 9.5e6, trip: 20 * ms, block: leastBlock, slow: 2, hold: 170 * ms}, 4000 * ms},
		"500 Mbit/s, 100 ms, lossy":   {testLink{rate: 59e6, trip: 100 * ms, block: 256 << 10, slow: 2, hold: 370 * ms}, 10001 * ms},
		"500 Mbit/s, opens slowly":    {testLink{rate: 59e6, trip: 40 * ms, block: 256 << 10, slow: 1.3}, 6000 * ms},
		"80 Mbit/s, 5 % less by dips": {testLink{rate: 9.5e6, trip: 20 * ms, block: leastBlock, slow: 2, dip: 250 * ms}, 10001 * ms},
	} {
		m := &rateMeter{Least: time.Second, Most: 10 * time.Second}
		took := c.run(m)
		got, watched := m.Rate()
		want := c.rate
		if c.dip > 0 {
			want *= 0.95
		}
		if got > 1.002*c.rate || got < 0.96*want || got > 1.04*want {
			t.Errorf("%s: %.4g of %.4g bytes/s, watched for %v", name, got, want, watched)
		}
		if took > c.within {
			t.Errorf("%s took %v", name, took)
		}
		if trips := c.trip + windowTime; float64(m.Window()) < 2*c.rate*trips.Seconds() {
			t.Errorf("%s: %d bytes under way are not enough", name, m.Window())
		}
	}
}

// TestNothing: where nothing arrives, or once, there is no rate, and it ends in time.
func TestNothing(t *testing.T) {
	for _, arrived := range []int64{0, 5} {
		m := &rateMeter{Least: time.Second, Most: 2 * time.Second}
		phase := m.Step(1, 0)
		for now := time.Millisecond; phase != enough; now += time.Millisecond {
			if phase = m.Step(now, arrived); now > 3*time.Second {
				t.Fatal("it does not end")
			}
		}
		if r, _ := m.Rate(); r != 0 {
			t.Errorf("%v bytes/s", r)
		}
	}
}

// TestStep: a transcript. The rate doubles for three turns and is flat then; what came while it was
// not steady does not count.
func TestStep(t *testing.T) {
	m := &rateMeter{Least: 100 * time.Millisecond, Most: time.Second}
	for _, c := range []struct {
		at      time.Duration // ms
		arrived int64
		want    ratePhase
		window  int64
	}{
		{1000, 0, filling, leastWindow},
		{1020, 0, filling, leastWindow},
		{1040, 100 << 10, filling, leastWindow}, // a turn is 40 ms
		{1080, 500 << 10, filling, 4 * 600 << 10},
		{1120, 1300 << 10, filling, 4 * 1200 << 10},
		{1160, 2900 << 10, filling, 4 * 2400 << 10},
		{1200, 4500 << 10, filling, 4 * 2400 << 10},
		{1240, 6000 << 10, filling, 4 * 2400 << 10},
		{1280, 7600 << 10, steady, 9200 << 10}, // 4 x what comes in the 37.5 ms without those of the first bytes, and 20
		{1320, 9200 << 10, steady, 9200 << 10},
		{1360, 10800 << 10, steady, 9200 << 10},
		{1400, 12400 << 10, steady, 9200 << 10},
		{1480, 15600 << 10, steady, 9200 << 10},
		{1560, 18800 << 10, steady, 9200 << 10},
		{1640, 22000 << 10, steady, 9200 << 10},
		{1720, 25200 << 10, steady, 9200 << 10},
		{1800, 28400 << 10, steady, 9200 << 10},
		{1880, 31600 << 10, steady, 9200 << 10},
		{1920, 33200 << 10, enough, 9200 << 10}, // 8 times the 80 ms in which nothing came
	} {
		if got := m.Step(c.at*time.Millisecond, c.arrived); got != c.want || m.Window() != c.window {
			t.Errorf("at %d ms: phase %v, window %d; want %v, %d", c.at, got, m.Window(), c.want, c.window)
		}
	}
	if r, watched := m.Rate(); r < 40959e3 || r > 40961e3 || watched < 300*time.Millisecond {
		t.Errorf("%v bytes/s for %v", r, watched)
	}
}

// TestStall: what stalls for most of the time has a rate still, of all of it.
func TestStall(t *testing.T) {
	m := &rateMeter{Least: time.Second, Most: 10 * time.Second}
	for now, phase := time.Millisecond, filling; phase != enough; now += time.Millisecond {
		phase = m.Step(now, int64(now/(1700*time.Millisecond)*100e3)+int64(min(now, time.Second)/1e3))
	}
	if r, watched := m.Rate(); r < 50e3 || r > 65e3 || watched < 2*time.Second {
		t.Errorf("%v bytes/s for %v", r, watched)
	}
}

func TestBlock(t *testing.T) {
	for rate, want := range map[float64]int64{0: leastBlock, 1.25e6: leastBlock, 62e6: 256 << 10, 125e6: 512 << 10, 1.25e9: mostBlock, 1e12: mostBlock} {
		if got := rateBlock(rate); got != want {
			t.Errorf("of %g bytes/s: %d, want %d", rate, got, want)
		}
	}
}

// TestWatch: it looks until it has seen enough, and ends with the load and with its context.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		now := func() time.Duration { return time.Since(began) }
		arrived := func() int64 { return int64(1e8 * now().Seconds()) }
		m := &rateMeter{Least: time.Second, Most: time.Minute}
		window := int64(0)
		m.Watch(t.Context(), nil, now, arrived, func(n int64) { window = n })
		if r, _ := m.Rate(); r < 0.99e8 || r > 1.01e8 || window < 6e6 || now() > 2*time.Second {
			t.Errorf("%v bytes/s, %d under way, after %v", r, window, now())
		}
		ended := make(chan struct{})
		close(ended)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		began = time.Now()
		(&rateMeter{Least: time.Hour, Most: time.Hour}).Watch(t.Context(), ended, now, arrived, func(int64) {})
		(&rateMeter{Least: time.Hour, Most: time.Hour}).Watch(over, nil, now, arrived, func(int64) {})
		if now() > 0 {
			t.Errorf("it went on for %v", now())
		}
	})
}
