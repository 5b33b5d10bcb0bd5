package transporttest

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"

	"kvferry/transport"
)

// This file is the part of the contract that is about ends: of regions, endpoints,
// connections and rails.

// testDeregister: a key that was deregistered is one that never was, to its owner and to
// peers that know it still. A key is the only thing between a peer and the memory, which
// may be somebody else's by now.
func testDeregister(t *testing.T, make Factory) {
	x := newBench(t, make, 4096)
	defer x.close()
	if err := x.b.Deregister(x.key); err != nil {
		t.Fatal(err)
	}
	if err := x.b.Deregister(x.key); !errors.Is(err, transport.ErrBadKey) {
		t.Errorf("deregistered twice: %v", err)
	}
	c := newTally(t)
	s := transport.NewSlice(transport.Read, x.src, x.key, 0, c.done)
	x.post(c, []*transport.Slice{s})
	c.wait(1)
	if !errors.Is(c.err(s), transport.ErrBadKey) {
		t.Errorf("read of a deregistered region: %v", c.err(s))
	}
}

// testDeregisterUnderLoad writes to the region's memory the moment Deregister
// has returned: the race detector sees operations that still go on.
func testDeregisterUnderLoad(t *testing.T, make Factory) {
	x := newBench(t, make, 1<<20)
	defer x.close()
	c := newTally(t)
	var slices []*transport.Slice
	for range 64 {
		slices = append(slices, transport.NewSlice(transport.Write, x.src, x.key, 0, c.done))
	}
	go func() {
		c.wait(2)
		if err := x.b.Deregister(x.key); err != nil {
			t.Error(err)
		}
		fill(x.dst[:4096], 9)
		c.done(transport.NewSlice(transport.Write, nil, 0, 0, nil), nil)
	}()
	x.post(c, slices)
	c.wait(len(slices) + 1)
	failed := 0
	for _, s := range slices {
		if err := c.err(s); err != nil {
			failed++
			if !errors.Is(err, transport.ErrBadKey) {
				t.Fatalf("write to a region on its way out: %v", err)
			}
		}
	}
	want := bytesOf(4096)
	fill(want, 9)
	if failed > 0 && !bytes.Equal(x.dst[:4096], want) {
		t.Error("the region was written to after Deregister")
	}
}

// testDial: who cannot be reached is told from who has no time left, and from a rail of
// one's own that is closed: the engine tries the first again, and not the others.
func testDial(t *testing.T, make Factory) {
	x := newBench(t, make, 4096)
	defer x.close()
	gone := make(t)
	gone.HandleImmediates(func(transport.Key, transport.Imm) error { return nil })
	addr := gone.Addr()
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := x.a.Dial(ctx, addr); !errors.Is(err, transport.ErrUnreachable) {
		t.Errorf("dial of a closed rail: %v", err)
	}
	cancel()
	if _, err := x.a.Dial(ctx, x.b.Addr()); !errors.Is(err, context.Canceled) {
		t.Errorf("dial with a canceled context: %v", err)
	}
}

// testEndpointClose closes with slices in every stage: each completes once, and
// their memory is the caller's.
func testEndpointClose(t *testing.T, make Factory) {
	x := newBench(t, make, 1<<20)
	defer x.close()
	// A READ that nobody waits for any more may still be served while the
	// next endpoint's WRITEs land, so each has its region.
	readKey := whole(t, x.b, memoryOf(t, x.b, 1<<20))
	keys := [2]transport.Key{transport.Write: x.key, transport.Read: readKey}
	for i := range 20 {
		op := transport.Op(i % 2)
		c := newTally(t)
		ep := dial(t, x.a, x.b.Addr())
		local := bytesOf(1 << 20)
		var slices []*transport.Slice
		for range 32 {
			slices = append(slices, transport.NewSlice(op, local, keys[op], 0, c.done))
		}
		n, err := ep.Post(slices)
		if err != nil || n == 0 {
			t.Fatalf("Post: %d, %v", n, err)
		}
		if i > 0 {
			c.wait(i)
		}
		if err := ep.Close(); err != nil {
			t.Error(err)
		}
		if len(c.errs) != n {
			t.Fatalf("Close returned with %d of %d slices completed", len(c.errs), n)
		}
		clear(local) // a race if the rail still uses it
		for _, s := range slices[:n] {
			if err := c.err(s); err != nil && !errors.Is(err, net.ErrClosed) {
				t.Fatalf("slice of a closed endpoint: %v", err)
			}
		}
		if n, err := ep.Post(slices[:1]); n != 0 || !errors.Is(err, net.ErrClosed) {
			t.Errorf("Post after Close: %d, %v", n, err)
		}
		if err := ep.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	}
}

