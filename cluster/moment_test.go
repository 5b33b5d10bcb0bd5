package cluster

import (
	"context"
	"testing"
	"time"
)

// A flight is a call whose answer is read by a goroutine of its own.
type flight struct {
	call  call
	first chan struct{} // closed when the first tokens have been read, or the answer has ended
	ended chan struct{}
	r     result // once ended
}

// fly sends a call. tokens are how many first is about.
func (c *testCluster) fly(ctx context.Context, q call, tokens int) *flight {
	f := &flight{call: q, first: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(f.ended)
		s := c.open(ctx, q)
		s.next(tokens)
		close(f.first)
		f.r = s.rest()
	}()
	return f
}

func (f *flight) over() bool {
	select {
	case <-f.ended:
		return true
	default:
		return false
	}
}

// result waits for the end.
func (f *flight) result(t testing.TB) result {
	t.Helper()
	select {
	case <-f.ended:
	case <-time.After(2 * patience):
		t.Fatalf("no end within %v", 2*patience)
	}
	return f.r
}

// longest is how often a call is made twice as long.
const longest = 8

// catch sends a call and returns at a moment of it, after its first tokens have been
// read, if any are to be. A busy machine may miss the moment: then the call is made again, and longer,
// as ask says.
func (c *testCluster) catch(what string, tokens int, ask func(longer int) call, moment func() bool) *flight {
	c.t.Helper()
	for longer := 1; longer <= longest; longer *= 2 {
		f := c.fly(c.t.Context(), ask(longer), tokens)
		if tokens > 0 {
			<-f.first
		}
		caught := false
		c.poll(what, func() bool {
			over := f.over()
			caught = moment()
			return caught || over
		})
		if caught && !f.over() {
			return f
		}
		f.result(c.t).expect(c.t, f.call.MaxTokens)
	}
	c.t.Fatalf("%s: nobody saw it", what)
	return nil
}
