package transport_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// Rates are an eighth of those of links of 4, 2, 2 and 1 Gbit/s, and so are blocks
// of those of 1 MiB: the proportions are the same, and the tests copy less.
const gbit = 1e9 / 8 / 8

var rates = []float64{4 * gbit, 2 * gbit, 2 * gbit, 1 * gbit}

// A bundle is two engines with several rails each, and a load on them: depth batches
// under way, each of the same requests.
type bundle struct {
	t      *testing.T
	net    *transporttest.Network
	clk    clock.Clock
	rails  []*transporttest.Rail // the initiator's
	a, b   *transport.Engine
	src    *transport.Segment
	dst    *transport.Segment
	target *transport.Target

	mu     sync.Mutex
	events []transport.PathEvent
}

func newBundle(t *testing.T, rates []float64, n int, cfg transport.Config) *bundle {
	t.Helper()
	return newBundleOn(t, transporttest.NewNetwork(), rates, n, cfg)
}

func newBundleOn(t *testing.T, network *transporttest.Network, rates []float64, n int, cfg transport.Config) *bundle {
	t.Helper()
	x := &bundle{t: t, net: network}
	var there []transport.Rail
	for i, rate := range rates {
		r := x.net.Rail(fmt.Sprint("a", i))
		r.Depth = 4096
		r.SetRate(rate)
		x.rails = append(x.rails, r)
		cfg.Rails = append(cfg.Rails, r)
		there = append(there, x.net.Rail(fmt.Sprint("b", i)))
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	x.clk = clock.Std()
	cfg.Clock, cfg.Logger = x.clk, quiet
	cfg.OnPath = func(ev transport.PathEvent) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.events = append(x.events, ev)
	}
	x.a = engine(t, cfg)
	x.b = engine(t, transport.Config{Rails: there, Clock: clock.Std(), Logger: quiet})
	x.src, x.dst = register(t, x.a, "src", n), register(t, x.b, "dst", n)
	rng := rand.New(rand.NewPCG(1, 2))
	some := make([]byte, 65521) // a prime: no two slices are the same
	for i := range some {
		some[i] = byte(1 + rng.IntN(255))
	}
	for rest := x.src.Bytes(); len(rest) > 0; {
		rest = rest[copy(rest, some):]
	}
	tgt, err := x.a.Open(x.dst.Info())
	if err != nil {
		t.Fatal(err)
	}
	x.target = tgt
	synctest.Wait()
	return x
}

// load keeps depth batches under way, each of a share of the segment, in blocks, for
// a while.
func (x *bundle) load(d time.Duration, block, depth int) {
	x.t.Helper()
	end := time.Now().Add(d)
	var running sync.WaitGroup
	for i := range depth {
		share := len(x.src.Bytes()) / depth
		var reqs []transport.Request
		for at := i * share; at < (i+1)*share; at += block {
			reqs = append(reqs, transport.Request{Op: transport.Write, Local: x.src.Bytes()[at : at+block], Offset: int64(at)})
		}
		running.Go(func() {
			for time.Now().Before(end) {
				b := x.a.Submit(x.target, reqs, transport.BatchOptions{Timeout: 10 * time.Second})
				<-b.Done()
				if b.Err() != nil {
					x.t.Error(b.Err())
				}
			}
		})
	}
	running.Wait()
}

// moved is what each rail has completed.
func (x *bundle) moved() (each []int64, sum int64) {
	for _, st := range x.a.Rails() {
		each = append(each, st.Write.Bytes)
		sum += st.Write.Bytes
	}
	return each, sum
}

// efficiency loads the rails and returns what they carried, of what they could.
func (x *bundle) efficiency(d time.Duration, rates []float64, block, depth int) float64 {
	x.t.Helper()
	start := time.Now()
	_, before := x.moved()
	x.load(d, block, depth)
	_, after := x.moved()
	ideal := 0.0
	for _, r := range rates {
		ideal += r
	}
	return float64(after-before) / time.Since(start).Seconds() / ideal
}

