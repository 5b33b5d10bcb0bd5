package kvtransfer

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock"
	"kvferry/kvcache"
	"kvferry/transport"
	"kvferry/transport/pacing"
	"kvferry/transport/transporttest"
)

// TestOfferReadRelease: the blocks of a computed prompt, with their hidden states, are read
// by the node that decodes, checked there, and given back when it says so.
func TestOfferReadRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, nil)
		defer c.close()
		const tokens = 11
		content := kvcache.NewContent(geometry, "", "", prompt(tokens))
		theirs, mine := refs(3, 3), refs(20, 3)
		c.a.fill(content, theirs)
		d := c.a.grant(1<<40+5, Terms{Op: transport.Read, Blocks: theirs, Tokens: tokens, Hidden: true}).Descriptor()
		if d.Node != "a" || d.Transfer != 1<<40+5 || d.Tokens != tokens || len(d.Blocks) != 3 || d.Blocks[2] != (kvcache.Entry{Index: 2, Ref: theirs[2]}) {
			t.Errorf("%+v", d)
		}
		x := c.b.open(d, Options{Tag: "request"})
		c.b.start(x, transport.Read, Whole, mine, false, 0)
		c.b.start(x, transport.Read, Part{Layer: AllLayers, Plane: Hidden}, mine, false, 0)
		synctest.Wait()
		c.b.ended(nil, nil)
		hidden := Part{Layer: AllLayers, Plane: Hidden}
		for _, test := range []struct {
			name  string
			part  Part
			want  Digests
			spoil []byte // has a bit flipped
			found Checked
			err   error
		}{
			{"without digests", Whole, Digests{}, nil, Checked{}, nil},
			{"landed with a wrong byte", Whole, d.Digests, c.b.slab.Layer(mine[1].ID, 2)[5:], Checked{Blocks: 3, Bad: 1, From: 1}, nil},
			{"hidden states landed with one", hidden, d.Hidden, c.b.slab.Hidden(mine[0].ID)[3:], Checked{Blocks: 3, Bad: 1}, nil},
			{"landed", Whole, d.Digests, nil, Checked{Blocks: 3}, nil},
			{"hidden states landed", hidden, d.Hidden, nil, Checked{Blocks: 3}, nil},
			{"a layer again", Part{Layer: 1}, Digests{}, nil, Checked{Blocks: 3}, nil},
			{"changed since", Whole, d.Digests, c.b.slab.Layer(mine[2].ID, 0)[1:], Checked{Blocks: 3, Bad: 1, From: 2}, kvcache.ErrChanged},
			{"in another layer", Part{Layer: 1}, Digests{}, c.b.slab.Layer(mine[2].ID, 0)[1:], Checked{Blocks: 3}, nil},
			{"past the end", Whole, Digests{}, c.b.slab.K(mine[2].ID, 0)[3*geometry.LayerBytes()/2/geometry.BlockTokens:], Checked{Blocks: 3}, nil},
		} {
			if test.spoil != nil {
				test.spoil[0] ^= 1
			}
			ended := false
			c.b.Check(Check{Blocks: mine, Part: test.part, Want: test.want}, func(e Checked) {
				ended = true
				var at *kvcache.DigestError
				if e.Blocks != test.found.Blocks || e.Bad != test.found.Bad || e.From != test.found.From || (e.Err != nil) != (e.Bad > 0) || test.err != nil && !errors.Is(e.Err, test.err) ||
					e.Bad > 0 && (!errors.As(e.Err, &at) || at.Index != e.From) {
					t.Errorf("%s: %+v", test.name, e)
				}
			})
			synctest.Wait()
			if !ended {
				t.Errorf("%s: the check has not ended", test.name)
			}
			if test.spoil != nil {
				test.spoil[0] ^= 1
			}
		}
		c.a.over(d.Transfer)
		x.Release()
		x.Release()
		synctest.Wait()
		c.a.over(d.Transfer, Released)
		c.a.Released(d.Transfer) // said again
		c.b.start(x, transport.Read, Whole, mine, false, 0)
		synctest.Wait()
		c.b.ended(ErrWithdrawn)
		x.Close(true)
		c.a.empty()
		c.b.empty()
	})
}

