package rdma

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/transport"
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

// one is a queue pair with one completion, which is there when due has come, or never. It is the side of the link as well.
type one struct {
	pairs
	handler
	due  time.Time
	c    completion
	done bool
}

func (o *one) poll(out []completion, _ time.Duration) (int, error) {
	if o.done || o.due.IsZero() || time.Now().Before(o.due) {
		return 0, nil
	}
	o.done = true
	return copy(out, []completion{o.c}), nil
}

func (*one) interrupt()           {}
func (*one) fail() error          { return nil }
func (*one) flushed(*completion)  {}
func (*one) opName(uint64) string { return "write" }
func (o *one) underWay() bool     { return !o.done }

// TestRefused: a target whose queue pair has refused a request says so before it ends the connection, and the initiator
// then waits for its own device to say which; it does not wait for a target that was killed.
func TestRefused(t *testing.T) {
	for name, test := range map[string]struct {
		told     bool
		due      time.Duration // of the device's word, or 0: never
		want     error
		duration time.Duration
	}{
		"told":             {true, refusedFor / 2, transport.ErrBadKey, refusedFor / 2},
		"told, and silent": {true, 0, transport.ErrUnreachable, refusedFor + drainFor},
		"at once":          {false, drainFor / 2, transport.ErrBadKey, drainFor / 2},
		"killed":           {false, refusedFor / 2, transport.ErrUnreachable, 2 * drainFor},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				newLink := func(c net.Conn, o *one) *link {
					l := &link{rail: &Rail{}, c: c, pairs: o, kick: make(chan struct{}, 1)}
					l.drained = sync.NewCond(&l.mu)
					return l
				}
				start := time.Now()
				here, there := net.Pipe()
				initiator := &one{c: completion{id: 1, status: statusRemoteAccess}}
				if test.due > 0 {
					initiator.due = start.Add(test.due)
				}
				l := newLink(here, initiator)
				var all sync.WaitGroup
				all.Go(func() { l.read(initiator) })
				if test.told {
					target := &one{c: completion{id: receiveID, status: statusFlushed}, due: start}
					newLink(there, target).poll(target)
				} else {
					there.Close()
				}
				all.Wait()
				l.drain(initiator)
				if err := l.failed(); !errors.Is(err, test.want) {
					t.Errorf("%v, want %v", err, test.want)
				}
				if d := time.Since(start); d < test.duration || d > test.duration+drainFor/2 {
					t.Errorf("after %v, want %v", d, test.duration)
				}
			})
		})
	}
}
