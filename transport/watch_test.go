package transport_test

import (
	"bytes"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// Where an endpoint knows what its peer's kernel answers, a path that falls silent is left within
// 50 ms, and one whose peer is merely slow is not.
func TestSilentPath(t *testing.T) {
	for name, c := range map[string]struct {
		load  bool // bulk on all paths; or one slice, of the path that falls silent
		hole  bool
		stuck bool          // it answers, and completes nothing
		found time.Duration // at most; 0: not at all
	}{
		"under load":                {true, true, false, 50 * time.Millisecond},
		"the others have no slices": {false, true, false, 50 * time.Millisecond},
		"it is slow":                {false, false, false, 0},
		"it is stuck, and answers":  {true, false, true, 450 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stall := time.Minute
				if c.stuck {
					stall = 0 // 300 ms
				}
				network := transporttest.NewNetwork()
				network.Gauged = true
				x := newBundleOn(t, network, []float64{2 * gbit, 2 * gbit, 2 * gbit}, 4<<20, transport.Config{StallTimeout: stall})
				var loading sync.WaitGroup
				block, depth := 64<<10, 8
				if !c.load {
					block, depth = 4<<20, 1 // one slice of 1 MiB or so at a time for each path
				}
				if !c.hole && !c.stuck {
					x.rails[1].SetRate(1e6) // a slice takes a second
				}
				loading.Go(func() { x.load(time.Second, block, depth) })
				<-time.After(100 * time.Millisecond)
				x.mu.Lock()
				x.events = nil
				x.mu.Unlock()
				start := x.clk.Now()
				if c.hole {
					x.rails[1].BlackHole(true)
				}
				if c.stuck {
					x.rails[1].Inject(transporttest.Fault{Slice: x.rails[1].Carried() + 1, Kind: transporttest.Stall})
				}
				<-time.After(500 * time.Millisecond)
				x.rails[1].BlackHole(false)
				loading.Wait()
				x.mu.Lock()
				defer x.mu.Unlock()
				switch {
				case c.found == 0 && len(x.events) > 0:
					t.Errorf("events %+v", x.events)
				case c.found == 0:
				case len(x.events) == 0 || x.events[0].State != transport.PathStalled || x.events[0].At-start > c.found:
					t.Errorf("since %v: events %+v", start, x.events)
				}
				if !bytes.Equal(x.src.Bytes(), x.dst.Bytes()) {
					t.Error("other bytes arrived")
				}
			})
		})
	}
}