// TestReserveWrite: reserved blocks are written layer by layer; the node that has them hears
// of each layer once it is there, with the writer's value, and takes the grant back.
func TestReserveWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, nil)
		defer c.close()
		const tokens = 10
		content := kvcache.NewContent(geometry, "", "", prompt(tokens))
		theirs, mine := refs(3, 3), refs(20, 3)
		c.a.fill(content, mine)
		g := c.b.grant(7, Terms{Op: transport.Write, Blocks: theirs[1:], First: 1, Tokens: tokens}) // block 0 is cached
		x := c.a.open(g.Descriptor(), Options{})
		checks := 0
		for l := range geometry.Layers {
			c.a.start(x, transport.Write, Part{Layer: l}, mine, true, uint32(100+l))
			synctest.Wait()
			c.b.mu.Lock()
			if n := len(c.b.came); n != l+1 || c.b.came[l].Layer != l || c.b.came[l].Value != uint32(100+l) {
				t.Fatalf("layer %d: %+v", l, c.b.came)
			}
			c.b.mu.Unlock()
			c.b.mu.Lock()
			want := c.b.came[l].Digests
			c.b.mu.Unlock()
			c.b.Check(Check{Blocks: theirs[1:], First: 1, Part: Part{Layer: l}, Want: want}, func(e Checked) {
				checks++
				if e.Bad > 0 || e.Blocks != 2 {
					t.Errorf("layer %d: %+v", l, e)
				}
			})
			synctest.Wait()
		}
		if checks != geometry.Layers {
			t.Errorf("%d of %d checks have ended", checks, geometry.Layers)
		}
		c.a.ended(nil, nil, nil)
		c.a.start(x, transport.Read, Whole, mine, false, 0) // the other way
		synctest.Wait()
		c.a.ended(transport.ErrAccess)
		g.Close()
		g.Close()
		synctest.Wait()
		c.b.over(7, Closed)
		c.a.start(x, transport.Write, Whole, mine, true, 0)
		synctest.Wait()
		c.a.ended(ErrWithdrawn)
		if len(c.b.came) != geometry.Layers {
			t.Errorf("%d arrivals", len(c.b.came))
		}
		x.Close(true)
		c.a.empty()
		c.b.empty()
	})
}

// TestLease: a grant that nobody ends ends itself, when its lease is over since it was last
// renewed; and nobody can read the blocks from then on.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, nil)
		defer c.close()
		const lease = time.Minute
		g := c.a.grant(1, Terms{Op: transport.Read, Blocks: refs(0, 2), Tokens: 8, Lease: lease})
		c.a.grant(2, Terms{Op: transport.Read, Blocks: refs(2, 2), Tokens: 8}) // until somebody ends it
		ended := c.a.grant(4, Terms{Op: transport.Read, Blocks: refs(4, 1), Tokens: 4})
		if !ended.Renew() {
			t.Error("a grant without a lease is open, and was not renewed")
		}
		ended.Close()
		if ended.Renew() {
			t.Error("a grant without a lease was renewed when it had ended")
		}
		x := c.b.open(g.Descriptor(), Options{})
		<-time.After(lease - 1)
		if !c.a.Renew(1) || c.a.Renew(3) {
			t.Error("it has lapsed too early, or one that is not there was renewed")
		}
		<-time.After(lease - 1)
		c.b.start(x, transport.Read, Whole, refs(0, 2), false, 0)
		synctest.Wait()
		c.b.ended(nil)
		c.a.over(1)
		<-time.After(1)
		synctest.Wait()
		c.a.over(1, Lapsed)
		if g.Renew() {
			t.Error("renewed when it had lapsed")
		}
		g.Close()
		x.Release()
		c.b.start(x, transport.Read, Whole, refs(0, 2), false, 0)
		synctest.Wait()
		c.b.ended(ErrWithdrawn)
		<-time.After(100 * lease)
		synctest.Wait()
		c.a.over(1, Lapsed)
		c.a.over(2)
		x.Close(false)
	})
}

