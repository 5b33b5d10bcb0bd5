package transporttest

import (
	"bytes"
	"sync"
	"testing"

	"kvferry/transport"
)

// testCarrier is what transport.Carrier says, of endpoints that are one: what is queued is carried once
// Carry was called, whatever it is and whoever else is at it, and ends once.
func testCarrier(t *testing.T, make Factory) {
	x := newBench(t, make, 4<<20)
	defer x.close()
	ep, ok := x.ep.(transport.Carrier)
	if !ok {
		t.Log("its endpoints do not copy by themselves")
		return
	}
	fill(x.src, 1)
	queue := func(c *tally, s *transport.Slice) {
		if n, err := ep.Queue([]*transport.Slice{s}); n != 1 || err != nil {
			t.Errorf("Queue took %d: %v", n, err)
			c.done(s, err)
		}
	}
	write := func(c *tally, at, n int) *transport.Slice {
		return transport.NewSlice(transport.Write, x.src[at:at+n], x.key, int64(at), c.done)
	}
	for _, n := range []int{1, 4096, 4 << 20} {
		c := newTally(t)
		clear(x.dst)
		s := write(c, 0, n)
		queue(c, s)
		ep.Carry()
		c.wait(1)
		if err := c.err(s); err != nil || !bytes.Equal(x.src[:n], x.dst[:n]) {
			t.Errorf("%d bytes: %v, or they are not there", n, err)
		}
	}
	// Each of several goroutines queues and carries, one posts; what ends queues another.
	const writers, each, size = 4, 100, 1000
	c := newTally(t)
	clear(x.dst)
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				at := (w*each + i) * 2 * size
				s := transport.NewSlice(transport.Write, x.src[at:at+size], x.key, int64(at), func(s *transport.Slice, err error) {
					queue(c, write(c, at+size, size))
					ep.Carry()
					c.done(s, err)
				})
				if w == 0 {
					x.post(c, []*transport.Slice{s})
					continue
				}
				queue(c, s)
				ep.Carry()
			}
		})
	}
	all.Wait()
	c.wait(2 * writers * each)
	if end := 2 * writers * each * size; !bytes.Equal(x.src[:end], x.dst[:end]) {
		t.Error("bytes went astray")
	}
	for s, err := range c.errs {
		if err != nil {
			t.Errorf("the slice at offset %d: %v", s.Offset, err)
		}
	}
	// An immediate queued behind bytes comes behind them.
	c = newTally(t)
	clear(x.dst)
	m := transport.NewSlice(transport.Write, nil, x.key, 0, c.done)
	m.HasImm, m.Imm = true, transport.Imm{Source: 1, Value: 5}
	queue(c, write(c, 0, 4<<20))
	queue(c, m)
	ep.Carry()
	if got := <-x.imms; got.Value != 5 || !bytes.Equal(x.src, x.dst) {
		t.Errorf("immediate %d comes before its bytes, or is another", got.Value)
	}
	c.wait(2)
}
