package transporttest

import (
	"errors"
	"testing"

	"kvferry/transport"
)

// This file is the part of the contract that is about immediates of several slices, and those
// that are refused.

// testImmediateBehind: an immediate is that of the slices posted before it which it names: if
// one of them is refused it does not come, and neither does it wait for what others do.
func testImmediateBehind(t *testing.T, make Factory) {
	const size = 64
	x := newBench(t, make, 1<<16)
	defer x.close()
	seq := uint64(0)
	// send posts n slices, some of which are out of bounds, and an immediate that is behind
	// the last of them.
	send := func(n, behind int, bytes bool, bad ...int) error {
		t.Helper()
		c := newTally(t)
		var slices []*transport.Slice
		for i := range n {
			s := transport.NewSlice(transport.Write, x.src[:size], x.key, int64(i%(len(x.dst)/size))*size, c.done)
			slices = append(slices, s)
		}
		for _, i := range bad {
			slices[i].Offset = int64(len(x.dst)) - size + 1
		}
		local := x.src[:size]
		if !bytes {
			local = nil
		}
		last := transport.NewSlice(transport.Write, local, x.key, 0, c.done)
		last.HasImm, last.Imm, last.Behind = true, transport.Imm{Source: 1, Seq: seq, Value: seq}, behind
		seq++
		slices = append(slices, last)
		if got := x.post(c, slices); got != len(slices) {
			t.Fatalf("posted %d of %d", got, len(slices))
		}
		c.wait(len(slices))
		return c.err(last)
	}
	for _, bytes := range []bool{true, false} {
		for _, c := range []struct {
			n, behind int
			bad       []int
			want      error
		}{
			{1, 1, nil, nil},
			{3, 3, nil, nil},
			{3, 3, []int{0}, transport.ErrBounds},
			{3, 3, []int{2}, transport.ErrBounds},
			{3, 0, []int{2}, nil},
			{3, 2, []int{0}, nil},
			{700, 700, nil, nil},
			{700, 700, []int{0}, transport.ErrBounds},
			{700, 700, []int{300, 699}, transport.ErrBounds},
			{700, 699, []int{0}, nil},
		} {
			err := send(c.n, c.behind, bytes, c.bad...)
			if !errors.Is(err, c.want) || err != nil && c.want == nil {
				t.Errorf("%+v, with bytes of its own %v: %v", c, bytes, err)
			}
			if err == nil {
				if m := <-x.imms; m.Value != seq-1 {
					t.Errorf("%+v: immediate %d came, not %d", c, m.Value, seq-1)
				}
			}
			if len(x.imms) != 0 {
				t.Fatalf("%+v: an immediate came that was refused", c)
			}
		}
	}
}

// testImmediateRefused: what gets the immediates may refuse those that come without bytes.
// Their slices end with the reason, and those beside them as they would.
func testImmediateRefused(t *testing.T, make Factory) {
	const n = 1000
	a, b := make(t), make(t)
	a.HandleImmediates(func(transport.Key, transport.Imm) error { return nil })
	b.HandleImmediates(func(_ transport.Key, m transport.Imm) error {
		if m.Value%3 != 0 {
			return transport.ErrDelivered
		}
		return nil
	})
	defer b.Close()
	defer a.Close()
	x := &bench{t: t, ep: nil}
	x.key = whole(t, b, bytesOf(4096))
	x.ep = dial(t, a, b.Addr())
	local := bytesOf(64)
	c := newTally(t)
	var slices []*transport.Slice
	for i := range uint64(n) {
		s := transport.NewSlice(transport.Write, local[:i%2*64], x.key, 0, c.done)
		if i%2 == 0 {
			s.HasImm, s.Imm = true, transport.Imm{Source: 1, Seq: i, Value: i / 2}
		}
		slices = append(slices, s)
	}
	x.post(c, slices)
	c.wait(n)
	for i, s := range slices {
		err := c.err(s)
		if refused := i%2 == 0 && i/2%3 != 0; refused != errors.Is(err, transport.ErrDelivered) || !refused && err != nil {
			t.Errorf("slice %d: %v", i, err)
		}
	}
}