// TestCancel: of a transfer that is canceled in mid-move, with another that waits for room,
// each move ends once, long before its time is over; so do those that come later.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, func(cfg *Config) { cfg.UnderWay, cfg.Timeout = 1, time.Hour })
		defer c.close()
		g := c.a.grant(1, Terms{Op: transport.Read, Blocks: refs(0, 2), Tokens: 8})
		x, other := c.b.open(g.Descriptor(), Options{}), c.b.open(g.Descriptor(), Options{})
		c.b.rail.BlackHole(true)
		began := c.b.clk.Now()
		c.b.start(x, transport.Read, Whole, refs(0, 2), false, 0)
		c.b.start(x, transport.Read, Whole, refs(4, 2), false, 0)
		c.b.start(other, transport.Read, Whole, refs(6, 2), false, 0)
		<-time.After(time.Second)
		if n := x.Moves(); n != 2 {
			t.Errorf("%d moves have not ended", n)
		}
		x.Cancel()
		c.b.rail.BlackHole(false)
		<-time.After(time.Minute)
		synctest.Wait()
		c.b.ended(transport.ErrCanceled, transport.ErrCanceled, nil)
		if n := x.Moves() + other.Moves(); n != 0 {
			t.Errorf("%d moves have not ended", n)
		}
		c.b.start(x, transport.Read, Whole, refs(0, 2), false, 0)
		c.b.ended(transport.ErrCanceled)
		x.Close(false)
		c.b.start(x, transport.Read, Whole, refs(0, 2), false, 0)
		c.b.ended(net.ErrClosed)
		other.Close(false)
		if c.b.clk.Now()-began > time.Hour {
			t.Error("too late")
		}
		c.b.empty()
	})
}

// TestCancelWaiting: a move that waits behind another transfer's, which stands still, ends at
// once when it is canceled.
func TestCancelWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, func(cfg *Config) { cfg.UnderWay, cfg.Timeout = 1, time.Hour })
		defer c.close()
		g := c.a.grant(1, Terms{Op: transport.Read, Blocks: refs(0, 2), Tokens: 8})
		first, x := c.b.open(g.Descriptor(), Options{}), c.b.open(g.Descriptor(), Options{})
		c.b.rail.BlackHole(true)
		c.b.start(first, transport.Read, Whole, refs(0, 2), false, 0)
		c.b.start(x, transport.Read, Whole, refs(4, 2), false, 0)
		x.Cancel()
		c.b.ended(transport.ErrCanceled)
		if first.Moves() != 1 || x.Moves() != 0 {
			t.Errorf("%d and %d moves have not ended", first.Moves(), x.Moves())
		}
		x.Close(false)
		first.Close(false)
		<-time.After(time.Second) // for the connection to be given up
		synctest.Wait()
		c.b.ended(transport.ErrCanceled)
		c.b.empty()
	})
}

// TestForeignArrival: who may write for one grant cannot say of another's blocks that
// something is there. The log says so, once for a grant.
func TestForeignArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		before := slog.Default()
		defer slog.SetDefault(before)
		slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
		c := newCouple(t, func(cfg *Config) { cfg.Logger = nil })
		defer c.close()
		own := c.b.grant(1, Terms{Op: transport.Write, Blocks: refs(0, 1), Tokens: 4}).Descriptor()
		c.b.grant(2, Terms{Op: transport.Write, Blocks: refs(1, 1), Tokens: 4})
		own.Transfer = 2
		x := c.a.open(own, Options{})
		c.a.start(x, transport.Write, Whole, refs(0, 1), true, 9)
		c.a.start(x, transport.Write, Whole, refs(0, 1), true, 9)
		synctest.Wait()
		c.a.ended(nil, nil)
		if len(c.b.came) > 0 {
			t.Errorf("heard of %+v", c.b.came)
		}
		if n := strings.Count(said.String(), "another transfer's window"); n != 1 {
			t.Errorf("the log says %d times: %s", n, &said)
		}
		x.Close(true)
	})
}

// TestDeadline: a transfer ends when it should, with moves that are under way and others
// that wait.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, func(cfg *Config) { cfg.UnderWay, cfg.Timeout = 1, time.Hour })
		defer c.close()
		g := c.a.grant(1, Terms{Op: transport.Read, Blocks: refs(0, 2), Tokens: 8})
		x := c.b.open(g.Descriptor(), Options{Deadline: c.b.clk.Now() + time.Minute})
		c.b.rail.BlackHole(true)
		c.b.start(x, transport.Read, Whole, refs(0, 2), false, 0)
		c.b.start(x, transport.Read, Whole, refs(4, 2), false, 0)
		<-time.After(time.Minute - 1)
		synctest.Wait()
		c.b.ended()
		<-time.After(time.Second) // and some for the connection to be given up
		synctest.Wait()
		c.b.ended(transport.ErrDeadline, transport.ErrDeadline)
		x.Close(false)
		c.b.empty()
	})
}

