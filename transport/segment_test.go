package transport_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// A second Close of a segment, beside the first, does not return while a batch has the
// memory.
func TestSegmentCloseTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{DefaultTimeout: time.Hour})
		start := time.Now()
		p.rail.Inject(transporttest.Fault{Slice: 1, Kind: transporttest.Delay, Delay: time.Second})
		b := p.a.Submit(p.target, p.reqs(transport.Read, 1), transport.BatchOptions{})
		synctest.Wait()
		first := make(chan error)
		go func() { first <- p.local.Close() }()
		synctest.Wait()
		if err := p.local.Close(); err != nil {
			t.Error(err)
		}
		if time.Since(start) != time.Second {
			t.Errorf("the second Close returned after %v, while a batch has the memory", time.Since(start))
		}
		clear(p.local.Bytes()) // a race if the batch still has it
		if err := errors.Join(<-first, wait(t, b)); err != nil {
			t.Error(err)
		}
	})
}

// Of several segments around a batch's memory the smallest is its local side, whatever
// the order in which they were registered, and never one that is being closed: its
// owner would wait for a batch that has nothing to do with it.
func TestOverlappingSegments(t *testing.T) {
	for _, order := range [][]string{{"all", "part"}, {"part", "all"}} {
		synctest.Test(t, func(t *testing.T) {
			n := transporttest.NewNetwork()
			// Memory at cpu:0 is near a0 and must not use a1; at cpu:1 the other way round.
			rank := func(location, rail string) int {
				if (location == "cpu:0") == (rail == "mem/a0") {
					return 0
				}
				return -1
			}
			rails := []transport.Rail{n.Rail("a0"), n.Rail("a1")}
			a := engine(t, transport.Config{Rails: rails, Clock: clock.Std(), Rank: rank, StallTimeout: time.Minute})
			b := engine(t, transport.Config{Rails: []transport.Rail{n.Rail("b0"), n.Rail("b1")}, Clock: clock.Std()})
			remote := register(t, b, "remote", segLen)
			mem := make([]byte, segLen)
			segs := map[string]*transport.Segment{}
			for _, name := range order {
				var err error
				switch name {
				case "all":
					segs[name], err = a.RegisterLocal(name, mem, "cpu:0")
				case "part":
					segs[name], err = a.RegisterLocal(name, mem[1024:2048], "cpu:1")
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			tgt, err := a.Open(remote.Info())
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			move := func(ranges ...[2]int) (over [2]int64) {
				t.Helper()
				before := a.Rails()
				var reqs []transport.Request
				for i, r := range ranges {
					reqs = append(reqs, transport.Request{Local: mem[r[0]:r[1]], Offset: int64(4096 * (i + 1))})
				}
				if err := wait(t, a.Submit(tgt, reqs, transport.BatchOptions{})); err != nil {
					t.Fatal(err)
				}
				for i, st := range a.Rails() {
					over[i] = st.Write.Bytes - before[i].Write.Bytes
				}
				return over
			}
			if over := move([2]int{0, 100}, [2]int{1024, 1224}, [2]int{1000, 1300}, [2]int{1100, 1110}); over != [2]int64{100 + 300, 200 + 10} {
				t.Errorf("%v: %d bytes went over each rail: not the registration of each", order, over)
			}
			// While the smaller one is being closed, the other stands in.
			rails[1].(*transporttest.Rail).Inject(transporttest.Fault{Slice: rails[1].(*transporttest.Rail).Carried() + 1, Kind: transporttest.Delay, Delay: time.Second})
			slow := a.Submit(tgt, []transport.Request{{Local: mem[1024:1034]}}, transport.BatchOptions{})
			closed := make(chan error)
			go func() { closed <- segs["part"].Close() }()
			synctest.Wait()
			if over := move([2]int{1024, 1224}); over != [2]int64{200, 0} {
				t.Errorf("%v: %d bytes went over each rail while the smaller segment was being closed", order, over)
			}
			start := time.Now()
			if err := errors.Join(<-closed, wait(t, slow)); err != nil || time.Since(start) != time.Second {
				t.Errorf("%v: closed after %v: %v", order, time.Since(start), err)
			}
		})
	}
}
