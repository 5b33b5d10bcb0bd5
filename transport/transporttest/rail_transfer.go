package transporttest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"kvferry/transport"
)

func testWriteAndRead(t *testing.T, make Factory) {
	x := newBench(t, make, 3<<20)
	defer x.close()
	if x.key == 0 {
		t.Error("key 0 is never valid")
	}
	if again, err := x.b.Register(x.dst); err != nil || again == x.key {
		t.Errorf("registered again: key %v twice, %v", again, err)
	}
	for i, at := range []struct{ local, remote, n int }{
		{0, 0, 1}, {1, 8, 7}, {100, 4000, 4096}, {5000, 1 << 20, 2<<20 - 1}, {0, 3<<20 - 10, 10}, {0, 0, 3 << 20},
	} {
		fill(x.src, uint64(i)+1)
		fill(x.dst, uint64(i)+100)
		want := bytes.Clone(x.dst)
		copy(want[at.remote:], x.src[at.local:at.local+at.n])
		c := newTally(t)
		w := transport.NewSlice(transport.Write, x.src[at.local:at.local+at.n], x.key, int64(at.remote), c.done)
		x.post(c, []*transport.Slice{w})
		c.wait(1)
		if err := c.err(w); err != nil {
			t.Fatalf("%+v: write: %v", at, err)
		}
		if !bytes.Equal(x.dst, want) {
			t.Fatalf("%+v: the target's memory is not what was written", at)
		}
		fill(x.dst, uint64(i)+200)
		want = bytes.Clone(x.src)
		copy(want[at.local:], x.dst[at.remote:at.remote+at.n])
		r := transport.NewSlice(transport.Read, x.src[at.local:at.local+at.n], x.key, int64(at.remote), c.done)
		x.post(c, []*transport.Slice{r})
		c.wait(2)
		if err := c.err(r); err != nil {
			t.Fatalf("%+v: read: %v", at, err)
		}
		if !bytes.Equal(x.src, want) {
			t.Fatalf("%+v: the local memory is not what was read", at)
		}
	}
}