// TestPeerVanishes: moves to or from a node that answers nobody end within the timeout, and
// what has waited behind them for as long ends with them; what came later has its turn. The
// other way round, a peer that was granted blocks and vanishes is what TestLease is about.
func TestPeerVanishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 10 * time.Second
		c := newCouple(t, func(cfg *Config) { cfg.UnderWay, cfg.Timeout = 1, timeout })
		defer c.close()
		g := c.a.grant(1, Terms{Op: transport.Read, Blocks: refs(0, 2), Tokens: 8})
		x := c.b.open(g.Descriptor(), Options{})
		c.b.rail.BlackHole(true)
		c.b.start(x, transport.Read, Whole, refs(0, 2), false, 0)
		c.b.start(x, transport.Read, Whole, refs(2, 2), false, 0)
		<-time.After(timeout / 2)
		c.b.start(x, transport.Read, Whole, refs(4, 2), false, 0)
		<-time.After(timeout/2 + time.Second)
		synctest.Wait()
		c.b.mu.Lock()
		for _, m := range c.b.moved {
			if !errors.Is(m.Err, transport.ErrDeadline) {
				t.Error(m.Err)
			}
		}
		if len(c.b.moved) != 2 || !strings.Contains(c.b.moved[0].Err.Error(), "behind another") {
			t.Errorf("%v", c.b.moved)
		}
		c.b.moved = nil
		c.b.mu.Unlock()
		c.b.rail.BlackHole(false)
		<-time.After(timeout)
		synctest.Wait()
		c.b.ended(nil)
		x.Close(false)
		c.b.empty()
	})
}

// TestGrantFaults: what cannot be granted is said.
func TestGrantFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, nil)
		defer c.close()
		c.a.grant(1, Terms{Op: transport.Read, Blocks: refs(0, 1), Tokens: 1})
		for want, terms := range map[string]Terms{
			"there is a grant 1 already": {Op: transport.Read, Blocks: refs(1, 1), Tokens: 1},
			"OnArrival is nil":           {Op: transport.Write, Blocks: refs(1, 1), Tokens: 1},
			"grant 1: Lease is -1ns":     {Op: transport.Read, Blocks: refs(1, 1), Tokens: 1, Lease: -1},
			"open window a/1":            {Op: transport.Read, Blocks: refs(blocks, 1), Tokens: 1},
		} {
			if _, err := c.a.Grant(1, terms); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
	})
}

// TestReadGrantHearsNothing: who may read blocks says nothing of them.
func TestReadGrantHearsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, nil)
		defer c.close()
		g := c.b.grant(5, Terms{Op: transport.Read, Blocks: refs(0, 1), Tokens: 4})
		x := c.a.open(g.Descriptor(), Options{})
		c.a.start(x, transport.Read, Whole, refs(0, 1), true, 9)
		synctest.Wait()
		c.a.ended(nil)
		if len(c.b.came) != 0 {
			t.Errorf("heard of %+v", c.b.came)
		}
		x.Close(true)
		g.Close()
	})
}

// noTimers is the clock of a machine that has run out of them.
type noTimers struct{ clock.Clock }

func (noTimers) NewTimer() (clock.Timer, error) { return nil, errors.New("no timers") }

// TestConfigFaults: each is named, and the rails of an agent that is not made are closed.
func TestConfigFaults(t *testing.T) {
	slab, err := kvcache.NewSlab(geometry, make([]byte, geometry.SlotBytes()))
	if err != nil {
		t.Fatal(err)
	}
	network := transporttest.NewNetwork()
	for i, spoil := range []func(*Config){
		func(c *Config) { c.Name = "" },
		func(c *Config) { c.Slab = nil },
		func(c *Config) { c.Timeout = -1 },
		func(c *Config) { c.UnderWay = -1 },
		func(c *Config) { c.Transport.OnMessage = func(transport.Message) {} },
		func(c *Config) { c.Transport.SliceSize = -1 },
		func(c *Config) {
			c.Transport.Link, c.Transport.Clock = &pacing.Link{BytesPerSecond: 1}, noTimers{clock.Std()}
		},
		func(c *Config) { c.Transport.Rank = func(string, string) int { return -1 } },
	} {
		want := []string{"Name", "Slab: none given", "kvtransfer.Config.Timeout: -1ns", "UnderWay", "Transport.OnMessage", "SliceSize", "no timers", "register a/kv: no rail"}[i]
		cfg := Config{Name: "a", Slab: slab, Transport: transport.Config{Rails: []transport.Rail{network.Rail(fmt.Sprint(i))}}}
		spoil(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		network.Rail(fmt.Sprint(i)).Close() // panics if the last one of that name is open
	}
}