// testLostAreEnded gives connections up in the middle of writes and makes others. What the
// old one had on its way has landed or never will when Dial has returned: a retry's bytes
// may be followed by the owner's own. The race detector sees operations that still go on.
func testLostAreEnded(t *testing.T, make Factory) {
	x := newBench(t, make, 1<<20)
	defer x.close()
	fill(x.src, 1)
	for range 10 {
		c := newTally(t)
		var slices []*transport.Slice
		for range 32 {
			slices = append(slices, transport.NewSlice(transport.Write, x.src, x.key, 0, c.done))
		}
		if n, err := x.ep.Post(slices); err != nil || n == 0 {
			t.Fatalf("Post: %d, %v", n, err)
		}
		c.wait(1)
		if err := x.ep.Close(); err != nil {
			t.Error(err)
		}
		x.ep = dial(t, x.a, x.b.Addr())
		clear(x.dst)
		after := newTally(t)
		x.post(after, []*transport.Slice{transport.NewSlice(transport.Write, x.src[:1], x.key, 0, after.done)})
		after.wait(1)
		if !bytes.Equal(x.dst[1:], bytesOf(len(x.dst)-1)) {
			t.Fatal("bytes of a connection that was lost landed after the next one was made")
		}
	}
}

// testFence checks that nothing of a connection lands once its target has fenced it,
// that its initiator hears of it, and that other connections live on.
func testFence(t *testing.T, factory Factory) {
	x := newBench(t, factory, 1<<20)
	defer x.close()
	other := dial(t, x.a, x.b.Addr())
	if x.ep.Secret() == (transport.Secret{}) || x.ep.Secret() == other.Secret() {
		t.Fatalf("the secrets of connections are %x and %x", x.ep.Secret(), other.Secret())
	}
	fill(x.src, 1)
	c := newTally(t)
	var slices []*transport.Slice
	for range 48 {
		slices = append(slices, transport.NewSlice(transport.Write, x.src, x.key, 0, c.done))
	}
	fenced := make(chan struct{})
	go func() {
		defer close(fenced)
		c.wait(1)
		fence(x.b, x.ep)
	}()
	n := x.post(c, slices)
	<-fenced
	clear(x.dst) // the target's own again
	c.wait(n)
	for _, s := range slices[:n] {
		if err := c.err(s); err != nil && !errors.Is(err, transport.ErrUnreachable) {
			t.Fatalf("slice of a fenced connection: %v", err)
		}
	}
	if !bytes.Equal(x.dst, bytesOf(len(x.dst))) {
		t.Error("bytes of a fenced connection landed")
	}
	fence(x.b, x.ep)                                   // over already
	x.b.Fence(transport.Secret{1})                     // nobody's
	x.b.Fence(transport.Secret(other.Secret().Name())) // its name is not its secret
	if err := x.ep.Close(); err != nil {
		t.Error(err)
	}
	x.ep = other
	alive := newTally(t)
	x.post(alive, []*transport.Slice{transport.NewSlice(transport.Write, x.src, x.key, 0, alive.done)})
	alive.wait(1)
	if !bytes.Equal(x.src, x.dst) {
		t.Error("another connection did not survive")
	}
}

// fence ends all connections that a peer's endpoint has made.
func fence(r transport.Rail, ep transport.Endpoint) {
	for _, s := range transport.SecretsOf(ep) {
		r.Fence(s)
	}
}