// Unequal links are filled to within some percent by affinity, and by the slowest one
// by a static split.
func TestUnequalRails(t *testing.T) {
	for _, c := range []struct {
		sel         transport.Selection
		least, most float64
	}{
		{transport.Affinity, 0.97, 1.001},
		{transport.Static, 0.42, 0.48}, // 4 x the slowest of 9
		{transport.RoundRobin, 0.42, 0.48},
		{transport.Single, 0.43, 0.45}, // 4 of 9
	} {
		t.Run(string(c.sel), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newBundle(t, rates, 8<<20, transport.Config{Select: c.sel})
				x.load(200*time.Millisecond, 128<<10, 4) // until the rates are known
				if e := x.efficiency(2*time.Second, rates, 128<<10, 4); e < c.least || e > c.most {
					each, _ := x.moved()
					t.Errorf("%.3f of what the links carry, not %.2f to %.2f; %d", e, c.least, c.most, each)
				}
				if !bytes.Equal(x.src.Bytes(), x.dst.Bytes()) {
					t.Error("other bytes arrived")
				}
			})
		})
	}
}

// Equal links add up, with large and small blocks, and with one batch under way.
func TestEqualRails(t *testing.T) {
	for i, c := range []struct {
		rails, block, depth int
		least               float64
	}{
		{1, 128 << 10, 4, 0.99},
		{2, 128 << 10, 4, 0.99},
		{4, 128 << 10, 4, 0.99},
		{4, 8 << 10, 4, 0.98},
		{4, 128 << 10, 1, 0.90},
		{8, 128 << 10, 4, 0.97},
	} {
		if testing.Short() && i%2 > 0 {
			continue
		}
		t.Run(fmt.Sprintf("%d x %d KiB, depth %d", c.rails, c.block>>10, c.depth), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var rates []float64
				for range c.rails {
					rates = append(rates, 2*gbit)
				}
				x := newBundle(t, rates, 8<<20, transport.Config{})
				x.load(200*time.Millisecond, c.block, c.depth)
				if e := x.efficiency(time.Second, rates, c.block, c.depth); e < c.least || e > 1.001 {
					each, _ := x.moved()
					t.Errorf("%.3f of what the links carry, not %.2f; %d", e, c.least, each)
				}
			})
		})
	}
}

// sample counts bytes of all rails in steps, while change happens.
func (x *bundle) sample(d, step time.Duration) (each [][]int64) {
	for range d / step {
		<-time.After(step)
		now, _ := x.moved()
		each = append(each, now)
	}
	return each
}

// One of four links is a black hole for a while, cut, or slow: the others go on at
// their full rate soon after, and it comes back.
func TestLinkFaults(t *testing.T) {
	equal := []float64{2 * gbit, 2 * gbit, 2 * gbit, 2 * gbit}
	const step = 25 * time.Millisecond
	for i, c := range []struct {
		name       string
		fault, end func(*transporttest.Rail)
		full       time.Duration // until the others are at their full rate
		back       time.Duration // until it has its share again
		event      transport.PathState
	}{
		{
			"black hole", func(r *transporttest.Rail) { r.BlackHole(true) }, func(r *transporttest.Rail) { r.BlackHole(false) },
			500 * time.Millisecond, 2 * time.Second, transport.PathStalled,
		},
		{
			"cut", func(r *transporttest.Rail) { r.BlackHole(true); r.Sever() }, func(r *transporttest.Rail) { r.BlackHole(false) },
			100 * time.Millisecond, 2 * time.Second, transport.PathDown,
		},
		{
			"a tenth", func(r *transporttest.Rail) { r.SetRate(gbit / 5) }, func(r *transporttest.Rail) { r.SetRate(2 * gbit) },
			500 * time.Millisecond, time.Second, "",
		},
		{
			"a hundredth", func(r *transporttest.Rail) { r.SetRate(gbit / 50) }, func(r *transporttest.Rail) { r.SetRate(2 * gbit) },
			2 * time.Second, 2 * time.Second, "",
		},
	} {
		if testing.Short() && i%2 > 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newBundle(t, equal, 8<<20, transport.Config{})
				var loading sync.WaitGroup
				loading.Go(func() { x.load(9*time.Second, 128<<10, 4) })
				x.sample(time.Second, step)
				x.events = nil
				start := x.clk.Now()
				c.fault(x.rails[1])
				during := x.sample(4*time.Second, step)
				c.end(x.rails[1])
				after := x.sample(3*time.Second, step)
				loading.Wait()
				// Full: from then on the other three make 97 % of what they carry, over 200 ms.
				rate := func(s [][]int64, i, j, from, to int) float64 {
					var n int64
					for r := from; r < to; r++ {
						n += s[j][r] - s[i][r]
					}
					return float64(n) / (time.Duration(j-i) * step).Seconds()
				}
				const over = 8
				last := func(s [][]int64, ok func(i int) bool) time.Duration {
					at := -1
					for i := 0; i+over < len(s); i++ {
						if !ok(i) {
							at = i
						}
					}
					return time.Duration(at+1) * step
				}
				full := last(during, func(i int) bool {
					return rate(during, i, i+over, 0, 4)-rate(during, i, i+over, 1, 2) > 0.97*6*gbit
				})
				back := last(after, func(i int) bool { return rate(after, i, i+over, 1, 2) > 0.95*2*gbit })
				if full > c.full || back > c.back {
					t.Errorf("the others at full rate after %v, of at most %v; back after %v, of at most %v", full, c.full, back, c.back)
				}
				if c.event != "" {
					if len(x.events) < 2 || x.events[0].State != c.event || x.events[len(x.events)-1].State != transport.PathUp {
						t.Fatalf("events %+v", x.events)
					}
					if found := x.events[0].At - start; found > 400*time.Millisecond {
						t.Errorf("found after %v", found)
					}
				}
				if !bytes.Equal(x.src.Bytes(), x.dst.Bytes()) {
					t.Error("other bytes arrived")
				}
				st := x.a.Rails()[1]
				t.Logf("full after %v, back after %v, %d KiB sent again, %d events", full, back, st.Resent>>10, len(x.events))
			})
		})
	}
}

