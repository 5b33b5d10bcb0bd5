package transport_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// Memory at the peer is near some of its rails, far from others, and must not be reached
// over some at all: the peer says so, and slices go by that as they do by how far the
// rails here are from the memory here.
func TestPeerRank(t *testing.T) {
	for _, sel := range transport.Selections {
		for _, c := range []struct {
			name        string
			here, there []int // ranks of the rails
			down        int   // a rail that is cut, -1 for none
			used        []int // by a little traffic, of selections that look at ranks
			banned      int   // -1 for none
		}{
			{"far there", nil, []int{1, 0, 1}, -1, []int{1}, -1},
			{"far here", []int{1, 1, 0}, nil, -1, []int{2}, -1},
			{"the farther end counts", []int{0, 2, 3}, []int{3, 1, 0}, -1, []int{1}, -1},
			{"banned there", nil, []int{-1, 1, 0}, -1, []int{2}, 0},
			{"the near one is cut", nil, []int{2, 1, 0}, 2, []int{1}, -1},
		} {
			t.Run(fmt.Sprint(sel, ", ", c.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := transporttest.NewNetwork()
					var here, there []transport.Rail
					for i := range 3 {
						here, there = append(here, n.Rail(fmt.Sprint("a", i))), append(there, n.Rail(fmt.Sprint("b", i)))
					}
					ranks := func(of []int) func(location, rail string) int {
						return func(_, rail string) int {
							if of == nil {
								return 0
							}
							return of[rail[len(rail)-1]-'0']
						}
					}
					a := engine(t, transport.Config{Rails: here, Clock: clock.Std(), Select: sel, Rank: ranks(c.here)})
					b := engine(t, transport.Config{Rails: there, Clock: clock.Std(), Rank: ranks(c.there)})
					src, dst := register(t, a, "src", 256<<10), register(t, b, "dst", 256<<10)
					for i, r := range dst.Info().Rails {
						if c.there != nil && r.Rank != c.there[i] {
							t.Errorf("the peer is told rank %d of %s, want %d", r.Rank, r.Rail, c.there[i])
						}
					}
					target, err := a.Open(dst.Info())
					if err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					if c.down >= 0 {
						here[c.down].(*transporttest.Rail).BlackHole(true)
						cut := a.Submit(target, []transport.Request{{Local: src.Bytes()}}, transport.BatchOptions{Timeout: 10 * time.Second})
						if err := wait(t, cut); err != nil {
							t.Fatal(err)
						}
					}
					before := a.Rails()
					for range 20 {
						if err := wait(t, a.Submit(target, []transport.Request{{Local: src.Bytes()}}, transport.BatchOptions{Imm: 1, HasImm: true})); err != nil {
							t.Fatal(err)
						}
					}
					var used []int
					for i, st := range a.Rails() {
						if st.Write.Bytes > before[i].Write.Bytes {
							used = append(used, i)
						}
						if i == c.banned && st.Immediates > 0 {
							t.Errorf("rail %d carried %d immediates: it must not be used", i, st.Immediates)
						}
					}
					if (sel == transport.Affinity || sel == transport.Single) && !slices.Equal(used, c.used) {
						t.Errorf("rails %d were used, want %d", used, c.used)
					}
					if slices.Contains(used, c.banned) {
						t.Errorf("rails %d were used: %d must not be", used, c.banned)
					}
				})
			})
		}
	}
}

// A path that was lost comes back by itself if its peer has others: nothing waits for it
// that would bring it back.
func TestComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := transporttest.NewNetwork()
		first := n.Rail("a0")
		a := engine(t, transport.Config{Rails: []transport.Rail{first, n.Rail("a1")}, Clock: clock.Std(), Select: transport.RoundRobin})
		b := engine(t, transport.Config{Rails: []transport.Rail{n.Rail("b0"), n.Rail("b1")}, Clock: clock.Std()})
		src, dst := register(t, a, "src", 64), register(t, b, "dst", 64)
		target, err := a.Open(dst.Info())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		first.Inject(transporttest.Fault{Slice: first.Carried() + 1, Kind: transporttest.Cut})
		if err := wait(t, a.Submit(target, []transport.Request{{Op: transport.Read, Local: src.Bytes()}}, transport.BatchOptions{})); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Second)
		st := a.Rails()
		if st[0].Downs != 1 || st[1].Read.Slices != 1 {
			t.Fatalf("the first path was not lost, or the other has not read: %+v", st)
		}
		if st[0].Up != 1 || st[0].Dials != 2 {
			t.Errorf("the first path is not back: %+v", st[0])
		}
	})
}
