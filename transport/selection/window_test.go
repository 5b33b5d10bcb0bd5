package selection

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"
)

// A modelled path is a link behind a TCP connection: what is queued leaves at its rate, or at
// one window a round trip as long as that is slow start's, and is completed a round trip after it
// has left.
type modelled struct {
	rate      float64 // bytes/s
	roundTrip time.Duration
	noise     float64 // share by which a round trip is longer at most

	path   Path
	meter  Meter
	posted int           // slices
	busy   time.Duration // until when what was queued is leaving
	cwnd   float64
	done   int64
}

const initialWindow = 10 * 1448

// post returns when a slice is completed.
func (m *modelled) post(now time.Duration, size int64, luck *rand.Rand) time.Duration {
	at := max(now, m.busy).Seconds()
	for left := float64(size); left > 0; {
		n := min(left, 16<<10)
		at += n / min(m.rate, m.cwnd/m.roundTrip.Seconds())
		m.cwnd = min(m.cwnd+n, 4*m.rate*m.roundTrip.Seconds()+initialWindow)
		left -= n
	}
	m.busy = time.Duration(at * 1e9)
	if m.posted == 0 {
		m.meter.Start(now)
	}
	m.posted++
	m.path.Inflight += size
	return m.busy + time.Duration((1+m.noise*luck.Float64())*float64(m.roundTrip))
}

type completion struct {
	at, posted time.Duration
	path       int
	size       int64
}

type completions []completion

func (c completions) Len() int           { return len(c) }
func (c completions) Less(i, j int) bool { return c[i].at < c[j].at }
func (c completions) Swap(i, j int)      { c[i], c[j] = c[j], c[i] }
func (c *completions) Push(x any)        { *c = append(*c, x.(completion)) }
func (c *completions) Pop() any {
	n := len(*c) - 1
	x := (*c)[n]
	*c = (*c)[:n]
	return x
}

// transfer keeps so many bytes under way or waiting, in slices, for a time, and returns what
// share of the paths' rates was delivered from warm on.
func transfer(paths []*modelled, under, size int64, warm, until time.Duration) (share float64, shares []float64) {
	luck := rand.New(rand.NewPCG(1, 1))
	var coming completions
	var from []int64
	ranks := make([]uint8, len(paths))
	now := time.Duration(0)
	waiting := under / size
	for _, m := range paths {
		m.path.Up = true
		m.cwnd = initialWindow
		m.meter.Latency.Start(0, m.roundTrip)
	}
	dispatch := func() {
		cs := make([]Path, len(paths))
		for i, m := range paths {
			cs[i] = m.path
			cs[i].Young, cs[i].Rate, cs[i].Best, cs[i].Latency, cs[i].Probing = m.meter.Young(), m.meter.Estimate(now), m.meter.Best(now), m.meter.Latency.Least(), m.meter.Latency.Probing()
		}
		for {
			p, _, ok := Choose(cs, ranks, func(i int) (int64, bool) { return size, int64(i) < waiting })
			if !ok {
				return
			}
			waiting--
			cs[p].Inflight += size
			heap.Push(&coming, completion{at: paths[p].post(now, size, luck), posted: now, path: p, size: size})
		}
	}
	dispatch()
	for len(coming) > 0 {
		c := heap.Pop(&coming).(completion)
		if now < warm && c.at >= warm {
			for _, m := range paths {
				from = append(from, m.done)
			}
		}
		if now = c.at; now >= until {
			break
		}
		m := paths[c.path]
		m.posted--
		m.path.Inflight -= c.size
		m.done += c.size
		m.meter.Latency.Completed(now, c.posted, Explained(m.meter.Latency.Least()), m.roundTrip)
		m.meter.Completed(now, c.size, m.posted == 0)
		waiting++
		dispatch()
	}
	var ideal float64
	for i, m := range paths {
		got := float64(m.done - from[i])
		ideal += m.rate * (until - warm).Seconds()
		shares = append(shares, got/(m.rate*(until-warm).Seconds()))
		share += got
	}
	return share / ideal, shares
}

// TestFill: paths of any round trip are kept full, all of them, with no more than twice what they hold
// under way.
func TestFill(t *testing.T) {
	const ms, mbit = time.Millisecond, 1e6 / 8
	for _, c := range []struct {
		name  string
		paths []*modelled
		least float64
	}{
		{"1 ms", []*modelled{{rate: 500 * mbit, roundTrip: ms}, {rate: 500 * mbit, roundTrip: ms}, {rate: 500 * mbit, roundTrip: ms}, {rate: 500 * mbit, roundTrip: ms}}, 0.99},
		{"10 ms", []*modelled{{rate: 500 * mbit, roundTrip: 10 * ms}, {rate: 500 * mbit, roundTrip: 10 * ms}, {rate: 500 * mbit, roundTrip: 10 * ms}, {rate: 500 * mbit, roundTrip: 10 * ms}}, 0.98},
		{"40 ms", []*modelled{{rate: 500 * mbit, roundTrip: 40 * ms}, {rate: 500 * mbit, roundTrip: 40 * ms}, {rate: 500 * mbit, roundTrip: 40 * ms}, {rate: 500 * mbit, roundTrip: 40 * ms}}, 0.97},
		{"100 ms", []*modelled{{rate: 500 * mbit, roundTrip: 100 * ms}, {rate: 500 * mbit, roundTrip: 100 * ms}, {rate: 500 * mbit, roundTrip: 100 * ms}, {rate: 500 * mbit, roundTrip: 100 * ms}}, 0.95},
		{"one of 40", []*modelled{{rate: 500 * mbit, roundTrip: ms}, {rate: 500 * mbit, roundTrip: ms}, {rate: 500 * mbit, roundTrip: 40 * ms}, {rate: 500 * mbit, roundTrip: ms}}, 0.96},
		{"unequal", []*modelled{{rate: 1000 * mbit, roundTrip: 20 * ms}, {rate: 500 * mbit, roundTrip: 2 * ms}, {rate: 500 * mbit, roundTrip: 5 * ms}, {rate: 250 * mbit, roundTrip: 10 * ms}}, 0.96},
		{"noisy", []*modelled{{rate: 500 * mbit, roundTrip: 20 * ms, noise: 0.5}, {rate: 500 * mbit, roundTrip: 20 * ms, noise: 0.5}, {rate: 500 * mbit, roundTrip: 20 * ms}, {rate: 500 * mbit, roundTrip: 20 * ms}}, 0.96},
		{"fast", []*modelled{{rate: 12.5e9, roundTrip: 50 * time.Microsecond}, {rate: 12.5e9, roundTrip: 50 * time.Microsecond}}, 0.98},
	} {
		t.Run(c.name, func(t *testing.T) {
			under, size := int64(32<<20), int64(256<<10)
			if c.paths[0].rate > 1e9 {
				under, size = 1<<30, 1<<20
			}
			paths := c.paths
			warm := 2 * time.Second
			until := 20 * time.Second
			if paths[0].rate > 1e9 {
				warm, until = 200*ms, time.Second
			}
			got, each := transfer(paths, under, size, warm, until)
			t.Logf("%.3f, each %.3f", got, each)
			if got < c.least {
				t.Errorf("%.3f of ideal, want %.2f; each %.3f", got, c.least, each)
			}
		})
	}
}