// testManySlices overfills the queue with slices of all sizes, both ways.
func testManySlices(t *testing.T, make Factory) {
	const n, stride = 10_000, 512
	x := newBench(t, make, n*stride)
	defer x.close()
	fill(x.src, 1)
	fill(x.dst, 2)
	wantSrc, wantDst := bytes.Clone(x.src), bytes.Clone(x.dst)
	rng := rand.New(rand.NewPCG(3, 4))
	c := newTally(t)
	var slices []*transport.Slice
	for _, i := range rng.Perm(n) {
		off, size := i*stride, 1+rng.IntN(stride)
		op := transport.Op(rng.IntN(2))
		if op == transport.Write {
			copy(wantDst[off:off+size], x.src[off:])
		} else {
			copy(wantSrc[off:off+size], x.dst[off:])
		}
		slices = append(slices, transport.NewSlice(op, x.src[off:off+size:off+size], x.key, int64(off), c.done))
	}
	if got := x.post(c, slices); got != n {
		t.Fatalf("posted %d of %d", got, n)
	}
	c.wait(n)
	for _, s := range slices {
		if err := c.err(s); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(x.src, wantSrc) || !bytes.Equal(x.dst, wantDst) {
		t.Error("bytes went astray")
	}
}

// testImmediates checks that each comes once, after the bytes before it.
func testImmediates(t *testing.T, make Factory) {
	x := newBench(t, make, 1<<16)
	defer x.close()
	const n = 100
	for i := range n {
		want := byte(i + 1)
		for j := range x.src {
			x.src[j] = want
		}
		c := newTally(t)
		w := transport.NewSlice(transport.Write, x.src, x.key, 0, c.done)
		m := transport.NewSlice(transport.Write, nil, x.key, 0, c.done)
		if i%2 == 0 {
			m = w // bytes and immediate in one slice
		}
		m.HasImm, m.Imm = true, transport.Imm{Source: 1, Seq: uint64(i), Floor: uint64(i), Value: uint64(i) << 40}
		slices := []*transport.Slice{w}
		if m != w {
			slices = append(slices, m)
		}
		x.post(c, slices)
		select {
		case got := <-x.imms:
			if got != m.Imm {
				t.Fatalf("immediate %+v, sent %+v", got, m.Imm)
			}
			if x.dst[0] != want || x.dst[len(x.dst)-1] != want {
				t.Fatal("the immediate came before its bytes")
			}
		case <-time.After(patience):
			t.Fatal("no immediate")
		}
		c.wait(len(slices))
	}
	if len(x.imms) != 0 {
		t.Errorf("%d immediates too many", len(x.imms))
	}
}

// testRefusals checks that a refused slice fails alone and touches nothing.
func testRefusals(t *testing.T, make Factory) {
	x := newBench(t, make, 1<<16)
	defer x.close()
	fill(x.src, 1)
	n := int64(len(x.dst))
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		for _, f := range []struct {
			name   string
			key    transport.Key
			offset int64
			want   error
		}{
			{"key zero", 0, 0, transport.ErrBadKey},
			{"unknown key", x.key ^ 1, 0, transport.ErrBadKey},
			{"one byte beyond the end", x.key, n - 999, transport.ErrBounds},
			{"at the end", x.key, n, transport.ErrBounds},
			{"far beyond", x.key, n + 1<<40, transport.ErrBounds},
			{"sum overflows", x.key, 1<<63 - 1, transport.ErrBounds},
			{"negative", x.key, -1, transport.ErrBounds},
			{"most negative", x.key, -1 << 63, transport.ErrBounds},
		} {
			c := newTally(t)
			fill(x.dst, 2)
			good := func(at int) *transport.Slice {
				return transport.NewSlice(transport.Write, x.src[at:at+1000], x.key, int64(at), c.done)
			}
			bad := transport.NewSlice(op, x.src[2000:3000], f.key, f.offset, c.done)
			slices := []*transport.Slice{good(0), bad, good(4000)}
			wantDst, wantSrc := bytes.Clone(x.dst), bytes.Clone(x.src)
			copy(wantDst, x.src[:1000])
			copy(wantDst[4000:], x.src[4000:5000])
			x.post(c, slices)
			c.wait(3)
			if err := c.err(bad); !errors.Is(err, f.want) {
				t.Errorf("%v, %s: %v, want %v", op, f.name, err, f.want)
			}
			if err := errors.Join(c.err(slices[0]), c.err(slices[2])); err != nil {
				t.Errorf("%v, %s: the slices beside it: %v", op, f.name, err)
			}
			if !bytes.Equal(x.dst, wantDst) || !bytes.Equal(x.src, wantSrc) {
				t.Errorf("%v, %s: other memory was touched", op, f.name)
			}
		}
	}
	c := newTally(t)
	m := transport.NewSlice(transport.Write, nil, x.key^1, 0, c.done)
	m.HasImm, m.Imm.Source = true, 1
	x.post(c, []*transport.Slice{m})
	c.wait(1)
	if err := c.err(m); !errors.Is(err, transport.ErrBadKey) || len(x.imms) != 0 {
		t.Errorf("immediate with a bad key: %v, %d delivered", err, len(x.imms))
	}
}

// testPostFromCompletion checks that a slice that ends, well or not, may post another.
func testPostFromCompletion(t *testing.T, make Factory) {
	x := newBench(t, make, 4096)
	defer x.close()
	c := newTally(t)
	after := func(offset int64) {
		first := transport.NewSlice(transport.Write, x.src[:8], x.key, offset, func(s *transport.Slice, err error) {
			next := transport.NewSlice(transport.Write, x.src[:8], x.key, 0, c.done)
			if n, err := x.ep.Post([]*transport.Slice{next}); n != 1 || err != nil {
				t.Errorf("Post from a completion took %d: %v", n, err)
			}
			c.done(s, err)
		})
		x.post(c, []*transport.Slice{first})
	}
	after(4096) // out of bounds, of a key the rail may have to ask for
	c.wait(2)
	after(4096)
	c.wait(4)
	after(0)
	c.wait(6)
}
