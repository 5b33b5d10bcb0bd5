package transporttest

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"kvferry/transport"
)

// testManySlices overfills the queue with slices of all sizes, both ways.
func testManySlices(t *testing.T, make Factory) { moveMany(t, make, 1, 10_000, 512) }

// testManyKeys posts slices to several regions in turn, both ways: what is near another in the queue
// is not in memory.
func testManyKeys(t *testing.T, make Factory) { moveMany(t, make, 5, 2_000, 700) }

// moveMany moves slices in any order, n to or from each region, and looks at all of both memories. Each has a
// place of stride bytes, of which it takes some.
func moveMany(t *testing.T, make Factory, regions, n, stride int) {
	t.Helper()
	x := newBench(t, make, regions*n*stride)
	defer x.close()
	fill(x.src, 1)
	fill(x.dst, 2)
	var keys []transport.Key
	for i := range regions {
		keys = append(keys, whole(t, x.b, x.dst[i*n*stride:(i+1)*n*stride]))
	}
	wantSrc, wantDst := bytes.Clone(x.src), bytes.Clone(x.dst)
	rng := rand.New(rand.NewPCG(3, 4))
	c := newTally(t)
	var slices []*transport.Slice
	for _, i := range rng.Perm(regions * n) {
		off, size := i*stride, 1+rng.IntN(stride)
		op := transport.Op(rng.IntN(2))
		if op == transport.Write {
			copy(wantDst[off:off+size], x.src[off:])
		} else {
			copy(wantSrc[off:off+size], x.dst[off:])
		}
		slices = append(slices, transport.NewSlice(op, x.src[off:off+size:off+size], keys[i/n], int64(i%n*stride), c.done))
	}
	if got := x.post(c, slices); got != len(slices) {
		t.Fatalf("posted %d of %d", got, len(slices))
	}
	c.wait(len(slices))
	for _, s := range slices {
		if err := c.err(s); err != nil {
			t.Fatalf("%v of %d bytes at offset %d: %v", s.Op, len(s.Local), s.Offset, err)
		}
	}
	if !bytes.Equal(x.src, wantSrc) || !bytes.Equal(x.dst, wantDst) {
		t.Error("bytes went astray")
	}
}
