package admission

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var errLate = errors.New("too late")

// bodyQueue is bodies of a given size under test: take returns at once, and got
// names those that were let in, in order.
type bodyQueue struct {
	*Bodies
	t     *testing.T
	mu    sync.Mutex
	got   []string
	cut   []string
	holds map[string]*Hold
	errs  map[string]error
}

func newBodyQueue(t *testing.T, size int64) *bodyQueue {
	return &bodyQueue{Bodies: &Bodies{size: size * bodyFactor, clients: map[netip.Addr]*bodyClient{}}, t: t, holds: map[string]*Hold{}, errs: map[string]error{}}
}

// take asks for n bytes for the body name of a client, for a minute at most.
func (q *bodyQueue) take(client byte, name string, n int64) {
	go func() {
		h, err := q.Bodies.Take(context.Background(), time.Minute, errLate, netip.AddrFrom4([4]byte{10, 0, 0, client}), n, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.cut = append(q.cut, name)
		})
		q.mu.Lock()
		defer q.mu.Unlock()
		q.errs[name] = err
		if err == nil {
			q.got, q.holds[name] = append(q.got, name), h
		}
	}()
	synctest.Wait()
}

func (q *bodyQueue) release(names ...string) {
	for _, name := range names {
		q.hold(name).Release()
		synctest.Wait()
	}
}

func (q *bodyQueue) hold(name string) *Hold {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.holds[name]
}

func (q *bodyQueue) want(got ...string) {
	q.t.Helper()
	synctest.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	slices.Sort(q.got) // those let in together wake up in any order
	if !slices.Equal(q.got, got) {
		q.t.Errorf("let in: %v, want %v", q.got, got)
	}
	q.got = nil
}

func (q *bodyQueue) wantCut(cut ...string) {
	q.t.Helper()
	synctest.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	if !slices.Equal(q.cut, cut) {
		q.t.Errorf("cut: %v, want %v", q.cut, cut)
	}
	q.cut = nil
}

// empty fails if anything is left behind.
func (q *bodyQueue) empty() {
	q.t.Helper()
	synctest.Wait()
	if q.used != 0 || len(q.clients) != 0 {
		q.t.Errorf("%d bytes in use, %d clients are left", q.used, len(q.clients))
	}
}

const kib = 1 << 10

func TestBodiesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newBodyQueue(t, 100*kib)
		q.take(1, "a", 60*kib)
		q.take(1, "b", 40*kib)
		q.want("a", "b")
		// All is taken. The client with least comes first, with its smallest.
		q.take(1, "c", 10*kib)
		q.take(2, "d", 30*kib)
		q.take(2, "e", 20*kib)
		q.take(3, "f", 20*kib)
		q.want()
		q.release("b")
		q.want("e", "f") // client 2 asked before 3
		q.release("e")
		q.want() // it is the turn of d, which is larger; c has room, and waits behind it
		q.release("a")
		q.want("c", "d")
		q.release("c", "d", "f")
		q.empty()
		q.wantCut()
	})
}

// TestBodiesKept: what is kept of a body counts until it is released, and the rest makes room at once.
func TestBodiesKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newBodyQueue(t, 100*kib)
		q.take(1, "a", 60*kib)
		q.want("a")
		q.hold("a").Arrived()
		q.hold("a").Keep(1000 * kib) // no more than it had
		q.take(2, "b", 60*kib)
		q.want()
		q.hold("a").Keep(40 * bodyFactor * kib)
		q.want("b")
		q.take(2, "c", 10*kib)
		q.want()
		q.release("a")
		q.want("c")
		q.release("b", "c")
		q.empty()
	})
}

// TestBodiesSmallBesideLarge: bodies of the usual size find room beside large ones.
func TestBodiesSmallBesideLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newBodyQueue(t, 1000*kib)
		for i := range 5 {
			q.take(1, fmt.Sprint("large", i), 250*kib)
		}
		q.want("large0", "large1", "large2") // three quarters
		for i := range 3 {
			q.take(1, fmt.Sprint("small", i), 64*kib)
		}
		q.want("small0", "small1", "small2")
		q.release("small0", "small1", "small2", "large0")
		q.want("large3")
		q.release("large1", "large2", "large3", "large4")
		q.empty()
	})
}

// TestBodiesSlow: a body that does not arrive makes room once another waits; one
// that has arrived is not cut, and nobody is while nobody waits.
func TestBodiesSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newBodyQueue(t, 100*kib)
		q.take(1, "a", 40*kib)
		q.take(2, "b", 30*kib)
		<-time.After(slowBody / 2)
		q.take(1, "c", 30*kib)
		<-time.After(time.Minute)
		q.want("a", "b", "c")
		q.wantCut()
		q.take(3, "d", 10*kib) // the oldest of the client that holds most
		q.want("d")
		q.wantCut("a")
		if !q.hold("a").Arrived() || q.hold("b").Arrived() {
			t.Error("who was cut is not who is told so")
		}
		q.release("a") // its handler is done too: nothing twice
		q.take(3, "e", 60*kib)
		// b has arrived and is parsed, d is young: c makes room, then d in its time.
		q.wantCut("c")
		q.want("e")
		q.take(1, "f", 10*kib)
		q.want()
		<-time.After(slowBody - time.Nanosecond)
		q.wantCut()
		<-time.After(time.Nanosecond)
		q.wantCut("d")
		q.want("f")
		q.release("b", "c", "d", "e", "f", "f")
		q.empty()
	})
}

func TestBodiesWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newBodyQueue(t, 10*kib)
		q.take(1, "a", 10*kib)
		q.hold("a").Arrived()
		q.take(2, "b", 10*kib)
		<-time.After(time.Minute)
		synctest.Wait()
		if !errors.Is(q.errs["b"], errLate) {
			t.Errorf("after a minute: %v", q.errs["b"])
		}
		q.release("a")
		q.want("a") // and b's place is nobody's
		q.empty()
	})
}

// TestBodiesMore: what a body becomes is of the same memory, is never waited for, and goes back with it.
func TestBodiesMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newBodyQueue(t, 30*kib)
		q.take(1, "a", 10*kib)
		a := q.hold("a")
		a.Arrived()
		if a.More(21*kib*bodyFactor) || !a.More(20*kib*bodyFactor) || a.More(1) {
			t.Error("another size")
		}
		q.take(2, "b", 10*kib)
		q.want("a")
		q.release("a")
		q.want("b")
		if a.More(1) {
			t.Error("more of what has been given back")
		}
		q.release("b")
		q.empty()
	})
}