// testFenceWithin fences one connection while an immediate of another is handled, as an
// engine does that is asked to: neither waits for the other.
func testFenceWithin(t *testing.T, make Factory) {
	a, b := make(t), make(t)
	given := newChan[transport.Endpoint]()
	a.HandleImmediates(func(transport.Key, transport.Imm) error { return nil })
	b.HandleImmediates(func(transport.Key, transport.Imm) error {
		fence(b, <-given)
		return nil
	})
	key := whole(t, b, bytesOf(4096))
	lost, other := dial(t, a, b.Addr()), dial(t, a, b.Addr())
	given <- lost
	c := newTally(t)
	asks := transport.NewSlice(transport.Write, nil, key, 0, c.done)
	asks.HasImm, asks.Imm.Source = true, 1
	if n, err := other.Post([]*transport.Slice{asks}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	c.wait(1)
	if err := c.err(asks); err != nil {
		t.Errorf("the immediate that asks for a fence: %v", err)
	}
	// What is posted on the connection that was fenced ends, and not well.
	s := transport.NewSlice(transport.Write, bytesOf(1), key, 0, c.done)
	if n, err := lost.Post([]*transport.Slice{s}); err == nil {
		c.wait(1 + n)
		err = c.err(s)
		if !errors.Is(err, transport.ErrUnreachable) {
			t.Errorf("a slice of a fenced connection: %v", err)
		}
	}
	for _, r := range []transport.Rail{a, b} {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// testPeerClose: a peer that goes away in the middle is a lost connection, also for slices
// that it would have refused, and the endpoint does not come back to life by itself: the
// engine makes a new one, which says what was lost.
func testPeerClose(t *testing.T, make Factory) {
	x := newBench(t, make, 1<<20)
	defer x.close()
	c := newTally(t)
	var slices []*transport.Slice
	for range 48 {
		slices = append(slices, transport.NewSlice(transport.Write, x.src, x.key, 0, c.done))
	}
	go func() {
		c.wait(1)
		if err := x.b.Close(); err != nil {
			t.Error(err)
		}
	}()
	n := x.post(c, slices)
	c.wait(n)
	for _, s := range slices[:n] {
		if err := c.err(s); err != nil && !errors.Is(err, transport.ErrUnreachable) {
			t.Fatalf("slice to a closed peer: %v", err)
		}
	}
	// The endpoint stays unusable.
	for {
		s := transport.NewSlice(transport.Write, x.src[:1], x.key, 0, c.done)
		k, err := x.ep.Post([]*transport.Slice{s})
		if err != nil {
			break
		}
		n += k
		c.wait(n)
	}
}

// testCloseTwice closes a target from two goroutines while writes are under way. To
// both the memory is theirs when their Close has returned: the race detector sees
// operations that still go on.
func testCloseTwice(t *testing.T, make Factory) {
	for range 20 {
		x := newBench(t, make, 1<<20)
		c := newTally(t)
		var slices []*transport.Slice
		for range 32 {
			slices = append(slices, transport.NewSlice(transport.Write, x.src, x.key, 0, c.done))
		}
		ended := newChan[error]()
		for i := range 2 {
			go func() {
				c.wait(1)
				err := x.b.Close()
				x.dst[i] = 9 // the first bytes, which every slice writes
				ended <- err
			}()
		}
		n := x.post(c, slices)
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		c.wait(n)
		x.close()
	}
}

// testRailClose: a rail closes its endpoints as their own Close does, slices in every stage.
func testRailClose(t *testing.T, make Factory) {
	x := newBench(t, make, 1<<20)
	defer x.close()
	c := newTally(t)
	var slices []*transport.Slice
	for range 32 {
		slices = append(slices, transport.NewSlice(transport.Write, x.src, x.key, 0, c.done))
	}
	n, err := x.ep.Post(slices)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.a.Close(); err != nil {
		t.Fatal(err)
	}
	if len(c.errs) != n {
		t.Fatalf("Close returned with %d of %d slices completed", len(c.errs), n)
	}
	clear(x.src)
	if _, err := x.ep.Post(slices[:1]); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Post after the rail's Close: %v", err)
	}
}
