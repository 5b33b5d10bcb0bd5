package transport_test

import (
	"bytes"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// A crowd is a rail on which bulk is under way: 64 slices of a millisecond each. The first
// half megabyte of the segments is for what goes past it.
type crowd struct {
	t      *testing.T
	net    *transporttest.Network
	rail   *transporttest.Rail
	a      *transport.Engine
	mem    []byte
	dst    *transport.Segment
	target *transport.Target
	bulk   *transport.Batch
	events []transport.PathEvent

	mu   sync.Mutex // handlers of two connections run at once
	imms []uint64
}

func newCrowd(t *testing.T) *crowd {
	x := &crowd{t: t, net: transporttest.NewNetwork()}
	x.rail = x.net.Rail("a")
	x.rail.Depth = 4096
	x.rail.SetRate(64e6) // 64 kB in a millisecond
	x.a = engine(t, transport.Config{
		Rails: []transport.Rail{x.rail}, Clock: clock.Std(), SliceSize: 64e3,
		OnPath: func(ev transport.PathEvent) { x.events = append(x.events, ev) },
	})
	b := engine(t, transport.Config{Rails: []transport.Rail{x.net.Rail("b")}, Clock: clock.Std(), OnImmediate: func(i transport.Immediate) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.imms = append(x.imms, i.Value)
	}})
	src := register(t, x.a, "src", 8<<20)
	x.mem, x.dst = src.Bytes(), register(t, b, "dst", 8<<20)
	for i := range x.mem {
		x.mem[i] = byte(i*7 + i>>8)
	}
	var err error
	if x.target, err = x.a.Open(x.dst.Info()); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	x.bulk = x.submit(1<<20, 64*64e3, transport.BatchOptions{HasImm: true, Imm: 99})
	return x
}

func (x *crowd) submit(at, n int, opt transport.BatchOptions) *transport.Batch {
	return x.a.Submit(x.target, []transport.Request{{Local: x.mem[at : at+n], Offset: int64(at)}}, opt)
}

// took is how long a batch takes.
func (x *crowd) took(b *transport.Batch) time.Duration {
	x.t.Helper()
	if err := wait(x.t, b); err != nil {
		x.t.Error(err)
	}
	return b.Completed() - b.Posted()
}

func (x *crowd) conns() int64 { return x.a.Rails()[0].Conns }

// Small batches and those that are urgent go past what waits, on a connection that the
// first of them has made and does not wait for. Others stay in line.
func TestExpress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newCrowd(t)
		synctest.Wait()
		if x.conns() != 1 {
			t.Errorf("%d connections before one is needed", x.conns())
		}
		first := x.submit(0, 4096, transport.BatchOptions{HasImm: true, Imm: 1})
		synctest.Wait()
		if x.conns() != 2 {
			t.Fatalf("%d connections when one is needed", x.conns())
		}
		const slice = time.Millisecond
		for i, c := range []struct {
			n    int
			opt  transport.BatchOptions
			past bool
		}{
			{4096, transport.BatchOptions{HasImm: true, Imm: 2}, true},
			{32 << 10, transport.BatchOptions{}, true},
			{32<<10 + 1, transport.BatchOptions{}, false},
			{64e3, transport.BatchOptions{Priority: transport.Urgent, HasImm: true, Imm: 3}, true},
			{0, transport.BatchOptions{HasImm: true, Imm: 4}, true},
			{4096, transport.BatchOptions{Priority: transport.Bulk}, false},
		} {
			var b *transport.Batch
			if c.n == 0 {
				b = x.a.Submit(x.target, nil, c.opt)
			} else {
				b = x.submit(0, c.n, c.opt)
			}
			if !c.past {
				synctest.Wait()
				if b.Status() != transport.InFlight {
					t.Errorf("%d: %v", i, b.Status())
				}
				continue
			}
			if took := x.took(b); took > 3*slice { // its own, and at most two of bulk
				t.Errorf("%d: it took %v", i, took)
			}
		}
		if x.bulk.Status() != transport.InFlight || first.Status() != transport.InFlight {
			t.Errorf("bulk is %v, and the first, which stayed in line, %v", x.bulk.Status(), first.Status())
		}
		if took := x.took(x.bulk); took > 75*slice {
			t.Errorf("bulk took %v", took)
		}
		x.took(first)
		synctest.Wait()
		if want := []uint64{2, 3, 4, 99, 1}; !slices.Equal(x.imms, want) {
			t.Errorf("immediates %v, want %v", x.imms, want)
		}
		if len(x.events) != 1 {
			t.Errorf("the path is up, and an express no event: %+v", x.events)
		}
		// Nothing waits: the path's own connection does.
		before := x.rail.Dials()
		if took := x.took(x.submit(0, 4096, transport.BatchOptions{})); took > slice || x.rail.Dials() != before {
			t.Errorf("alone it took %v, %d dials", took, x.rail.Dials()-before)
		}
	})
}

