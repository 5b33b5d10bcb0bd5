package kvtransfer

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"kvferry/internal/clock/clocktest"
	"kvferry/kvcache"
	"kvferry/transport"
)

// A load counts grants and moves of many at once, and how often they ended.
type load struct {
	t                       *testing.T
	busy                    chan struct{} // closed once some moves have started
	mu                      sync.Mutex
	started, ended, granted int
}

// run has one half grant blocks 200 times, and the other move all layers of them, some of
// which it does not wait for.
func (l *load) run(from, to *half, op transport.Op, n int) {
	for i := range 200 {
		id := uint64(n*1000 + i)
		g := l.grant(from, op, id)
		if g == nil {
			return
		}
		if x, err := to.Open(g.Descriptor(), Options{Key: id}); err == nil {
			for layer := range geometry.Layers {
				l.move(x, op, layer)
			}
			if i%2 == 0 {
				x.Close(i%4 == 0)
			}
		}
		if i%3 == 0 {
			g.Close()
		}
	}
}

// grant is nil when the agent is closed.
func (l *load) grant(from *half, op transport.Op, id uint64) *Grant {
	ends := 0
	g, err := from.Grant(id, Terms{Op: op, Blocks: refs(0, 4), Tokens: 16, OnArrival: func(Arrival) {}, OnEnd: func(End) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if ends++; ends > 1 {
			l.t.Error("a grant ended twice")
		}
		l.granted--
	}})
	if err != nil {
		if !errors.Is(err, net.ErrClosed) {
			l.t.Error(err)
		}
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.granted++
	return g
}

func (l *load) move(x *Transfer, op transport.Op, layer int) {
	l.mu.Lock()
	if l.started++; l.started == 300 {
		close(l.busy)
	}
	l.mu.Unlock()
	x.Move(Move{Op: op, Part: Part{Layer: layer}, Pairs: kvcache.Pairs(refs(8, 4), x.Descriptor().Blocks, 0), Notify: op == transport.Write, Done: func(Moved) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ended++
	}})
}

// TestCloseUnderLoad closes one agent, then the other, while both read and write as fast as
// they can: every move and every grant ends exactly once, and nothing works afterwards.
func TestCloseUnderLoad(t *testing.T) {
	for _, first := range []string{"a", "b"} {
		t.Run(first, func(t *testing.T) {
			c := newCouple(t, func(cfg *Config) { cfg.UnderWay = 1000 })
			l := &load{t: t, busy: make(chan struct{})}
			var all sync.WaitGroup
			for n := range 4 {
				all.Go(func() { l.run(c.a, c.b, transport.Op(n%2), n) })
				all.Go(func() { l.run(c.b, c.a, transport.Op(n%2), 10+n) })
			}
			h, o := c.a, c.b
			if first == "b" {
				h, o = o, h
			}
			clocktest.Receive(t, l.busy, "some moves")
			if err := h.Close(); err != nil {
				t.Error(err)
			}
			all.Wait()
			if err := o.Close(); err != nil {
				t.Error(err)
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			t.Logf("%d moves", l.started)
			if l.started != l.ended || l.granted != 0 {
				t.Errorf("of %d moves %d have ended, %d grants have not", l.started, l.ended, l.granted)
			}
			if _, err := h.Grant(1, Terms{Op: transport.Read, Blocks: refs(0, 1), Tokens: 1}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a grant afterwards: %v", err)
			}
			checks := 0
			h.Check(Check{Blocks: refs(0, 1), Part: Whole}, func(e Checked) {
				checks++
				if !errors.Is(e.Err, net.ErrClosed) {
					t.Errorf("a check afterwards: %+v", e)
				}
			})
			if checks != 1 {
				t.Errorf("a check afterwards has ended %d times", checks)
			}
			if err := errors.Join(c.a.unmap(), c.b.unmap()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCloseTwice: whoever closes an agent may unmap the slab then, the second one too.
func TestCloseTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, nil)
		defer c.close()
		hold := make(chan struct{})
		if _, err := c.a.Grant(1, Terms{Op: transport.Read, Blocks: refs(0, 1), Tokens: 1, OnEnd: func(e End) {
			if e != Shutdown {
				t.Errorf("the grant is %v", e)
			}
			<-hold
		}}); err != nil {
			t.Fatal(err)
		}
		var closed atomic.Int64
		for range 2 {
			go func() {
				if err := c.a.Close(); err != nil {
					t.Error(err)
				}
				closed.Add(1)
			}()
		}
		synctest.Wait()
		if n := closed.Load(); n != 0 {
			t.Errorf("%d of 2 have returned before the grant has ended", n)
		}
		close(hold)
		synctest.Wait()
		if n := closed.Load(); n != 2 {
			t.Errorf("%d of 2 have returned", n)
		}
	})
}

// TestCloseUnderWay: while an agent closes, nothing can be opened any more; and what it
// knew of when that began is told afterwards.
func TestCloseUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, func(cfg *Config) { cfg.UnderWay = 1 })
		defer c.close()
		d := c.a.grant(1, Terms{Op: transport.Read, Blocks: refs(0, 1), Tokens: 4}).Descriptor()
		c.b.grant(2, Terms{Op: transport.Read, Blocks: refs(0, 1), Tokens: 4})
		x := c.b.open(d, Options{})
		c.b.rail.BlackHole(true)
		c.b.start(x, transport.Read, Whole, refs(0, 1), false, 0)
		ended := 0
		x.Move(Move{Op: transport.Read, Part: Whole, Pairs: kvcache.Pairs(refs(1, 1), d.Blocks, 0), Done: func(m Moved) { // it waits: Close ends it first
			ended++
			if _, err := c.b.Open(d, Options{}); !errors.Is(err, net.ErrClosed) || !errors.Is(m.Err, net.ErrClosed) {
				t.Errorf("a move ends with %v, and Open is %v", m.Err, err)
			}
		}})
		if err := c.b.Close(); err != nil {
			t.Error(err)
		}
		c.b.ended(net.ErrClosed)
		if want := (Left{Grants: 1, Transfers: 1, Peers: 1}); ended != 1 || c.b.Left() != want {
			t.Errorf("%d moves that waited have ended, %+v was left, want %+v", ended, c.b.Left(), want)
		}
	})
}

// keeps is a rail that gives memory back, and says that it could not.
type keeps struct{ transport.Rail }

func (k keeps) Deregister(key transport.Key) error {
	return errors.Join(k.Rail.Deregister(key), errors.New("the NIC keeps it"))
}

// TestWindowError: what a rail says when a grant's window is closed is logged, with the
// request, and the grant has ended.
func TestWindowError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		c := newCouple(t, func(cfg *Config) {
			cfg.Transport.Rails[0] = keeps{cfg.Transport.Rails[0]}
			cfg.Logger = slog.New(slog.NewTextHandler(&said, nil))
		})
		defer c.close()
		c.a.grant(1, Terms{Op: transport.Read, Blocks: refs(0, 1), Tokens: 4, Tag: "r-17"}).Close()
		synctest.Wait()
		c.a.over(1, Closed)
		if got := said.String(); !strings.Contains(got, "the NIC keeps it") || !strings.Contains(got, "request=r-17") {
			t.Errorf("the log says %q", got)
		}
	})
}
