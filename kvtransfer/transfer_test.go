package kvtransfer

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/kvcache"
	"kvferry/transport"
	"kvferry/transport/pacing"
	"kvferry/transport/transporttest"
)

// TestMoveFaults: a move, or a check, of what there is not ends once and at once, with an
// error that names it, and nothing is posted.
func TestMoveFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, nil)
		defer c.close()
		d := c.b.grant(1, Terms{Op: transport.Write, Blocks: refs(0, 2), Tokens: 8}).Descriptor()
		x := c.a.open(d, Options{Tag: "request 7"})
		for want, m := range map[string]struct {
			part  Part
			local []kvcache.Ref
		}{
			"layer 99 of 3":   {Part{Layer: 99}, refs(0, 2)},
			"layer 3 of 3":    {Part{Layer: geometry.Layers}, refs(0, 2)}, // the next block's first
			"layer -7 of 3":   {Part{Layer: -7}, refs(0, 2)},
			"unknown plane 9": {Part{Plane: 9}, refs(0, 2)},
			"block 32 of 32":  {Whole, refs(blocks-1, 2)},
		} {
			c.a.start(x, transport.Write, m.part, m.local, true, 0)
			c.a.mu.Lock()
			if n := len(c.a.moved); n != 1 || !strings.Contains(c.a.moved[0].Err.Error(), `"request 7"`) || !strings.Contains(c.a.moved[0].Err.Error(), want) {
				t.Errorf("%v, want %q", c.a.moved, want)
			}
			c.a.mu.Unlock()
			c.a.ended(transport.ErrInvalid)
			checks := 0
			c.a.Check(Check{Blocks: m.local, Part: m.part}, func(e Checked) {
				if checks++; !errors.Is(e.Err, transport.ErrInvalid) || !strings.Contains(e.Err.Error(), want) || e.Blocks != 0 {
					t.Errorf("a check: %+v, want %q", e, want)
				}
			})
			if checks != 1 {
				t.Errorf("%s: %d checks have ended", want, checks)
			}
		}
		synctest.Wait()
		if n := c.a.rail.Carried(); n != 0 || x.Moves() != 0 {
			t.Errorf("%d slices were carried, %d moves have not ended", n, x.Moves())
		}
		x.Close(false)
		c.a.empty()
	})
}

// TestUnconfirmed: a peer that ends its grant when it has heard of all parts has them all,
// whether or not the node that wrote them has heard so.
func TestUnconfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, nil)
		defer c.close()
		g := c.b.grant(1, Terms{Op: transport.Write, Blocks: refs(0, 1), Tokens: 4})
		x := c.a.open(g.Descriptor(), Options{})
		synctest.Wait() // connected
		c.net.BlackHole("b", true)
		c.a.rail.Inject(transporttest.Fault{Slice: 1, Kind: transporttest.CutAfter}) // with the immediate
		c.a.start(x, transport.Write, Whole, refs(4, 1), true, 9)
		synctest.Wait()
		if len(c.b.came) != 1 {
			t.Fatalf("heard of %+v", c.b.came)
		}
		c.a.ended()
		g.Close()
		synctest.Wait()
		c.net.BlackHole("b", false)
		<-time.After(c.a.cfg.Timeout)
		synctest.Wait()
		c.a.ended(nil)
		x.Close(true)
	})
}

// TestModelledEnd: a move over a modelled link ends when that has delivered it, if the bytes
// really came a little later, and when they came if it was much later.
func TestModelledEnd(t *testing.T) {
	const latency = 500 * time.Microsecond
	for late, want := range map[time.Duration]time.Duration{
		0: latency, time.Millisecond: latency, time.Second: time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newCouple(t, func(cfg *Config) { cfg.Transport.Link = &pacing.Link{BytesPerSecond: 1e15, Latency: latency} })
			defer c.close()
			x := c.b.open(c.a.grant(1, Terms{Op: transport.Read, Blocks: refs(0, 1), Tokens: 4}).Descriptor(), Options{})
			synctest.Wait()
			c.b.rail.Inject(transporttest.Fault{Slice: 1, Kind: transporttest.Delay, Delay: late})
			c.b.start(x, transport.Read, Whole, refs(4, 1), false, 0)
			<-time.After(time.Minute)
			synctest.Wait()
			c.b.mu.Lock()
			if m := c.b.moved; len(m) != 1 || (m[0].At-m[0].Posted).Round(time.Microsecond) != want {
				t.Errorf("%v late: %+v, want an end after %v", late, m, want)
			}
			c.b.mu.Unlock()
			x.Close(true)
		})
	}
}

// TestPeer: moves to and from one address share what may be under way, whatever the node
// there is called; without an address the name counts.
func TestPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, nil)
		defer c.close()
		c.b.rail.BlackHole(true)
		d := c.a.grant(1, Terms{Op: transport.Read, Blocks: refs(0, 1), Tokens: 4}).Descriptor()
		for i, from := range []struct {
			node, addr string
			peers      int
		}{{"a", "10.0.0.1:1", 1}, {"a again", "10.0.0.1:1", 1}, {"a", "10.0.0.2:1", 2}, {"a", "", 3}, {"c", "", 4}} {
			d.Node, d.Addr = from.node, from.addr
			c.b.start(c.b.open(d, Options{}), transport.Read, Whole, refs(4+i, 1), false, 0)
			if n := c.b.Left().Peers; n != from.peers {
				t.Errorf("%+v: moves with %d peers", from, n)
			}
		}
	})
}

// TestCancelMakesWay: a large move that waits is canceled: a small one behind it goes.
func TestCancelMakesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, func(cfg *Config) { cfg.UnderWay = 2 * geometry.BlockBytes() })
		defer c.close()
		d := c.a.grant(1, Terms{Op: transport.Read, Blocks: refs(0, 2), Tokens: 8}).Descriptor()
		small, large := c.b.open(d, Options{}), c.b.open(d, Options{})
		c.b.rail.BlackHole(true)
		synctest.Wait()
		for i, x := range []*Transfer{small, large, small} {
			c.b.start(x, transport.Read, Whole, refs(4+4*i, 1+i%2), false, 0)
		}
		under := func() int {
			c.b.Agent.mu.Lock()
			defer c.b.Agent.mu.Unlock()
			return len(small.batches)
		}
		if n := under(); n != 1 {
			t.Errorf("%d moves are under way", n)
		}
		large.Cancel()
		if n := under(); n != 2 {
			t.Errorf("%d moves are under way, want the one behind the large one too", n)
		}
	})
}

// TestNothingIsKept: of what has ended no timer runs on, and no batch is held.
func TestNothingIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, nil)
		defer c.close()
		g := c.a.grant(1, Terms{Op: transport.Read, Blocks: refs(0, 1), Tokens: 4, Lease: time.Hour})
		x := c.b.open(g.Descriptor(), Options{Deadline: c.b.clk.Now() + time.Hour})
		c.b.start(x, transport.Read, Whole, nil, false, 0) // ends within Submit
		if n := len(x.batches); n != 0 || len(c.b.moved) != 1 {
			t.Errorf("%d batches are held, %d moves have ended", n, len(c.b.moved))
		}
		x.Close(false)
		g.Close()
		if g.lease.Stop() || x.timer.Stop() {
			t.Error("a timer runs on")
		}
	})
}
