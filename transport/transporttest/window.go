package transporttest

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"kvferry/transport"
)

// This file is the part of the contract that is about what a key opens.

// Blocks of the memory in these tests, as a pool has them: a transfer's are offered,
// its neighbours are somebody else's.
const (
	blockLen = 4096
	blocks   = 16
)

func block(i int) transport.Range {
	return transport.Range{Offset: int64(i) * blockLen, Length: blockLen}
}

// window registers the target's memory with these ranges open.
func (x *bench) window(op transport.Op, ranges ...transport.Range) transport.Key {
	x.t.Helper()
	access, err := transport.NewAccess(op, ranges)
	if err != nil {
		x.t.Fatal(err)
	}
	key, err := x.b.Register(x.dst, access)
	if err != nil {
		x.t.Fatal(err)
	}
	return key
}

// try carries one slice and returns how it ended. A slice that was refused has
// touched nothing at either end; one that was not has moved its bytes and no others.
func (x *bench) try(op transport.Op, key transport.Key, offset int64, n int) error {
	x.t.Helper()
	fill(x.src, uint64(offset)+1)
	fill(x.dst, uint64(offset)+2)
	src, dst := bytes.Clone(x.src), bytes.Clone(x.dst)
	c := newTally(x.t)
	s := transport.NewSlice(op, x.src[:n:n], key, offset, c.done)
	x.post(c, []*transport.Slice{s})
	c.wait(1)
	err := c.err(s)
	switch {
	case err != nil:
	case op == transport.Write:
		copy(dst[offset:], src[:n])
	default:
		copy(src, dst[offset:offset+int64(n)])
	}
	if !bytes.Equal(x.src, src) || !bytes.Equal(x.dst, dst) {
		x.t.Errorf("%v of %d bytes at %d, which ended with %v: other memory is as it was: here %v, there %v",
			op, n, offset, err, bytes.Equal(x.src, src), bytes.Equal(x.dst, dst))
	}
	return err
}

// testWindowRanges: exactly the blocks that are open can be used, wherever a slice
// begins and ends.
func testWindowRanges(t *testing.T, make Factory) {
	x := newBench(t, make, blocks*blockLen)
	defer x.close()
	for _, op := range []transport.Op{transport.Read, transport.Write} {
		// Blocks 3, 7, 8 and 12, of which 7 and 8 touch, in no order.
		key := x.window(op, block(8), block(12), block(3), block(7))
		for _, c := range []struct {
			name   string
			offset int64
			n      int
			want   error
		}{
			{"a block", 3 * blockLen, blockLen, nil},
			{"the next one that is open", 7 * blockLen, blockLen, nil},
			{"two that touch", 7 * blockLen, 2 * blockLen, nil},
			{"across the border of two that touch", 8*blockLen - 100, 200, nil},
			{"an earlier one again", 3*blockLen + 1, 10, nil},
			{"a byte at the end", 13*blockLen - 1, 1, nil},
			{"the block before", 2 * blockLen, blockLen, transport.ErrBounds},
			{"the block after", 4 * blockLen, blockLen, transport.ErrBounds},
			{"the byte before", 3*blockLen - 1, 1, transport.ErrBounds},
			{"the byte after", 4 * blockLen, 1, transport.ErrBounds},
			{"into it", 3*blockLen - 1, 2, transport.ErrBounds},
			{"over its end", 4*blockLen - 1, 2, transport.ErrBounds},
			{"over the end of the second", 8*blockLen + 1, blockLen, transport.ErrBounds},
			{"from one to another", 3 * blockLen, 6 * blockLen, transport.ErrBounds},
			{"all of it", 0, blocks * blockLen, transport.ErrBounds},
			{"the first block", 0, blockLen, transport.ErrBounds},
			{"the last", (blocks - 1) * blockLen, blockLen, transport.ErrBounds},
			{"beyond the end", blocks * blockLen, 1, transport.ErrBounds},
			{"far beyond", 1 << 40, 1, transport.ErrBounds},
			{"sum overflows", 1<<63 - 1, blockLen, transport.ErrBounds},
			{"negative", -1, 1, transport.ErrBounds},
			{"most negative", -1 << 63, 1, transport.ErrBounds},
		} {
			if err := x.try(op, key, c.offset, c.n); !errors.Is(err, c.want) || err != nil && c.want == nil {
				t.Errorf("%v, %s: %v, want %v", op, c.name, err, c.want)
			}
		}
	}
}

// testWindowDirection: what is open to be read cannot be written, and the other way
// round, not even at the same address under two keys.
func testWindowDirection(t *testing.T, make Factory) {
	x := newBench(t, make, blocks*blockLen)
	defer x.close()
	keys := [2]transport.Key{}
	for _, op := range []transport.Op{transport.Read, transport.Write} {
		keys[op] = x.window(op, block(5))
	}
	for _, op := range []transport.Op{transport.Read, transport.Write} {
		if err := x.try(op, keys[1-op], 5*blockLen, blockLen); !errors.Is(err, transport.ErrAccess) {
			t.Errorf("%v with a key for the other direction: %v", op, err)
		}
		if err := x.try(op, keys[op], 5*blockLen, blockLen); err != nil {
			t.Errorf("%v with its own key: %v", op, err)
		}
	}
}

