package kvtransfer

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/transport"
)

// TestVerdicts: a transfer that wrote can be blamed while it runs and for a while after,
// once; so can one that read, unless it was vouched for.
func TestVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, nil)
		defer c.close()
		wrong := errors.New("wrong bytes")
		strikes := func() int64 { return c.a.Rails()[0].Strikes }
		n := uint64(0)
		wrote := func(key any) *Transfer {
			n++
			g := c.b.grant(n, Terms{Op: transport.Write, Blocks: refs(0, 1), Tokens: 4})
			x := c.a.open(g.Descriptor(), Options{Key: key})
			c.a.start(x, transport.Write, Whole, refs(0, 1), true, 0)
			synctest.Wait()
			c.a.ended(nil)
			return x
		}
		x := wrote(1)
		c.a.Blame(1, wrong) // what is under way may be just that: it counts at the end
		if strikes() != 0 {
			t.Error("blamed while it runs")
		}
		x.Close(true)
		if strikes() != 1 {
			t.Errorf("%d strikes, want 1", strikes())
		}
		c.a.Blame(1, wrong)
		wrote(2).Close(true)
		c.a.Blame(2, wrong) // when it has ended
		c.a.Blame(2, wrong)
		c.a.Blame("nobody's", wrong)
		if strikes() != 2 {
			t.Errorf("%d strikes, want 2", strikes())
		}
		wrote(3).Close(true)
		<-time.After(judgeWithin + 1)
		wrote(4).Close(true)
		c.a.Blame(3, wrong) // too late
		if strikes() != 2 {
			t.Errorf("%d strikes, want 2", strikes())
		}

		twice := wrote(5)
		twice.Close(true)
		twice.Close(true)
		c.a.Blame(5, wrong)
		c.a.Blame(5, wrong) // of what ended once
		if strikes() != 3 {
			t.Errorf("%d strikes, want 3", strikes())
		}

		n++
		g := c.b.grant(n, Terms{Op: transport.Read, Blocks: refs(0, 1), Tokens: 4})
		read := func(key any) *Transfer {
			r := c.a.open(g.Descriptor(), Options{Key: key})
			c.a.start(r, transport.Read, Whole, refs(0, 1), false, 0)
			synctest.Wait()
			c.a.ended(nil)
			return r
		}
		read(6).Close(true)
		c.a.Blame(6, wrong)
		c.a.Blame(6, wrong)
		right := read(7)
		right.Vouch()
		right.Close(true)
		c.a.Blame(7, wrong)
		if strikes() != 4 {
			t.Errorf("%d strikes, want 4", strikes())
		}
	})
}

// TestEnded: what is remembered of transfers that wrote is bounded, in number and in time;
// of those that read and were vouched for nothing is.
func TestEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, nil)
		defer c.close()
		end := func(key any, wrote bool) {
			c.a.mu.Lock()
			defer c.a.mu.Unlock()
			c.a.retireLocked(&Transfer{a: c.a.Agent, opt: Options{Key: key}, wrote: wrote, judged: !wrote}, true)
		}
		for i := range 2 * maxEnded {
			end(i, true)
		}
		if len(c.a.Agent.ended) != maxEnded {
			t.Errorf("%d transfers are remembered", len(c.a.Agent.ended))
		}
		<-time.After(judgeWithin + 1)
		end("read", false)
		end(nil, true) // nobody could blame it
		if len(c.a.Agent.ended) != 0 {
			t.Errorf("%d transfers are remembered after %v", len(c.a.Agent.ended), judgeWithin)
		}
	})
}

// TestPraise: 32 transfers whose bytes were right clear a path of its strikes, so that the
// third strike does not put it to rest. Each counts once, and of those that wrote the ones
// that ended well, when nobody has complained in time.
func TestPraise(t *testing.T) {
	const run = 32 // of package selection
	for name, test := range map[string]struct {
		op     transport.Op
		well   bool
		vouch  []int // how often, of each transfer
		clears bool
	}{
		"each vouched for":       {transport.Read, true, slices.Repeat([]int{1}, run), true},
		"one of them not":        {transport.Read, true, append([]int{0}, slices.Repeat([]int{1}, run-1)...), false},
		"one vouched for often":  {transport.Read, true, []int{run}, false},
		"nobody complains":       {transport.Write, true, make([]int, run), true},
		"they did not end well":  {transport.Write, false, make([]int, run), false},
		"one too few ended well": {transport.Write, true, make([]int, run-1), false},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newCouple(t, nil)
			defer c.close()
			wrong := errors.New("wrong bytes")
			d := c.b.grant(1, Terms{Op: test.op, Blocks: refs(0, 1), Tokens: 4}).Descriptor()
			move := func(key any) *Transfer {
				x := c.a.open(d, Options{Key: key})
				c.a.start(x, test.op, Whole, refs(0, 1), false, 0)
				synctest.Wait()
				c.a.ended(nil)
				return x
			}
			strike := func() {
				move("struck").Close(false)
				c.a.Blame("struck", wrong)
			}
			strike()
			strike()
			for i, times := range test.vouch {
				x := move(i)
				for range times {
					x.Vouch()
				}
				x.Close(test.well)
			}
			<-time.After(judgeWithin + 1)
			c.a.open(d, Options{}).Close(false) // those before it are judged now
			strike()
			if strikes, rests := c.a.Rails()[0].Strikes, c.a.Rails()[0].Rests; strikes != 3 || (rests == 0) != test.clears {
				t.Errorf("%s: %d strikes, %d rests; the path is clear after two of them: want %t", name, strikes, rests, test.clears)
			}
		})
	}
}