// Bytes that are still on their way over a lost connection do not land after their
// batch is done: the target ends that connection before others carry its writes.
func TestLateWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newBundle(t, []float64{0, 0}, 1<<20, transport.Config{})
		x.rails[0].Inject(transporttest.Fault{Slice: 2, Kind: transporttest.Late})
		x.load(time.Millisecond, 64<<10, 1)
		if !bytes.Equal(x.src.Bytes(), x.dst.Bytes()) {
			t.Fatal("other bytes arrived")
		}
		if st := x.a.Rails()[0]; st.Resent == 0 {
			t.Fatalf("nothing was late: %+v", st)
		}
		clear(x.dst.Bytes()) // it is the target's again
		x.net.Arrive()
		if !bytes.Equal(x.dst.Bytes(), make([]byte, len(x.dst.Bytes()))) {
			t.Error("a late write landed in memory that was in use for something else")
		}
	})
}

// Random faults on three rails, several batches at once, each in a place of its own:
// every batch ends once, by its deadline; what completed is there, whole; its memory is
// then the target's, and nothing of it lands any more; the accounts add up.
func TestRandomFailover(t *testing.T) {
	kinds := []transporttest.Kind{transporttest.Cut, transporttest.CutAfter, transporttest.Stall, transporttest.Late, transporttest.Late, transporttest.Delay}
	seeds := uint64(16)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 6))
			const batches, size = 150, 12 << 10
			sel := transport.Selections[rng.IntN(2)*int(seed%4)] // affinity half of the time
			x := newBundle(t, []float64{50e6, 20e6, 5e6}, batches*size, transport.Config{Select: sel, SliceSize: 1 << 10})
			for _, r := range x.rails {
				r.Depth = 1 + rng.IntN(40)
				for i := 2; i < 2000; i += 1 + rng.IntN(150) {
					r.Inject(transporttest.Fault{Slice: i, Delay: time.Duration(rng.IntN(1e8)), Kind: kinds[rng.IntN(len(kinds))]})
				}
			}
			var mu sync.Mutex
			ended := make([]int, batches)
			var completed []int
			var running sync.WaitGroup
			for i := range batches {
				at, n := i*size, 1+rng.IntN(size)
				timeout := time.Duration(1e6 + rng.IntN(4e9))
				op := transport.Op(rng.IntN(4) / 3)
				start := time.Now()
				b := x.a.Submit(x.target, []transport.Request{{Op: op, Local: x.src.Bytes()[at : at+n], Offset: int64(at)}},
					transport.BatchOptions{Timeout: timeout, OnDone: func(*transport.Batch) {
						mu.Lock()
						defer mu.Unlock()
						ended[i]++
					}})
				running.Go(func() {
					<-b.Done()
					if d := time.Since(start); d > timeout {
						t.Errorf("seed %d: batch %d ended after %v of %v", seed, i, d, timeout)
					}
					if b.Err() == nil && op == transport.Write {
						mu.Lock()
						defer mu.Unlock()
						if !bytes.Equal(x.src.Bytes()[at:at+n], x.dst.Bytes()[at:at+n]) {
							t.Errorf("seed %d: batch %d is not there", seed, i)
						}
						clear(x.dst.Bytes()[at : at+n])
						completed = append(completed, i)
					}
				})
				if rng.IntN(40) == 0 {
					x.net.Arrive()
				}
				if rng.IntN(20) == 0 { // a rail that cannot be dialed either
					r := x.rails[rng.IntN(3)]
					r.BlackHole(true)
					time.AfterFunc(time.Duration(rng.IntN(2e9)), func() { r.BlackHole(false) })
				}
				<-time.After(time.Duration(rng.IntN(2e7)))
			}
			running.Wait()
			x.net.Arrive()
			<-time.After(10 * time.Second) // fences are under way too
			synctest.Wait()
			for _, i := range completed {
				if ended[i] != 1 || x.dst.Bytes()[i*size] != 0 {
					t.Errorf("seed %d, %s: batch %d ended %d times; its memory holds %d", seed, sel, i, ended[i], x.dst.Bytes()[i*size])
				}
			}
			if len(completed) < batches/10 {
				t.Errorf("seed %d, %s: %d batches completed", seed, sel, len(completed))
			}
			for _, st := range x.a.Rails() {
				if st.InFlight != 0 || st.Posted != st.Write.Slices+st.Read.Slices+st.Errors {
					t.Errorf("seed %d: slices were lost: %+v", seed, st)
				}
			}
		})
	}
}