// testWindowImmediate: an immediate by itself may come with any key that opens something, and tells which; it
// has no address of its own.
func testWindowImmediate(t *testing.T, make Factory) {
	x := newBench(t, make, blocks*blockLen)
	defer x.close()
	seq := uint64(0)
	send := func(key transport.Key, local []byte, offset int64) error {
		c := newTally(t)
		s := transport.NewSlice(transport.Write, local, key, offset, c.done)
		s.HasImm, s.Imm = true, transport.Imm{Source: 1, Seq: seq, Value: seq}
		seq++
		x.post(c, []*transport.Slice{s})
		c.wait(1)
		return c.err(s)
	}
	write, read := x.window(transport.Write, block(5)), x.window(transport.Read, block(5))
	for i, offset := range []int64{0, 5 * blockLen, 1 << 40} {
		if err := send(write, nil, offset); err != nil {
			t.Errorf("an immediate by itself at %d: %v", offset, err)
			continue
		}
		if m, key := <-x.imms, <-x.immKeys; m.Value != uint64(i) || key != write {
			t.Errorf("immediate %d came as %+v with key %#x, not %#x", i, m, key, write)
		}
	}
	if err := send(read, nil, 0); err != nil {
		t.Errorf("an immediate with a key to read: %v", err)
	} else if <-x.imms; <-x.immKeys != read {
		t.Error("an immediate with a key to read came with another")
	}
	if err := send(read, x.src[:10], 5*blockLen); !errors.Is(err, transport.ErrAccess) {
		t.Errorf("an immediate with bytes and a key to read: %v", err)
	}
	if err := send(write, x.src[:10], 0); !errors.Is(err, transport.ErrBounds) {
		t.Errorf("an immediate with bytes outside: %v", err)
	}
	if len(x.imms) != 0 {
		t.Errorf("%d immediates of refused slices were delivered", len(x.imms))
	}
}

// testWindowRefusesAlone: of slices that are posted together, and so travel in one
// frame, those outside are refused and the others carried out.
func testWindowRefusesAlone(t *testing.T, make Factory) {
	x := newBench(t, make, blocks*blockLen)
	defer x.close()
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		fill(x.src, 1)
		fill(x.dst, 2)
		src, dst := bytes.Clone(x.src), bytes.Clone(x.dst)
		open, closed := x.window(op, block(2), block(4), block(9)), x.window(1-op, block(6))
		c := newTally(t)
		var slices []*transport.Slice
		wants := map[*transport.Slice]error{}
		for i := range blocks {
			key, want := open, transport.ErrBounds
			switch i {
			case 2, 4, 9:
				want = nil
			case 6:
				key, want = closed, transport.ErrAccess
			}
			at := i * blockLen
			s := transport.NewSlice(op, x.src[at:at+blockLen:at+blockLen], key, int64(at), c.done)
			slices, wants[s] = append(slices, s), want
			if want == nil && op == transport.Write {
				copy(dst[at:], src[at:at+blockLen])
			} else if want == nil {
				copy(src[at:at+blockLen], dst[at:])
			}
		}
		x.post(c, slices)
		c.wait(len(slices))
		for i, s := range slices {
			if err := c.err(s); !errors.Is(err, wants[s]) || err != nil && wants[s] == nil {
				t.Errorf("%v of block %d: %v, want %v", op, i, err, wants[s])
			}
		}
		if !bytes.Equal(x.src, src) || !bytes.Equal(x.dst, dst) {
			t.Errorf("%v: bytes went astray", op)
		}
	}
}

// testWindowClose: a closed window is a bad key at once, and another to the same
// block goes on.
func testWindowClose(t *testing.T, make Factory) {
	x := newBench(t, make, blocks*blockLen)
	defer x.close()
	for _, op := range []transport.Op{transport.Read, transport.Write} {
		first, second := x.window(op, block(1)), x.window(op, block(1), block(2))
		if first == second {
			t.Fatal("two windows have one key")
		}
		if err := x.try(op, first, blockLen, 10); err != nil {
			t.Errorf("%v: %v", op, err)
		}
		if err := x.b.Deregister(first); err != nil {
			t.Fatal(err)
		}
		if err := x.try(op, first, blockLen, 10); !errors.Is(err, transport.ErrBadKey) {
			t.Errorf("%v through a closed window: %v", op, err)
		}
		if err := x.try(op, second, blockLen, 10); err != nil {
			t.Errorf("%v through the other: %v", op, err)
		}
		if err := x.b.Deregister(second); err != nil {
			t.Fatal(err)
		}
	}
}

