package transporttest

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"kvferry/transport"
)

// patience bounds every wait for something that must happen.
const patience = 10 * time.Second

// A Factory makes rails that can reach each other.
type Factory func(t testing.TB) transport.Rail

// TestRail runs the contract of transport.Rail against the rails that make
// returns.
func TestRail(t *testing.T, make Factory) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Factory)
	}{
		{"WriteAndRead", testWriteAndRead},
		{"ManySlices", testManySlices},
		{"Immediates", testImmediates},
		{"Refusals", testRefusals},
		{"PostFromCompletion", testPostFromCompletion},
		{"Deregister", testDeregister},
		{"DeregisterUnderLoad", testDeregisterUnderLoad},
		{"Dial", testDial},
		{"EndpointClose", testEndpointClose},
		{"Fence", testFence},
		{"PeerClose", testPeerClose},
		{"RailClose", testRailClose},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			c.run(t, make)
			settle(t, before)
		})
	}
}

// settle waits for the goroutines of closed rails to be gone: Close has
// waited for them, but one that has signalled its end still counts until it
// is scheduled out.
func settle(t *testing.T, before int) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for runtime.NumGoroutine() > before {
		if time.Now().After(deadline) {
			buf := [1 << 16]byte{}
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf[:], true)])
		}
		runtime.Gosched()
	}
}

// A bench has an initiator a with an endpoint to the target b, and memory
// registered at both.
type bench struct {
	t        *testing.T
	a, b     transport.Rail
	ep       transport.Endpoint
	src, dst []byte // at a and b
	key      transport.Key
	imms     chan transport.Imm // delivered at b
}

func newBench(t *testing.T, make Factory, n int) *bench {
	t.Helper()
	x := &bench{t: t, a: make(t), b: make(t), src: bytesOf(n), dst: bytesOf(n), imms: newImms()}
	x.a.HandleImmediates(func(transport.Imm) {})
	x.b.HandleImmediates(func(m transport.Imm) { x.imms <- m })
	var err error
	if x.key, err = x.b.Register(x.dst); err != nil {
		t.Fatal(err)
	}
	x.ep = dial(t, x.a, x.b.Addr())
	return x
}

func bytesOf(n int) []byte { return make([]byte, n) }

func newImms() chan transport.Imm { return make(chan transport.Imm, 1<<16) }

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

func (x *bench) close() {
	x.t.Helper()
	for _, r := range []transport.Rail{x.a, x.b, x.a} {
		if err := r.Close(); err != nil {
			x.t.Errorf("close %s: %v", r.Name(), err)
		}
	}
}

// A tally collects the completions of slices.
type tally struct {
	t    *testing.T
	mu   sync.Mutex
	errs map[*transport.Slice]error
	more chan struct{}
}

func newTally(t *testing.T) *tally {
	return &tally{t: t, errs: make(map[*transport.Slice]error), more: make(chan struct{}, 1)}
}

func (c *tally) done(s *transport.Slice, err error) {
	c.mu.Lock()
	if _, dup := c.errs[s]; dup {
		c.t.Errorf("slice at offset %d completed twice", s.Offset)
	}
	c.errs[s] = err
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// wait returns when n slices have completed.
func (c *tally) wait(n int) {
	c.t.Helper()
	timeout := time.After(patience)
	for {
		c.mu.Lock()
		have := len(c.errs)
		c.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-c.more:
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
			case <-c.more:
			case <-time.After(patience):
				x.t.Fatal("a full queue never has room")
			}
		}
	}
	return posted
}

func fill(b []byte, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}
