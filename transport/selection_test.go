package transport

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

// TestSelectPath runs the transcripts of testdata/select. Each has
//
//	paths
//	NAME RATE INFLIGHT RANK        rates in MB/s, bytes in KiB; a rate of - is not known
//	     resting STRIKES           (may follow)
//	NAME down
//
//	queue SIZE...                  KiB, from the head; 8x128 is eight of them
//
// and queue's answer is what is given to which path, one by one, until the queue must
// wait: "fast takes 0" is the head.
func TestSelectPath(t *testing.T) {
	datadriven.Walk(t, "testdata/select", func(t *testing.T, path string) {
		var names []string
		var cs []candidate
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
					c, rank := candidate{}, uint8(0)
					if f[1] != "down" {
						c.up = true
						if f[1] != "-" {
							c.rate = number(f[1]) * 1e6
						}
						c.inflight = int64(number(f[2]) * 1024)
						rank = clampRank(int(number(f[3])))
						if len(f) > 4 {
							c.resting, c.strikes = f[4] == "resting", int(number(f[5]))
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
					p, at, ok := selectPath(cs, ranks, func(i int) (int64, bool) {
						if i >= len(queue) {
							return 0, false
						}
						return queue[i], true
					})
					if !ok {
						break
					}
					cs[p].inflight += queue[at]
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
func TestSelectPathRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		n := 1 + rng.IntN(6)
		cs, ranks := make([]candidate, n), make([]uint8, n)
		usable := false
		for i := range cs {
			cs[i] = candidate{
				up: rng.IntN(4) > 0, inflight: int64(rng.IntN(3)) * int64(rng.IntN(4<<20)), rate: float64(rng.IntN(3)) * rng.Float64() * 1e9,
				resting: rng.IntN(4) == 0, strikes: rng.IntN(5),
			}
			ranks[i] = []uint8{0, 0, 0, 1, unseen}[rng.IntN(5)]
			usable = usable || cs[i].up && ranks[i] != unseen
		}
		queue := make([]int64, rng.IntN(20))
		for i := range queue {
			queue[i] = int64(1 + rng.IntN(1<<20))
		}
		for {
			p, at, ok := selectPath(cs, ranks, func(i int) (int64, bool) {
				if i >= len(queue) {
					return 0, false
				}
				return queue[i], true
			})
			if !ok {
				break
			}
			if !cs[p].room() || ranks[p] == unseen || at >= len(queue) {
				t.Fatalf("slice %d of %d to path %d: %+v, ranks %d", at, len(queue), p, cs, ranks)
			}
			for i := range cs {
				if cs[p].resting && cs[i].up && ranks[i] != unseen && (!cs[i].resting || cs[i].strikes < cs[p].strikes) {
					t.Fatalf("to path %d, which rests, and not to %d: %+v, ranks %d", p, i, cs, ranks)
				}
			}
			cs[p].inflight += queue[at]
			queue = append(queue[:at], queue[at+1:]...)
		}
		busy := false
		for i := range cs {
			busy = busy || cs[i].up && cs[i].inflight > 0
		}
		if len(queue) > 0 && usable && !busy {
			t.Fatalf("%d slices wait for nothing: %+v, ranks %d", len(queue), cs, ranks)
		}
	}
}

// The meter finds a rate from bursts, follows a change within 100 ms, and lets a path
// that rests show itself again.
func TestMeter(t *testing.T) {
	var m meter
	now := time.Second
	near := func(what string, want float64) {
		t.Helper()
		if got := m.estimate(now); math.Abs(got-want) > 0.1*want {
			t.Errorf("%s: %.1f MB/s, not %.1f", what, got/1e6, want/1e6)
		}
	}
	near("before anything", 0)
	carry := func(rate float64, d time.Duration, burst int64) {
		m.start(now)
		for end := now + d; now < end; {
			now += time.Duration(float64(burst) / rate * 1e9)
			m.completed(now, burst, false)
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
	m.completed(now, 0, true)
	m = meter{rate: 25e6, peak: 250e6, taken: now}
	now += meterRest
	near("rested for a while", 25e6)
	now += 2 * meterRest
	near("rested for longer", 100e6)
	now += time.Hour
	near("rested for an hour", 250e6)
	m.stop(true)
	near("stalled", 25e6/8)
	var idle meter
	for range 1000 { // 64 KiB every ms, each taking 0.1
		idle.start(now)
		now += 100 * time.Microsecond
		idle.completed(now, 64<<10, true)
		now += 900 * time.Microsecond
	}
	if got := idle.estimate(now); math.Abs(got-655e6) > 20e6 {
		t.Errorf("a path used a tenth of the time: %.0f MB/s", got/1e6)
	}
}

func TestPair(t *testing.T) {
	for _, c := range []struct {
		name  string
		reach []string // of each rail here: to each of the peer's; o on link, r routed, e elsewhere, n none, ? unknown
		want  string
	}{
		{"one and one", []string{"?"}, "[{0 [0]}]"},
		{"nobody can tell", []string{"??", "??"}, "[{0 [0 1]} {1 [1 0]}]"},
		{"two here, one there", []string{"?", "?"}, "[{0 [0]} {1 [0]}]"},
		{"one here, three there", []string{"???"}, "[{0 [0 1 2]} {0 [1]} {0 [2]}]"},
		{"a network each", []string{"on", "no"}, "[{0 [0]} {1 [1]}]"},
		{"crossed", []string{"no", "on"}, "[{0 [1]} {1 [0]}]"},
		{"on link before routed", []string{"ro", "or"}, "[{0 [1 0]} {1 [0 1]}]"},
		{"the second leaves by the first", []string{"oo", "ee"}, "[{0 [0 1]} {0 [1]}]"},
		{"all in one network", []string{"ooo", "ooo", "ooo"}, "[{0 [0 1 2]} {1 [1 2 0]} {2 [2 0 1]}]"},
		{"who has no choice goes first", []string{"oo", "on"}, "[{0 [1 0]} {1 [0]}]"},
		{"a rail that nobody reaches", []string{"on", "nn"}, "[{0 [0]}]"},
		{"nobody reaches anybody", []string{"ne", "en"}, "[]"},
	} {
		kinds := map[byte]Reach{'o': OnLink, 'r': Routed, 'e': Elsewhere, 'n': NoRoute, '?': Unknown}
		got := pair(len(c.reach), len(c.reach[0]), func(i, j int) Reach { return kinds[c.reach[i][j]] })
		if s := fmt.Sprint(got); s != c.want {
			t.Errorf("%s: %s, want %s", c.name, s, c.want)
		}
	}
}

func TestParseSelection(t *testing.T) {
	for _, s := range Selections {
		if got, err := ParseSelection(string(s)); got != s || err != nil {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	if _, err := ParseSelection("fastest"); err == nil || !strings.Contains(err.Error(), "affinity, static, round-robin, single") {
		t.Errorf("unknown: %v", err)
	}
}

// Slices are small enough that several paths end a batch together, and no smaller.
func TestSliceSize(t *testing.T) {
	for _, c := range []struct {
		paths int
		sel   Selection
		bytes int64
		want  int
	}{
		{1, Affinity, 1 << 20, 1 << 20},
		{4, Affinity, 64 << 20, 1 << 20},
		{4, Affinity, 16 << 20, 1 << 20},
		{4, Affinity, 4 << 20, 256 << 10},
		{4, Static, 4 << 20, 256 << 10},
		{4, Affinity, 1 << 20, 64 << 10},
		{4, Affinity, 1 << 10, 64 << 10},
		{2, Affinity, 1<<20 + 8, 192 << 10},
		{4, Single, 1 << 20, 1 << 20},
	} {
		b := &Batch{e: &Engine{cfg: Config{SliceSize: 1 << 20, Select: c.sel}}, t: &Target{peer: &peer{paths: make([]*path, c.paths)}}, bytes: c.bytes}
		if got := b.sliceSize(); got != c.want {
			t.Errorf("%d bytes over %d paths, %s: slices of %d, want %d", c.bytes, c.paths, c.sel, got, c.want)
		}
	}
}
