package transport_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock"
	"kvferry/internal/clock/clocktest"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// A spoilt is two engines with two rails each, of which one corrupts what it carries.
type spoilt struct {
	t        *testing.T
	bad      *transporttest.Corrupter
	badIndex int
	a        *transport.Engine
	src, dst *transport.Segment
	target   *transport.Target
	log      *clocktest.Log

	mu     sync.Mutex // OnPath comes from several goroutines
	events []string
}

func newSpoilt(t *testing.T, badIndex int, sel transport.Selection) *spoilt {
	t.Helper()
	x := &spoilt{t: t, badIndex: badIndex, log: &clocktest.Log{}}
	n := transporttest.NewNetwork()
	var here, there []transport.Rail
	for i := range 2 {
		r := transport.Rail(n.Rail(fmt.Sprint("a", i)))
		if i == badIndex {
			x.bad = transporttest.Corrupt(r, 1)
			r = x.bad
		}
		here, there = append(here, r), append(there, n.Rail(fmt.Sprint("b", i)))
	}
	x.a = engine(t, transport.Config{
		Rails: here, Clock: clock.Std(), Select: sel, Logger: slog.New(slog.NewTextHandler(x.log, nil)),
		OnPath: func(ev transport.PathEvent) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.events = append(x.events, ev.Rail+" "+string(ev.State))
		},
	})
	b := engine(t, transport.Config{Rails: there, Clock: clock.Std()})
	x.src, x.dst = register(t, x.a, "src", 64<<10), register(t, b, "dst", 64<<10)
	for i := range x.src.Bytes() {
		x.src.Bytes()[i] = byte(i * 7)
	}
	var err error
	if x.target, err = x.a.Open(x.dst.Info()); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return x
}

// told is what OnPath has said.
func (x *spoilt) told() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return strings.Join(x.events, ", ")
}

var errWrong = errors.New("block 3 differs")

// transfer moves the segment, looks at what arrived, and says so. It returns how many
// slices the bad rail carried.
func (x *spoilt) transfer() (over int64, right bool) {
	x.t.Helper()
	before, _ := x.bad.Carried()
	var reqs []transport.Request
	for at := 0; at < 64<<10; at += 4 << 10 {
		reqs = append(reqs, transport.Request{Local: x.src.Bytes()[at : at+4<<10], Offset: int64(at)})
	}
	b := x.a.Submit(x.target, reqs, transport.BatchOptions{Tag: "cmpl-5"})
	if err := wait(x.t, b); err != nil {
		x.t.Fatal(err)
	}
	right = bytes.Equal(x.src.Bytes(), x.dst.Bytes())
	clear(x.dst.Bytes())
	if right {
		b.Trail().Vouch()
	} else {
		b.Trail().Blame(errWrong)
	}
	after, _ := x.bad.Carried()
	return after - before, right
}

// A rail that spoils everything is found, with nothing but the word on whole batches
// that the good one had its part in, and carries no more than probes from then on.
func TestBlame(t *testing.T) {
	for badIndex := range 2 {
		for _, sel := range transport.Selections {
			if sel == transport.Single && badIndex == 1 {
				continue // would never be used
			}
			t.Run(fmt.Sprintf("rail %d, %s", badIndex, sel), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					x := newSpoilt(t, badIndex, sel)
					const first, then = 10, 190
					wrong := 0
					for range first {
						if _, right := x.transfer(); !right {
							wrong++
						}
						<-time.After(100 * time.Millisecond)
					}
					// Three strikes, and one more to tell the bad one from the good one.
					if wrong < 3 || wrong > 5 {
						t.Errorf("%d of the first %d were wrong", wrong, first)
					}
					touched, slices := 0, int64(0)
					wrong = 0
					for range then {
						over, right := x.transfer()
						if over > 0 {
							touched++
						}
						if !right {
							wrong++
						}
						slices += over
						<-time.After(500 * time.Millisecond)
					}
					// Rests of 2, 4, 8, 16, 32 and 60 s within the 95 s.
					t.Logf("of the first %d and the next %d transfers, the bad rail had a part in %d, with %d of %d slices", first, then, touched, slices, then*16)
					if touched > 7 || wrong != touched {
						t.Errorf("the bad rail had a part in %d of %d transfers, %d were wrong", touched, then, wrong)
					}
					st := x.a.Rails()
					if bad, good := st[badIndex], st[1-badIndex]; bad.Strikes < 5 || bad.Rests < 3 || good.Rests > 4 || bad.Resting != 1 || good.Resting != 0 {
						t.Errorf("the bad one: %d strikes, %d rests, %d resting; the good one: %d, %d, %d",
							bad.Strikes, bad.Rests, bad.Resting, good.Strikes, good.Rests, good.Resting)
					}
					name := fmt.Sprint("mem/a", badIndex)
					if events := x.told(); !strings.Contains(events, name+" resting") || !strings.Contains(events[strings.Index(events, name+" resting"):], name+" up") {
						t.Errorf("events: %s", events)
					}
					for _, s := range []string{"bytes arrived wrong", "path is resting", "rail=" + name, fmt.Sprint("peer=b", badIndex), "batch=cmpl-5", errWrong.Error()} {
						if !strings.Contains(x.log.String(), s) {
							t.Errorf("%q is not in the log", s)
						}
					}
					// It is mended: within its rest and a run of good batches it has its share.
					x.bad.Every(0)
					<-time.After(61 * time.Second)
					for range 40 {
						if _, right := x.transfer(); !right {
							t.Error("a transfer over the mended rail was wrong")
						}
					}
					if over, _ := x.transfer(); over == 0 {
						t.Error("the mended rail is not used")
					}
					if st := x.a.Rails()[badIndex]; st.Resting != 0 {
						t.Errorf("it rests still: %+v", st)
					}
				})
			})
		}
	}
}

