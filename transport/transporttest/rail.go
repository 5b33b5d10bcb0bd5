package transporttest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/transport"
)

// patience bounds every wait for something that must happen. It is no measure of
// speed: the machine may be busy.
const patience = time.Minute

// A Factory makes rails that can reach each other: two calls, two NICs of one network. The
// tests close what they are given.
type Factory func(t testing.TB) transport.Rail

// Allocating is a rail that says what memory its tests' targets are to have, where that is not the heap's:
// an Allocator, as a method.
type Allocating interface {
	Allocate(size int) (mem []byte, release func() error, err error)
}

// Windows says what a rail promises of transport.Access.
type Windows string

const (
	// Checked: the target holds peers to the ranges and the direction of a key.
	Checked Windows = "checked"
	// Unchecked: a key opens the whole region in both directions, or nothing. The
	// tests of ranges and directions are left out, and the log says so.
	Unchecked Windows = "unchecked"
)

// TestRail runs the contract of transport.Rail against the rails that make
// returns. Run it under the race detector: much of the contract is about who may touch
// memory when, and tests write to memory the moment that it is theirs again. It takes some
// seconds, 150 MB of memory, and no time that a busy machine would miss.
func TestRail(t *testing.T, make Factory, windows Windows) {
	type test struct {
		name string
		run  func(*testing.T, Factory)
	}
	tests := []test{
		{"WriteAndRead", testWriteAndRead},
		{"ManySlices", testManySlices},
		{"ManyKeys", testManyKeys},
		{"Immediates", testImmediates},
		{"ImmediateBehind", testImmediateBehind},
		{"ImmediateRefused", testImmediateRefused},
		{"LostImmediate", testLostImmediate},
		{"Texts", testTexts},
		{"Messages", testMessages},
		{"CutMessages", testCutMessages},
		{"HostileMessages", testHostileMessages},
		{"Refusals", testRefusals},
		{"PostFromCompletion", testPostFromCompletion},
		{"QueueIsBounded", testQueueIsBounded},
		{"Deregister", testDeregister},
		{"DeregisterUnderLoad", testDeregisterUnderLoad},
		{"Dial", testDial},
		{"EndpointClose", testEndpointClose},
		{"LostAreEnded", testLostAreEnded},
		{"Fence", testFence},
		{"FenceWithin", testFenceWithin},
		{"PeerClose", testPeerClose},
		{"RailClose", testRailClose},
		{"CloseTwice", testCloseTwice},
		{"AfterClose", testAfterClose},
		{"NoImmediateAfter", testNoImmediateAfter},
		{"LocalOnly", testLocalOnly},
		{"Memfd", testMemfd},
		{"DMABuf", testDMABuf},
		{"Bare", testBare},
		{"Carrier", testCarrier},
		{"Express", testExpress},
	}
	if windows == Checked {
		tests = append(tests, []test{
			{"WindowRanges", testWindowRanges},
			{"WindowDirection", testWindowDirection},
			{"WindowImmediate", testWindowImmediate},
			{"WindowRefusesAlone", testWindowRefusesAlone},
			{"WindowClose", testWindowClose},
			{"Watched", testWatched},
			{"WindowFaults", testWindowFaults},
		}...)
	} else {
		t.Logf("NOT PROMISED: the windows of this rail are %s: its keys open whole regions", windows)
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			c.run(t, make)
			// Close has waited for them, but one that has signalled its end still counts
			// until it is scheduled out.
			clocktest.Goroutines(t, before)
		})
	}
}

// A bench has an initiator a with an endpoint to the target b, and memory
// registered at both.
type bench struct {
	t        *testing.T
	a, b     transport.Rail
	ep       transport.Endpoint
	src, dst []byte             // at a and b
	key      transport.Key      // opens all of dst
	imms     chan transport.Imm // delivered at b
	immKeys  chan transport.Key // that they came with
}

func newBench(t *testing.T, make Factory, n int) *bench {
	t.Helper()
	x := &bench{t: t, a: make(t), b: make(t), src: bytesOf(n), imms: newChan[transport.Imm](), immKeys: newChan[transport.Key]()}
	x.a.HandleImmediates(func(transport.Key, transport.Imm) error { return nil })
	x.b.HandleImmediates(func(k transport.Key, m transport.Imm) error {
		x.immKeys <- k
		x.imms <- m
		return nil
	})
	x.dst = memoryOf(t, x.b, n)
	x.key = whole(t, x.b, x.dst)
	x.ep = dial(t, x.a, x.b.Addr())
	return x
}

