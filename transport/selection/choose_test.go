package selection

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestChoose runs the transcripts of testdata/select. Each has
//
//	paths
//	NAME RATE INFLIGHT RANK        rates in MB/s, bytes in KiB; a rate of - is not known
//	     resting STRIKES           (may follow)
//	     order ORDER               (likewise)
//	NAME down
//
//	queue SIZE...                  KiB, from the head; 8x128 is eight of them
//
// and queue's answer is what is given to which path, one by one, until the queue must
// wait: "fast takes 0" is the head.
func TestChoose(t *testing.T) {
	datadriven.Walk(t, "testdata/select", func(t *testing.T, path string) {
		var names []string
		var cs []Path
		var ranks []uint8
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			number := func(s string) float64 {
				v, err := strconv.ParseFloat(s, 64)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				return v
			}
			switch d.Cmd {
			case "paths":
				names, cs, ranks = nil, nil, nil
				for line := range strings.Lines(d.Input) {
					f := strings.Fields(line)
					names = append(names, f[0])
					c, rank := Path{}, uint8(0)
					if f[1] != "down" {
						c.Up = true
						if f[1] != "-" {
							c.Rate = number(f[1]) * 1e6
							c.Best = c.Rate
						}
						c.Inflight = int64(number(f[2]) * 1024)
						rank = rankOf(int(number(f[3])))
						for more := f[4:]; len(more) > 0; more = more[2:] {
							if n := int(number(more[1])); more[0] == "resting" {
								c.Resting, c.Strikes = true, n
							} else {
								c.Order = n
							}
						}
					}
					cs, ranks = append(cs, c), append(ranks, rank)
				}
				return ""
			case "queue":
				var queue []int64
				for _, a := range d.CmdArgs {
					n, size, many := strings.Cut(a.Key, "x")
					if !many {
						n, size = "1", n
					}
					for range int(number(n)) {
						queue = append(queue, int64(number(size)*1024))
					}
				}
				var out strings.Builder
				for {
					p, at, ok := Choose(cs, ranks, func(i int) (int64, bool) {
						if i >= len(queue) {
							return 0, false
						}
						return queue[i], true
					})
					if !ok {
						break
					}
					cs[p].Inflight += queue[at]
					queue = append(queue[:at], queue[at+1:]...)
					fmt.Fprintf(&out, "%s takes %d\n", names[p], at)
				}
				fmt.Fprintf(&out, "%d wait\n", len(queue))
				return out.String()
			}
			d.Fatalf(t, "unknown command %q", d.Cmd)
			return ""
		})
	})
}

// Whatever the paths are like, a slice that can go somewhere goes, none is given to a
// path that is down, has its window full or must not be used, and a queue that waits
// is one that a completion will come for.
func TestChooseRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		n := 1 + rng.IntN(6)
		cs, ranks := make([]Path, n), make([]uint8, n)
		usable := false
		for i := range cs {
			cs[i] = Path{
				Up: rng.IntN(4) > 0, Inflight: int64(rng.IntN(3)) * int64(rng.IntN(4<<20)), Rate: float64(rng.IntN(3)) * rng.Float64() * 1e9,
				Resting: rng.IntN(4) == 0, Strikes: rng.IntN(5), Order: rng.IntN(2),
			}
			ranks[i] = []uint8{0, 0, 0, 1, Unusable}[rng.IntN(5)]
			usable = usable || cs[i].Up && ranks[i] != Unusable
		}
		queue := make([]int64, rng.IntN(20))
		for i := range queue {
			queue[i] = int64(1 + rng.IntN(1<<20))
		}
		for {
			p, at, ok := Choose(cs, ranks, func(i int) (int64, bool) {
				if i >= len(queue) {
					return 0, false
				}
				return queue[i], true
			})
			if !ok {
				break
			}
			if !cs[p].room() || ranks[p] == Unusable || at >= len(queue) {
				t.Fatalf("slice %d of %d to path %d: %+v, ranks %d", at, len(queue), p, cs, ranks)
			}
			for i := range cs {
				if cs[p].Resting && cs[i].Up && ranks[i] != Unusable && (!cs[i].Resting || cs[i].Strikes < cs[p].Strikes) {
					t.Fatalf("to path %d, which rests, and not to %d: %+v, ranks %d", p, i, cs, ranks)
				}
			}
			cs[p].Inflight += queue[at]
			queue = append(queue[:at], queue[at+1:]...)
		}
		busy := false
		for i := range cs {
			busy = busy || cs[i].Up && cs[i].Inflight > 0
		}
		if len(queue) > 0 && usable && !busy {
			t.Fatalf("%d slices wait for nothing: %+v, ranks %d", len(queue), cs, ranks)
		}
	}
}

// The meter finds a rate from bursts, follows a change within 100 ms, and lets a path
// that rests show itself again.
func TestMeter(t *testing.T) {
	var m Meter
	now := time.Second
	near := func(what string, want float64) {
		t.Helper()
		if got := m.Estimate(now); math.Abs(got-want) > 0.1*want {
			t.Errorf("%s: %.1f MB/s, not %.1f", what, got/1e6, want/1e6)
		}
	}
	near("before anything", 0)
	carry := func(rate float64, d time.Duration, burst int64) {
		m.Start(now)
		for end := now + d; now < end; {
			now += time.Duration(float64(burst) / rate * 1e9)
			m.Completed(now, burst, false)
		}
	}
	carry(250e6, 100*time.Millisecond, 256<<10)
	near("steady", 250e6)
	carry(250e6, 100*time.Millisecond, 4<<20)
	near("in bursts of 17 ms", 250e6)
	carry(25e6, 150*time.Millisecond, 64<<10)
	near("slowed to a tenth", 25e6)
	carry(250e6, 150*time.Millisecond, 256<<10)
	near("and back", 250e6)
	now += 10 * meterSpan
	near("nothing for 100 ms", 25e6) // it shows before a completion does
	m.Completed(now, 0, true)
	m = Meter{rate: 25e6, peak: 250e6, taken: now, total: time.Minute}
	now += meterRest
	near("rested for a while", 25e6)
	now += 2 * meterRest
	near("rested for longer", 100e6)
	now += time.Hour
	near("rested for an hour", 250e6)
	m.Stop(true)
	near("stalled", 25e6/8)
	var idle Meter
	for range 1000 { // 64 KiB every ms, each taking 0.1
		idle.Start(now)
		now += 100 * time.Microsecond
		idle.Completed(now, 64<<10, true)
		now += 900 * time.Microsecond
	}
	if got := idle.Estimate(now); math.Abs(got-655e6) > 20e6 {
		t.Errorf("a path used a tenth of the time: %.0f MB/s", got/1e6)
	}
}

// rankOf is a rank as transcripts write it: below 0 must not be used.
func rankOf(n int) uint8 {
	if n < 0 {
		return Unusable
	}
	return uint8(n)
}