// One batch in five spoilt is found too; one bit in thousands is not taken for a habit.
func TestBlameNow(t *testing.T) {
	for _, c := range []struct {
		every int // slice
		rests bool
	}{{5 * 8, true}, {1000 * 8, false}} {
		synctest.Test(t, func(t *testing.T) {
			x := newSpoilt(t, 0, transport.Static) // eight slices of each batch
			x.bad.Every(c.every)
			for range 1000 {
				x.transfer()
				<-time.After(100 * time.Millisecond)
			}
			st := x.a.Rails()[0]
			if (st.Rests > 0) != c.rests {
				t.Errorf("every %d slices: %d strikes, %d rests", c.every, st.Strikes, st.Rests)
			}
		})
	}
}

// A path that has no other beside it goes on, and its strikes are told all the same;
// a record outlives the connections to a peer.
func TestBlameAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{IdleTimeout: time.Second})
		var b *transport.Batch
		for range 5 {
			b = p.a.Submit(p.target, p.reqs(transport.Write, 1), transport.BatchOptions{})
			if err := wait(t, b); err != nil {
				t.Fatal(err)
			}
			b.Trail().Blame(errWrong)
		}
		if st := p.a.Rails()[0]; st.Strikes != 5 || st.Rests != 1 || st.Resting != 1 {
			t.Errorf("%+v", st)
		}
		p.target.Close()
		<-time.After(10 * time.Second)
		p.open()
		synctest.Wait()
		b = p.a.Submit(p.target, p.reqs(transport.Write, 1), transport.BatchOptions{})
		if err := wait(t, b); err != nil {
			t.Fatal(err)
		}
		b.Trail().Blame(errWrong) // on trial
		if st := p.a.Rails()[0]; st.Rests != 2 {
			t.Errorf("a closed connection has cleared the record: %+v", st)
		}
		// What never started has gone no way, and can be blamed for nothing.
		p.a.Submit(nil, nil, transport.BatchOptions{}).Trail().Blame(errWrong)
		transport.Trail{}.Blame(errWrong)
		if st := p.a.Rails()[0]; st.Strikes != 6 {
			t.Errorf("%d strikes", st.Strikes)
		}
	})
}

// Trails of several batches with one peer are blamed together, for all paths that any of
// them took; what went to another peer has no part in it.
func TestTrailAdd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newSpoilt(t, 0, transport.RoundRobin)
		send := func(target *transport.Target) transport.Trail {
			t.Helper()
			b := x.a.Submit(target, []transport.Request{{Local: x.src.Bytes()[:100]}}, transport.BatchOptions{})
			if err := wait(t, b); err != nil {
				t.Fatal(err)
			}
			return b.Trail()
		}
		strikes := func() [2]int64 {
			st := x.a.Rails()
			return [2]int64{st[0].Strikes, st[1].Strikes}
		}
		send(x.target).Blame(errWrong) // over one of them
		if got := strikes(); got != [2]int64{1, 0} {
			t.Errorf("strikes %d after one batch over the first rail", got)
		}
		var all transport.Trail
		all.Add(send(x.target))
		all.Add(send(x.target))
		all.Blame(errWrong)
		if got := strikes(); got != [2]int64{2, 1} {
			t.Errorf("strikes %d after two batches together", got)
		}
		p := newPair(t, transport.Config{})
		b := p.a.Submit(p.target, p.reqs(transport.Write, 1), transport.BatchOptions{})
		if err := wait(t, b); err != nil {
			t.Fatal(err)
		}
		one := send(x.target) // over the second
		one.Add(b.Trail())    // over the first of another engine
		one.Blame(errWrong)
		if got := strikes(); got != [2]int64{2, 2} || p.a.Rails()[0].Strikes != 0 {
			t.Errorf("strikes %d, and %d of a rail to another peer", got, p.a.Rails()[0].Strikes)
		}
	})
}

// Thirty-two batches found right clear a path's strikes, or eight that it carried alone
// although there were others; of the only path to a peer none says more than that.
func TestVouch(t *testing.T) {
	for _, c := range []struct {
		paths, slices int
		right         int
		clears        bool
	}{
		{1, 1, 31, false},
		{1, 1, 32, true},
		{2, 2, 31, false},
		{2, 2, 32, true},
		{2, 1, 7, false},
		{2, 1, 8, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := transporttest.NewNetwork()
			var here, there []transport.Rail
			for i := range c.paths {
				here, there = append(here, n.Rail(fmt.Sprint("a", i))), append(there, n.Rail(fmt.Sprint("b", i)))
			}
			a := engine(t, transport.Config{Rails: here, Clock: clock.Std(), Select: transport.Static})
			b := engine(t, transport.Config{Rails: there, Clock: clock.Std()})
			src, dst := register(t, a, "src", 64), register(t, b, "dst", 64)
			target, err := a.Open(dst.Info())
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			var reqs []transport.Request
			for i := range c.slices {
				reqs = append(reqs, transport.Request{Local: src.Bytes()[i : i+1], Offset: int64(i)})
			}
			batch := a.Submit(target, reqs, transport.BatchOptions{})
			if err := wait(t, batch); err != nil {
				t.Fatal(err)
			}
			trail := batch.Trail()
			trail.Blame(errWrong)
			for range c.right {
				trail.Vouch()
			}
			trail.Blame(errWrong)
			trail.Blame(errWrong) // the third, or the second
			if rests := a.Rails()[0].Rests; (rests == 0) != c.clears {
				t.Errorf("%d paths, over %d of them: %d rests after a strike, %d batches that were right and two strikes", c.paths, c.slices, rests, c.right)
			}
			transport.Trail{}.Vouch() // nothing moved
		})
	}
}
