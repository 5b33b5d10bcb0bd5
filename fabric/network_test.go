package fabric

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A link of 100 bytes/s shared by two transfers of 100 bytes that start a second
// apart: the first has it alone, then they share, then the second has it alone.
func TestFairSharing(t *testing.T) {
	n := new(Network[*int])
	a, b := NewPort[*int](100), NewPort[*int](100)
	over := run(t, n, []start{
		{0, 150, []*Port[*int]{a, b}},
		{time.Second, 150, []*Port[*int]{a, b}},
	})
	// 100 alone, then 50 at 50/s each: the first ends at 2 s; the second has 100 left.
	for i, want := range []time.Duration{2 * time.Second, 3 * time.Second} {
		if d := over[i] - want; d < 0 || d > time.Microsecond {
			t.Errorf("transfer %d ends at %v, want %v", i, over[i], want)
		}
	}
}

// Max-min: what one transfer cannot use because its other end is slow, the
// others do.
func TestUnusedShareGoesToOthers(t *testing.T) {
	n := new(Network[*int])
	fast, slow, other := NewPort[*int](100), NewPort[*int](10), NewPort[*int](100)
	over := run(t, n, []start{
		{0, 10, []*Port[*int]{fast, slow}},
		{0, 90, []*Port[*int]{fast, other}},
	})
	for i, at := range over {
		if d := at - time.Second; d < 0 || d > time.Microsecond {
			t.Errorf("transfer %d ends at %v, want 1s: 10 and 90 bytes/s", i, at)
		}
	}
}

type start struct {
	at    time.Duration
	bytes float64
	ports []*Port[*int]
}

// run goes through starts, in order of time, and returns when each was over.
func run(tb testing.TB, n *Network[*int], starts []start) []time.Duration {
	over := make([]time.Duration, len(starts))
	which := map[*int]int{}
	now := time.Duration(0)
	left := len(starts)
	for i := 0; left > 0; {
		due, moving := n.First()
		if i < len(starts) && (!moving || starts[i].at <= due) {
			s := starts[i]
			now = s.at
			t := new(int)
			which[t] = i
			n.Start(now, s.bytes, s.ports, t)
			i++
			continue
		}
		if !moving {
			tb.Fatalf("%d transfers never end", left)
		}
		if due < now {
			tb.Fatalf("time runs backwards: %v after %v", due, now)
		}
		now = due
		over[which[n.Finish(now)]] = now
		left--
	}
	return over
}

// TestMaxMin compares the rates of random flows, as they come and go, with those
// of the definition: every flow is held back by a port that is full and on which
// no other flow is faster.
func TestMaxMin(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for trial := range 200 {
		n := new(Network[*int])
		ports := make([]*Port[*int], 2*(1+rng.IntN(5))) // the first half send, the others receive
		uplink := NewPort[*int](60)
		for i := range ports {
			ports[i] = NewPort[*int]([]float64{10, 25, 100}[rng.IntN(3)])
		}
		now := time.Duration(0)
		moved, ended, started := 0.0, 0, 0
		finish := func() {
			n.Finish(now)
			ended++
		}
		for range 100 {
			if due, moving := n.First(); moving && rng.IntN(2) == 0 {
				now = due
				finish()
			} else {
				tx, rx := rng.IntN(len(ports)/2), len(ports)/2+rng.IntN(len(ports)/2)
				bytes := 1 + rng.Float64()*100
				moved += bytes
				started++
				over := []*Port[*int]{ports[tx], ports[rx]}
				if rng.IntN(3) == 0 {
					over = []*Port[*int]{ports[tx], uplink, ports[rx]}
				}
				n.Start(now, bytes, over, new(int))
			}
			checkMaxMin(t, fmt.Sprintf("trial %d at %v", trial, now), ports)
		}
		for {
			due, moving := n.First()
			if !moving {
				break
			}
			now = due
			finish()
			checkMaxMin(t, fmt.Sprintf("trial %d at %v", trial, now), ports)
		}
		carried := 0.0
		for _, p := range ports {
			if len(p.flows) != 0 {
				t.Fatalf("trial %d: %d flows left at a port", trial, len(p.flows))
			}
			carried += p.bytes
		}
		if ended != started || math.Abs(carried-2*moved) > 1e-6 || len(n.due) != 0 {
			t.Fatalf("trial %d: %d of %d transfers ended, ports carried %v of 2 x %v bytes", trial, ended, started, carried, moved)
		}
	}
}

func checkMaxMin(t *testing.T, when string, ports []*Port[*int]) {
	t.Helper()
	used, fastest := map[*Port[*int]]float64{}, map[*Port[*int]]float64{}
	seen := map[*flow[*int]]bool{}
	for _, p := range ports {
		for _, f := range p.flows {
			if seen[f] {
				continue
			}
			seen[f] = true
			for _, q := range f.ports {
				fastest[q] = max(fastest[q], f.rate)
				used[q] += f.rate * float64(f.parts.Len())
			}
		}
	}
	for p, u := range used {
		if u > p.rate*(1+1e-9) {
			t.Fatalf("%s: a port of %v bytes/s carries %v", when, p.rate, u)
		}
	}
	for f := range seen {
		held := func(p *Port[*int]) bool { return used[p] > p.rate*(1-1e-9) && f.rate >= fastest[p]*(1-1e-9) }
		if !slices.ContainsFunc(f.ports, held) {
			t.Fatalf("%s: a flow of %v bytes/s could be faster", when, f.rate)
		}
	}
}

// BenchmarkNetwork: a transfer's start and end where most have their ports to
// themselves, and where all of 64 ports are shared.
func BenchmarkNetwork(b *testing.B) {
	for _, busy := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("under-way=%d", busy), func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 2))
			n := new(Network[*int])
			var tx, rx []*Port[*int]
			for range 64 {
				tx, rx = append(tx, NewPort[*int](1e9)), append(rx, NewPort[*int](1e9))
			}
			begin := func(now time.Duration) {
				n.Start(now, 1e6, []*Port[*int]{tx[rng.IntN(64)], rx[rng.IntN(64)]}, new(int))
			}
			for range busy {
				begin(0)
			}
			b.ReportAllocs()
			for b.Loop() {
				now, _ := n.First()
				n.Finish(now)
				begin(now)
			}
		})
	}
}

// TestAlone: Alone says how long a transfer takes that has its ports for itself, and nothing of one
// that has not.
func TestAlone(t *testing.T) {
	n := new(Network[*int])
	fast, slow := NewPort[*int](3), NewPort[*int](0.7)
	path := []*Port[*int]{fast, slow}
	took, alone := n.Alone(10, path)
	if over := run(t, n, []start{{0, 10, path}}); !alone || over[0] != took {
		t.Errorf("alone: %v, %v; it takes %v", alone, took, over[0])
	}
	n.Start(time.Hour, 1, []*Port[*int]{slow}, new(int))
	if _, alone := n.Alone(10, path); alone {
		t.Error("alone beside another")
	}
	if n.Carried(5, path); fast.Bytes() != 15 || slow.Bytes() != 16 {
		t.Errorf("%v and %v bytes", fast.Bytes(), slow.Bytes())
	}
}