// Rails that cannot see the one they were paired with find the one they can.
func TestPairing(t *testing.T) {
	for _, c := range []struct {
		name  string
		apart [][2]string
	}{
		{"straight", nil},
		{"crossed", [][2]string{{"a0", "b0"}, {"a1", "b1"}}},
		{"a ring", [][2]string{{"a0", "b0"}, {"a0", "b2"}, {"a1", "b1"}, {"a1", "b0"}, {"a2", "b2"}, {"a2", "b1"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rates := []float64{2 * gbit, 2 * gbit, 2 * gbit}
				if c.name != "a ring" {
					rates = rates[:2]
				}
				n := transporttest.NewNetwork()
				for _, p := range c.apart {
					n.Part(p[0], p[1])
				}
				x := newBundleOn(t, n, rates, 8<<20, transport.Config{})
				<-time.After(5 * time.Second)
				if e := x.efficiency(time.Second, rates, 128<<10, 4); e < 0.97 {
					t.Errorf("%.3f of what the links carry; %+v", e, x.a.Rails())
				}
			})
		})
	}
}

// Memory prefers the rails near it, uses others when those are full or down, and never
// a rail that is out of the question.
func TestRank(t *testing.T) {
	two := []float64{2 * gbit, 2 * gbit, 2 * gbit}
	rank := func(location, rail string) int {
		return map[string]int{"mem/a0": 1, "mem/a1": 0, "mem/a2": -1}[rail]
	}
	for _, sel := range transport.Selections {
		t.Run(string(sel), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newBundle(t, two, 4<<20, transport.Config{Select: sel, Rank: rank})
				for range 20 { // little at a time
					b := x.a.Submit(x.target, []transport.Request{{Local: x.src.Bytes()[:256<<10]}}, transport.BatchOptions{Imm: 1, HasImm: true})
					<-b.Done()
				}
				light, _ := x.moved()
				x.load(time.Second, 128<<10, 4)
				heavy, _ := x.moved()
				if light[2] != 0 || heavy[2] != 0 {
					t.Errorf("the rail that must not be used carried %d bytes", heavy[2])
				}
				switch sel {
				case transport.Affinity:
					if light[0] != 0 || heavy[0] < heavy[1]/2 {
						t.Errorf("the far rail carried %d of little and %d of much; the near one %d and %d", light[0], heavy[0], light[1], heavy[1])
					}
				case transport.Single:
					if heavy[0] != 0 {
						t.Errorf("the far rail carried %d", heavy[0])
					}
				default:
					if light[0] != light[1] {
						t.Errorf("not in equal parts: %d", light)
					}
				}
				x.rails[1].BlackHole(true)
				b := x.a.Submit(x.target, []transport.Request{{Local: x.src.Bytes()[:256<<10]}}, transport.BatchOptions{Timeout: 5 * time.Second})
				<-b.Done()
				if b.Err() != nil {
					t.Errorf("with the near rail gone: %v", b.Err())
				}
			})
		})
	}
	r := transporttest.NewNetwork().Rail("a")
	e := engine(t, transport.Config{Rails: []transport.Rail{r}, Rank: func(string, string) int { return -1 }})
	if _, err := e.Register("seg", make([]byte, 64), "cpu:3"); !errors.Is(err, transport.ErrNoPath) || !strings.Contains(err.Error(), "cpu:3") {
		t.Errorf("memory that no rail may be used for: %v", err)
	}
}