// What is lost with an express is in line with the others again, once the target has ended
// the connection: nothing lands twice, and an immediate comes once.
func TestExpressLost(t *testing.T) {
	for _, kind := range []transporttest.Kind{transporttest.Cut, transporttest.CutAfter, transporttest.Late} {
		for _, back := range []bool{true, false} { // there is another express, or none
			synctest.Test(t, func(t *testing.T) {
				x := newCrowd(t)
				x.submit(0, 1, transport.BatchOptions{})
				synctest.Wait()
				if x.conns() != 2 {
					t.Fatalf("%d connections", x.conns())
				}
				if !back {
					x.net.BlackHole("b", true)
				}
				// The next that the rail takes up is the express's: bulk's is under way.
				x.rail.Inject(transporttest.Fault{Slice: x.rail.Carried() + 1, Kind: kind})
				b := x.submit(4096, 4096, transport.BatchOptions{HasImm: true, Imm: 5, Timeout: 2 * time.Second})
				if kind == transporttest.Late {
					synctest.Wait()
					// Nothing gets through, nor another connection: its batch gives the express up.
					err := wait(t, b)
					if err == nil {
						t.Error("it has completed")
					}
					x.net.Arrive()
				} else if err := wait(t, b); err != nil {
					t.Errorf("%s: %v", kind, err)
				}
				if err := wait(t, x.bulk); err != nil {
					t.Errorf("%s: bulk: %v", kind, err)
				}
				synctest.Wait()
				if kind != transporttest.Late {
					if want := []uint64{5, 99}; !slices.Contains(x.imms, 5) || len(x.imms) != len(want) {
						t.Errorf("%s: immediates %v", kind, x.imms)
					}
					if !bytes.Equal(x.dst.Bytes()[4096:8192], x.mem[4096:8192]) {
						t.Errorf("%s: other bytes", kind)
					}
				}
				if len(x.events) != 1 {
					t.Errorf("%s: events %+v", kind, x.events)
				}
			})
		}
	}
}

// A small batch of memory that no rail may be used for alone does not go past others: each rail carries what it may.
func TestExpressRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := transporttest.NewNetwork()
		var here, there []transport.Rail
		for _, i := range []string{"0", "1"} {
			r := n.Rail("a" + i)
			r.Depth = 4096
			r.SetRate(64e6)
			here, there = append(here, r), append(there, n.Rail("b"+i))
		}
		a := engine(t, transport.Config{
			Rails: here, Clock: clock.Std(), SliceSize: 64e3, Select: transport.Affinity,
			Rank: func(location, rail string) int {
				if rail[len(rail)-1] == location[0] {
					return 0
				}
				return -1
			},
		})
		b := engine(t, transport.Config{Rails: there, Clock: clock.Std()})
		dst := register(t, b, "dst", 8<<20)
		var mem [2][]byte
		for i, location := range []string{"0", "1"} {
			s, err := a.Register("of rail "+location, make([]byte, 4<<20), location)
			if err != nil {
				t.Fatal(err)
			}
			mem[i] = s.Bytes()
		}
		target, err := a.Open(dst.Info())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		bulk := a.Submit(target, []transport.Request{{Local: mem[0]}}, transport.BatchOptions{})
		const rounds = 3
		for range rounds { // the first makes the express
			if err := wait(t, a.Submit(target, []transport.Request{{Local: mem[0][:4096], Offset: 4 << 20}, {Local: mem[1][:4096], Offset: 5 << 20}}, transport.BatchOptions{})); err != nil {
				t.Error(err)
			}
			if bulk.Status() != transport.InFlight && bulk.Err() == nil {
				bulk = a.Submit(target, []transport.Request{{Local: mem[0]}}, transport.BatchOptions{})
			}
		}
		if got := a.Rails()[1].Write.Bytes; got != rounds*4096 {
			t.Errorf("%d bytes went over the second rail, want %d", got, rounds*4096)
		}
		if err := wait(t, bulk); err != nil {
			t.Error(err)
		}
	})
}
