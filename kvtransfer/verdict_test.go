package kvtransfer

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/transport"
)

// TestVerdicts: a transfer that wrote can be blamed while it runs and for a while after,
// once; one that read is judged at once, by the first word.
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

		n++
		g := c.b.grant(n, Terms{Op: transport.Read, Blocks: refs(0, 1), Tokens: 4})
		r := c.a.open(g.Descriptor(), Options{})
		c.a.start(r, transport.Read, Whole, refs(0, 1), false, 0)
		synctest.Wait()
		c.a.ended(nil)
		r.Blame(wrong)
		r.Blame(wrong)
		r.Vouch()
		if strikes() != 3 {
			t.Errorf("%d strikes, want 3", strikes())
		}
		r.Close(true)
	})
}

// TestEnded: what is remembered of transfers that wrote is bounded, in number and in time;
// of those that read nothing is.
func TestEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, nil)
		defer c.close()
		end := func(key any, wrote bool) {
			c.a.mu.Lock()
			defer c.a.mu.Unlock()
			c.a.retireLocked(&Transfer{a: c.a.Agent, opt: Options{Key: key}, wrote: wrote}, true)
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