// testWindowFaults: memory that does not have what is to be opened is not registered.
func testWindowFaults(t *testing.T, make Factory) {
	x := newBench(t, make, blocks*blockLen)
	defer x.close()
	access, err := transport.NewAccess(transport.Read, []transport.Range{block(0), {Offset: (blocks - 1) * blockLen, Length: blockLen + 1}})
	if err != nil {
		t.Fatal(err)
	}
	if key, err := x.b.Register(x.dst, access); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("a range beyond the memory: key %#x, %v", key, err)
	}
}

// testLocalOnly: a key that opens nothing is a bad one to peers, and good enough for
// the local side of slices.
func testLocalOnly(t *testing.T, make Factory) {
	x := newBench(t, make, blocks*blockLen)
	defer x.close()
	there, err := x.b.Register(x.dst, transport.Access{})
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range []transport.Op{transport.Read, transport.Write} {
		if err := x.try(op, there, 0, 10); !errors.Is(err, transport.ErrBadKey) {
			t.Errorf("%v with a key that opens nothing: %v", op, err)
		}
	}
	c := newTally(t)
	m := transport.NewSlice(transport.Write, nil, there, 0, c.done)
	m.HasImm, m.Imm.Source = true, 1
	x.post(c, []*transport.Slice{m})
	c.wait(1)
	if err := c.err(m); !errors.Is(err, transport.ErrBadKey) || len(x.imms) != 0 {
		t.Errorf("an immediate with it: %v, %d delivered", err, len(x.imms))
	}
	here, err := x.a.Register(x.src, transport.Access{})
	if err != nil {
		t.Fatal(err)
	}
	fill(x.src, 3)
	s := transport.NewSlice(transport.Write, x.src[:blockLen], x.key, 0, c.done)
	s.LocalKey = here
	x.post(c, []*transport.Slice{s})
	c.wait(2)
	if err := c.err(s); err != nil || !bytes.Equal(x.dst[:blockLen], x.src[:blockLen]) {
		t.Errorf("a write from it: %v", err)
	}
	for _, k := range []struct {
		r   transport.Rail
		key transport.Key
	}{{x.b, there}, {x.a, here}} {
		if err := k.r.Deregister(k.key); err != nil {
			t.Error(err)
		}
		if err := k.r.Deregister(k.key); !errors.Is(err, transport.ErrBadKey) {
			t.Errorf("deregistered twice: %v", err)
		}
	}
}

// testWatched: who watches a window hears of every slice that was written to it, once, when its bytes are there and
// before it completes, and of no slice that was refused.
func testWatched(t *testing.T, make Factory) {
	const each, n = 10_000, 100 // a frame has many, and more than is copied in one step
	x := newBench(t, make, n*each+1<<20)
	defer x.close()
	if w, ok := x.b.(transport.WriteWatcher); !ok || !w.WatchesWrites() {
		t.Log("NOT PROMISED: this rail does not watch writes")
		return
	}
	fill(x.src, 1)
	var mu sync.Mutex
	heard := map[transport.Range]int{}
	access, err := transport.NewAccess(transport.Write, []transport.Range{{Length: 50 * each}, {Offset: 60 * each, Length: int64(len(x.dst)) - 60*each}})
	if err != nil {
		t.Fatal(err)
	}
	key, err := x.b.Register(x.dst, access.Watched(func(offset, n int64) {
		mu.Lock()
		defer mu.Unlock()
		heard[transport.Range{Offset: offset, Length: n}]++
		if !bytes.Equal(x.dst[offset:offset+n], x.src[offset:offset+n]) {
			t.Errorf("%d bytes at %d are not there yet", n, offset)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	c := newTally(t)
	done := func(s *transport.Slice, err error) {
		mu.Lock()
		times := heard[transport.Range{Offset: s.Offset, Length: int64(len(s.Local))}]
		if err != nil {
			refused++
		}
		mu.Unlock()
		if want := err == nil && s.Op == transport.Write && len(s.Local) > 0; times != 0 != want || times > 1 {
			t.Errorf("%v of %d bytes at %d, which ended with %v, was heard of %d times", s.Op, len(s.Local), s.Offset, err, times)
		}
		c.done(s, err)
	}
	var list []*transport.Slice
	for i := range n {
		list = append(list, transport.NewSlice(transport.Write, x.src[i*each:(i+1)*each], key, int64(i*each), done))
	}
	list = append(list,
		transport.NewSlice(transport.Write, x.src[n*each:], key, n*each, done),
		transport.NewSlice(transport.Write, nil, key, 0, done),
		transport.NewSlice(transport.Read, x.src[7:8], key, 7, done))
	x.post(c, list)
	c.wait(len(list))
	if refused != 11 {
		t.Errorf("%d slices were refused: 10 are outside the window, and one reads", refused)
	}
}