// whole is a key to all of mem.
func whole(t testing.TB, r transport.Rail, mem []byte) transport.Key {
	t.Helper()
	key, err := r.Register(mem, transport.Whole(int64(len(mem))))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// memoryOf is memory that a rail is to register, until the test has ended.
func memoryOf(t *testing.T, r transport.Rail, n int) []byte {
	t.Helper()
	a, ok := r.(Allocating)
	if !ok {
		return bytesOf(n)
	}
	mem, release, err := a.Allocate(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := release(); err != nil {
			t.Error(err)
		}
	})
	return mem
}

// bytesOf and newChan are for functions whose parameter make is the rails' factory.
func bytesOf(n int) []byte { return make([]byte, n) }

func newChan[T any]() chan T { return make(chan T, 1<<16) }

// dial connects, within patience. The rail's Close closes the endpoint.
func dial(t *testing.T, r transport.Rail, addr string) transport.Endpoint {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ep, err := r.Dial(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	return ep
}

// close closes both rails, one of them twice: that does nothing and is no error.
func (x *bench) close() {
	x.t.Helper()
	for _, r := range []transport.Rail{x.a, x.b, x.a} {
		if err := r.Close(); err != nil {
			x.t.Errorf("close %s: %v", r.Name(), err)
		}
	}
}

// A tally collects the completions of slices. Several may wait for them.
type tally struct {
	t    *testing.T
	mu   sync.Mutex
	errs map[*transport.Slice]error
	more chan struct{} // closed and replaced when a slice completes
}

func newTally(t *testing.T) *tally {
	return &tally{t: t, errs: make(map[*transport.Slice]error), more: make(chan struct{})}
}

func (c *tally) done(s *transport.Slice, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, dup := c.errs[s]; dup {
		c.t.Errorf("slice at offset %d completed twice", s.Offset)
	}
	c.errs[s] = err
	close(c.more)
	c.more = make(chan struct{})
}

// completed returns how many slices have completed, and what is closed when another does.
func (c *tally) completed() (int, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.errs), c.more
}

// wait returns when n slices have completed.
func (c *tally) wait(n int) {
	c.t.Helper()
	timeout := time.After(patience)
	for {
		have, more := c.completed()
		if have >= n {
			return
		}
		select {
		case <-more:
		case <-timeout:
			c.t.Fatalf("%d of %d slices completed", have, n)
		}
	}
}

func (c *tally) err(s *transport.Slice) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.errs[s]
}

// post posts all slices, waiting for room, and returns how many were taken.
func (x *bench) post(c *tally, slices []*transport.Slice) int {
	x.t.Helper()
	posted := 0
	for posted < len(slices) {
		_, more := c.completed()
		n, err := x.ep.Post(slices[posted:])
		if n < 0 || n > len(slices)-posted {
			x.t.Fatalf("Post took %d of %d", n, len(slices)-posted)
		}
		posted += n
		if err != nil {
			break
		}
		if n == 0 {
			select {
			case <-more:
			case <-time.After(patience):
				x.t.Fatal("a full queue never has room")
			}
		}
	}
	return posted
}

// fill is random by a seed: no two ranges are alike, so that bytes that went astray show.
func fill(b []byte, seed uint64) {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	_, _ = rand.NewChaCha8(key).Read(b) // never fails
}

// testWriteAndRead moves ranges of every kind of place and size, odd ones too, and looks
// at all of both memories each time: bytes beside a range are somebody else's.
func testWriteAndRead(t *testing.T, make Factory) {
	x := newBench(t, make, 3<<20)
	defer x.close()
	if x.key == 0 {
		t.Error("key 0 is never valid")
	}
	if again := whole(t, x.b, x.dst); again == x.key {
		t.Errorf("registered again: key %v twice", again)
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
			if key := <-x.immKeys; got != m.Imm || key != x.key {
				t.Fatalf("immediate %+v with key %#x, sent %+v with %#x", got, key, m.Imm, x.key)
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
