package socket

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// TestPrecedence: bulk waits until what is small has been answered, but not long, and not for what is
// on a long way.
func TestPrecedence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p precedence
		waits := func(want time.Duration) {
			t.Helper()
			start := time.Now()
			p.wait()
			if took := time.Since(start); took != want {
				t.Errorf("bulk has waited %v, want %v", took, want)
			}
		}
		waits(0)
		p.sent()
		p.sent()
		waits(giveWay)
		time.AfterFunc(giveWay/3, p.answered)
		time.AfterFunc(giveWay/2, p.answered)
		for range 2 {
			go p.wait() // several do
		}
		waits(giveWay / 2)
		waits(0)
		p.sent()
		p.latest = p.latest.Add(-stale)
		waits(giveWay)
		waits(0)
		p.sent()
		waits(giveWay)
		p.answered()
		waits(giveWay)
		p.answered()
		waits(0)
	})
}

// TestMover: bulk gives way once a MiB, however it is cut into frames, and what is small never.
func TestMover(t *testing.T) {
	var m mover
	for i, c := range []struct {
		bytes int64
		want  bool
	}{
		{frameBytes, true},
		{lightBytes, false},
		{frameBytes / 2, false},
		{lightBytes, false},
		{frameBytes / 2, true},
		{frameBytes/2 + 1, false},
		{3 * frameBytes, true},
	} {
		if got := m.due(c.bytes); got != c.want {
			t.Errorf("frame %d, of %d bytes: gives way %v, want %v", i, c.bytes, got, c.want)
		}
	}
}

// TestSmallUnderWay: bulk gives way to what is small and alone on its connection, until it is answered or its
// connection is lost.
func TestSmallUnderWay(t *testing.T) {
	transporttest.CheckLeaks(t)
	underWay := func() int {
		sharedPrecedence.mu.Lock()
		defer sharedPrecedence.mu.Unlock()
		return sharedPrecedence.small
	}
	sent := func(ep transport.Endpoint) int {
		e := ep.(*endpoint)
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.writes)
	}
	answer := make(chan bool)
	b := newRail(t, "127.0.0.1:0")
	defer b.Close()
	asked := make(chan bool)
	b.HandleImmediates(func(transport.Key, transport.Imm) error {
		asked <- true
		<-answer
		return nil
	})
	key := must(b.Register(make([]byte, 2<<20), transport.Whole(2<<20)))
	for _, c := range []struct {
		bytes []int // of the slices, each with an immediate
		small int
		lost  bool
	}{
		{bytes: []int{4 << 10}, small: 1},
		{bytes: []int{4 << 10}, small: 1, lost: true},
		{bytes: []int{lightBytes + 1}},
		{bytes: []int{frameBytes, 4 << 10}},
	} {
		a := newRail(t, "127.0.0.1:0")
		ep := must(a.Dial(t.Context(), b.Addr()))
		done := make(chan error, len(c.bytes))
		var post []*transport.Slice
		for _, n := range c.bytes {
			post = append(post, transport.NewSlice(transport.Write, make([]byte, n), key, 0, func(_ *transport.Slice, err error) { done <- err }))
		}
		for _, s := range post {
			s.HasImm = true // a frame of its own, without an answer until the test gives it
		}
		if n, err := ep.Post(post); n != len(post) || err != nil {
			t.Fatal(n, err)
		}
		<-asked
		for sent(ep) < len(post) {
			runtime.Gosched()
		}
		if n := underWay(); n != c.small {
			t.Errorf("%v bytes: bulk gives way to %d, want %d", c.bytes, n, c.small)
		}
		if c.lost {
			a.Close()
		}
		answer <- true
		for range c.bytes[1:] {
			<-asked
			answer <- true
		}
		for range c.bytes {
			if err := <-done; (err != nil) != c.lost {
				t.Errorf("%v bytes, lost %v: %v", c.bytes, c.lost, err)
			}
		}
		if n := underWay(); n != 0 {
			t.Errorf("%v bytes, lost %v: bulk gives way to %d after the end", c.bytes, c.lost, n)
		}
		a.Close()
	}
}
