package rdma

import (
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Polling goes on while it finds something, stops when it does not, and comes back.
func TestSpinner(t *testing.T) {
	s := spinner{most: time.Microsecond, score: maxScore}
	run := func(n int, hit func(i int) bool) (spins int) {
		for i := range n {
			if s.next() > 0 {
				spins++
			}
			s.found(hit(i))
		}
		return spins
	}
	if n := run(1000, func(i int) bool { return i%4 == 0 }); n != 1000 {
		t.Errorf("%d of 1000 polls spin, and one in four finds something", n)
	}
	if n := run(1000, func(int) bool { return false }); n > maxScore+1000/probeEvery+1 {
		t.Errorf("%d of 1000 polls spin for nothing", n)
	}
	if n := run(1000, func(int) bool { return true }); n < 1000-probeEvery {
		t.Errorf("%d of 1000 polls spin where all would find something", n)
	}
}

// asker answers every frame.
type asker struct {
	handler
	l *link
}

func (a asker) frame(f *frame) error {
	a.l.send(*f)
	return nil
}

// quiet are queue pairs that nothing uses.
type quiet struct{ pairs }

func (quiet) interrupt() {}

// TestPeerThatDoesNotRead: the answers to a peer that asks and does not read are bounded, as its frames are left where they
// are; once it reads, all are answered.
func TestPeerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		l := &link{c: here, pairs: quiet{}, kick: make(chan struct{}, 1)}
		l.drained = sync.NewCond(&l.mu)
		var all sync.WaitGroup
		all.Go(l.write)
		all.Go(func() { l.read(asker{l: l}) })
		const frames = 4 * mostOut / frameLen
		sent, received := 0, int64(0)
		f := frame{typ: frameResolve, key: 7}
		b := f.append(nil)
		all.Go(func() {
			for ; sent < frames; sent++ {
				if _, err := there.Write(b); err != nil {
					t.Error(err)
				}
			}
		})
		synctest.Wait()
		if most := 2*mostOut/frameLen + 4; sent > most {
			t.Errorf("%d frames were taken, want at most %d", sent, most)
		}
		all.Go(func() { received, _ = io.CopyN(io.Discard, there, frames*frameLen) })
		synctest.Wait()
		if sent != frames || received != frames*frameLen {
			t.Errorf("%d of %d frames were taken, and %d bytes answered", sent, frames, received)
		}
		there.Close()
		all.Wait()
	})
}
