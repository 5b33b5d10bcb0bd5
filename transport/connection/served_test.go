package connection

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/transport"
)

// A conn is over as soon as it is cut, unless it hangs.
type conn struct {
	hangs bool
	why   error
	over  chan struct{}
}

func (c *conn) Over() <-chan struct{} { return c.over }

func (c *conn) Cut(why error) {
	c.why = why
	if !c.hangs {
		close(c.over)
	}
}

// A fence ends the connection of its secret, and no other; one name is one connection's;
// what does not end does not hold a fence for ever.
func TestServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Served
		s.Fence(transport.NewSecret()) // nobody's
		a, b, hostile := transport.NewSecret(), transport.NewSecret(), transport.NewSecret()
		first, second, third := &conn{over: make(chan struct{})}, &conn{over: make(chan struct{})}, &conn{hangs: true, over: make(chan struct{})}
		for secret, c := range map[transport.Secret]*conn{a: first, b: second, hostile: third} {
			if err := s.Add(secret.Name(), c); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Add(a.Name(), second); !errors.Is(err, transport.ErrProtocol) {
			t.Errorf("a name that is taken: %v", err)
		}
		s.Remove(a.Name(), second) // it is not second's
		s.Fence(transport.Secret(a.Name()))
		if first.why != nil {
			t.Error("a name is as good as its secret")
		}
		s.Fence(a)
		if !errors.Is(first.why, transport.ErrUnreachable) || second.why != nil || third.why != nil {
			t.Errorf("fenced: %v, %v, %v", first.why, second.why, third.why)
		}
		s.Remove(b.Name(), second)
		s.Fence(b)
		if second.why != nil {
			t.Error("a connection that was removed is fenced")
		}
		start := time.Now()
		if s.Fence(hostile); time.Since(start) != fenceWithin {
			t.Errorf("a fence waited for %v", time.Since(start))
		}
	})
}
