package rdma

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/transport"
)

// patience bounds every wait for something that must happen. It is no measure of
// speed: the machine may be busy.
const patience = time.Minute

// A pairing is an engine on each of two rails of a fabric, with a segment at both.
type pairing struct {
	f        *fabric
	ra, rb   *Rail
	a, b     *transport.Engine
	src, dst *transport.Segment
	target   *transport.Target
	imms     chan uint64
}

func newPairing(t *testing.T, n int, change ...func(*Config)) *pairing {
	t.Helper()
	f := newFabric()
	p := &pairing{f: f, ra: f.rail(t, change...), rb: f.rail(t, change...), imms: make(chan uint64, 1<<16)}
	engine := func(r *Rail, on func(transport.Immediate)) *transport.Engine {
		e, err := transport.New(transport.Config{
			Rails: []transport.Rail{r}, OnImmediate: on, SliceSize: 4096, BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	p.a = engine(p.ra, nil)
	p.b = engine(p.rb, func(m transport.Immediate) { p.imms <- m.Value })
	var err error
	if p.src, err = p.a.Register("src", make([]byte, n), "cpu:0"); err != nil {
		t.Fatal(err)
	}
	if p.dst, err = p.b.Register("dst", make([]byte, n), "cpu:0"); err != nil {
		t.Fatal(err)
	}
	if p.target, err = p.a.Open(p.dst.Info()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.a.Close(), p.b.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *pairing) whole(op transport.Op) []transport.Request {
	return []transport.Request{{Op: op, Local: p.src.Bytes(), Offset: 0}}
}

// submit writes or reads the whole segment and returns how it ended.
func (p *pairing) submit(t *testing.T, op transport.Op, opt transport.BatchOptions) error {
	t.Helper()
	done := make(chan struct{})
	opt.OnDone = func(*transport.Batch) { close(done) }
	if opt.Timeout == 0 {
		opt.Timeout = patience
	}
	b := p.a.Submit(p.target, p.whole(op), opt)
	select {
	case <-done:
	case <-time.After(2 * patience):
		t.Fatal("the batch never ended")
	}
	return b.Err()
}

func (p *pairing) randomize(seed uint64) {
	_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(p.src.Bytes()) // never fails
}

// TestQueuePairError: whatever ends a request, the queue pairs are made anew, the
// slices that can be are carried again, and nothing is lost or applied twice.
func TestQueuePairError(t *testing.T) {
	for st, want := range map[status]error{
		statusRetry:        nil, // tried again
		statusRNRRetry:     nil,
		statusRemoteOp:     nil,
		statusFatal:        nil,
		statusRemoteAccess: transport.ErrBadKey,
		statusLocalProt:    transport.ErrInvalid,
		statusRemoteInv:    transport.ErrProtocol,
	} {
		for _, pairs := range []int{1, 3} {
			p := newPairing(t, 1<<18, func(c *Config) { c.QueuePairs, c.QueueDepth = pairs, 16 })
			p.randomize(uint64(st))
			var n atomic.Int64
			p.f.with(func() {
				p.f.fault = func(w *workRequest) status {
					if n.Add(1) == 20 {
						return st
					}
					return statusOK
				}
			})
			err := p.submit(t, transport.Write, transport.BatchOptions{HasImm: true, Imm: 7})
			if want == nil {
				if err != nil || !bytes.Equal(p.src.Bytes(), p.dst.Bytes()) || len(p.imms) != 1 {
					t.Errorf("status %d, %d pairs: %v, same bytes: %v, %d immediates", st, pairs, err, bytes.Equal(p.src.Bytes(), p.dst.Bytes()), len(p.imms))
				}
				continue
			}
			var ce *CompletionError
			if !errors.Is(err, want) || !errors.As(err, &ce) || ce.Status != uint32(st) || len(p.imms) != 0 {
				t.Errorf("status %d, %d pairs: %v, want %v", st, pairs, err, want)
			}
			for _, s := range []string{p.ra.Name(), p.rb.Addr(), statuses[st].name} {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q is not in: %v", s, err)
				}
			}
			if err := p.submit(t, transport.Write, transport.BatchOptions{}); err != nil || !bytes.Equal(p.src.Bytes(), p.dst.Bytes()) {
				t.Errorf("status %d, %d pairs: afterwards: %v", st, pairs, err)
			}
		}
	}
}

// TestManyFaults: requests fail at random, and every batch still arrives whole,
// its immediate once.
func TestManyFaults(t *testing.T) {
	p := newPairing(t, 1<<16, func(c *Config) { c.QueuePairs, c.QueueDepth = 2, 8 })
	rng := rand.New(rand.NewPCG(1, 2))
	p.f.with(func() {
		p.f.fault = func(*workRequest) status {
			if rng.IntN(60) == 0 {
				return statusRetry
			}
			return statusOK
		}
	})
	const n = 60
	for i := range uint64(n) {
		p.randomize(i)
		if err := p.submit(t, transport.Write, transport.BatchOptions{HasImm: true, Imm: i}); err != nil {
			t.Fatalf("batch %d: %v", i, err)
		}
		if !bytes.Equal(p.src.Bytes(), p.dst.Bytes()) {
			t.Fatalf("batch %d: the bytes are not what was written", i)
		}
	}
	if len(p.imms) != n {
		t.Errorf("%d immediates of %d batches", len(p.imms), n)
	}
}

// TestImmediatePressure: far more immediates than the target has receives, while
// its handler takes its time.
func TestImmediatePressure(t *testing.T) {
	f := newFabric()
	a := f.rail(t, func(c *Config) { c.QueueDepth = 4 })
	b := f.rail(t, func(c *Config) { c.QueueDepth = 3 })
	defer a.Close()
	defer b.Close()
	a.HandleImmediates(func(transport.Key, transport.Imm) error { return nil })
	gate := make(chan struct{}, 1)
	var got []uint64
	b.HandleImmediates(func(_ transport.Key, m transport.Imm) error {
		<-gate
		got = append(got, m.Value)
		return nil
	})
	mem := make([]byte, 64)
	key, err := b.Register(mem, transport.Whole(64))
	if err != nil {
		t.Fatal(err)
	}
	ep, err := a.Dial(t.Context(), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	const n = 200
	done := make(chan error, n)
	var slices []*transport.Slice
	for i := range uint64(n) {
		s := transport.NewSlice(transport.Write, nil, key, 0, func(_ *transport.Slice, err error) { done <- err })
		s.HasImm, s.Imm = true, transport.Imm{Source: 1, Seq: i, Value: i}
		slices = append(slices, s)
	}
	if k, err := ep.Post(slices); k != n || err != nil {
		t.Fatal(k, err)
	}
	for range n {
		gate <- struct{}{}
	}
	for range n {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	for i, v := range got {
		if v != uint64(i) {
			t.Fatalf("immediate %d is %d", i, v)
		}
	}
}

// TestPort: a port that goes down ends what is under way at once, Dial says why,
// and what waits is carried when it is up again.
func TestPort(t *testing.T) {
	p := newPairing(t, 1<<16)
	if err := p.submit(t, transport.Write, transport.BatchOptions{}); err != nil {
		t.Fatal(err)
	}
	dev := p.f.devices[p.ra.cfg.Device]
	p.f.with(func() { p.f.hold = true })
	done := make(chan error, 1)
	p.randomize(1)
	go func() { done <- p.submit(t, transport.Write, transport.BatchOptions{}) }()
	dev.events <- portDown
	for {
		_, err := p.ra.Dial(t.Context(), p.rb.Addr())
		if errors.Is(err, transport.ErrUnreachable) && strings.Contains(err.Error(), "is down") {
			break
		}
	}
	// The engine says so once it has tried to connect, which may take a busy machine
	// longer than a batch has.
	for limit := 50 * time.Millisecond; ; limit *= 2 {
		err := p.submit(t, transport.Write, transport.BatchOptions{Timeout: limit})
		if !errors.Is(err, transport.ErrDeadline) {
			t.Errorf("while the port is down: %v", err)
		}
		if strings.Contains(err.Error(), "is down") {
			break
		}
		if limit > patience {
			t.Fatal(err)
		}
	}
	p.f.with(func() { p.f.hold = false })
	dev.events <- portUp
	if err := <-done; err != nil || !bytes.Equal(p.src.Bytes(), p.dst.Bytes()) {
		t.Errorf("when it is up again: %v", err)
	}
}

// TestDeviceRemoved: the device goes away for good and another of its name comes.
// Keys given out before stay good, at the initiator and at the target.
func TestDeviceRemoved(t *testing.T) {
	for _, target := range []bool{false, true} {
		p := newPairing(t, 1<<16)
		r := p.ra
		if target {
			r = p.rb
		}
		if err := p.submit(t, transport.Write, transport.BatchOptions{}); err != nil {
			t.Fatal(err)
		}
		p.f.mu.Lock()
		old := p.f.devices[r.cfg.Device]
		p.f.gone[r.cfg.Device] = true
		p.f.mu.Unlock()
		old.events <- deviceGone
		<-old.over // closed, as the kernel wants
		p.f.mu.Lock()
		live := old.live
		p.f.mu.Unlock()
		if live != 0 {
			t.Errorf("the old device has %d objects left", live)
		}
		if _, err := r.Register(make([]byte, 10), transport.Whole(10)); !errors.Is(err, transport.ErrUnreachable) || !strings.Contains(err.Error(), "was removed") {
			t.Errorf("Register without a device: %v", err)
		}
		p.f.mu.Lock()
		delete(p.f.gone, r.cfg.Device)
		p.f.mu.Unlock()
		p.randomize(3)
		if err := p.submit(t, transport.Write, transport.BatchOptions{HasImm: true}); err != nil || !bytes.Equal(p.src.Bytes(), p.dst.Bytes()) {
			t.Errorf("target %v: with the new device: %v", target, err)
		}
	}
}

// TestRevokeStalled: a peer whose writes hang is cut off; then nothing of it
// touches the memory.
func TestRevokeStalled(t *testing.T) {
	p := newPairing(t, 1<<16)
	if err := p.submit(t, transport.Write, transport.BatchOptions{}); err != nil {
		t.Fatal(err)
	}
	p.f.with(func() { p.f.hold = true })
	done := make(chan error, 1)
	go func() { done <- p.submit(t, transport.Write, transport.BatchOptions{}) }()
	dev := p.f.devices[p.ra.cfg.Device]
	for posted := false; !posted; {
		p.f.mu.Lock()
		for _, q := range p.f.pairs {
			posted = posted || q.d == dev && len(q.posted) > 0
		}
		p.f.mu.Unlock()
	}
	start := time.Now()
	if err := p.dst.Close(); err != nil {
		t.Error(err)
	}
	if d := time.Since(start); d < revokeWithin { // and some time after, or this does not return
		t.Errorf("cut off after %v, not %v", d, revokeWithin)
	}
	clear(p.dst.Bytes()) // a race if anything is still under way
	p.f.with(func() { p.f.hold = false })
	if err := <-done; !errors.Is(err, transport.ErrBadKey) {
		t.Errorf("the write: %v", err)
	}
}

// TestLostConnection: writes of a connection that was given up are not applied
// after those of the one that took over.
func TestLostConnection(t *testing.T) {
	f := newFabric()
	a, b := f.rail(t), f.rail(t)
	defer a.Close()
	defer b.Close()
	key, err := b.Register(make([]byte, 64), transport.Whole(64))
	if err != nil {
		t.Fatal(err)
	}
	ep, err := a.Dial(t.Context(), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	f.with(func() { f.hold = true })
	done := make(chan error, 1)
	s := transport.NewSlice(transport.Write, make([]byte, 8), key, 0, func(_ *transport.Slice, err error) { done <- err })
	if _, err := ep.Post([]*transport.Slice{s}); err != nil {
		t.Fatal(err)
	}
	for !ep.(*endpoint).underWay() {
		select {
		case err := <-done:
			t.Fatal(err)
		default:
		}
	}
	var old *served
	b.mu.Lock()
	for g := range b.conns {
		old = g.served
	}
	b.mu.Unlock()
	if err := ep.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if lost := a.lost.Of(b.Addr()); len(lost) != 1 || lost[0] != ep.Secret() {
		t.Errorf("%x are to be named as lost, want %x", lost, ep.Secret())
	}
	f.with(func() { f.hold = false })
	again, err := a.Dial(t.Context(), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-old.over:
	default:
		t.Error("the target still serves the connection that was lost")
	}
	if lost := a.lost.Of(b.Addr()); len(lost) != 0 {
		t.Errorf("still told of: %v", lost)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// TestPinnedOnce: keys to parts of registered memory cost no registration.
func TestPinnedOnce(t *testing.T) {
	f := newFabric()
	r := f.rail(t)
	defer r.Close()
	dev := f.devices[r.cfg.Device]
	mem := make([]byte, 1<<12)
	var keys []transport.Key
	for i := range 10 {
		k, err := r.Register(mem[i*100:4000], transport.Whole(10))
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k)
	}
	if len(dev.regions) != 1 {
		t.Errorf("%d regions", len(dev.regions))
	}
	for i, k := range keys {
		if len(dev.regions) != 1 {
			t.Errorf("%d regions with %d keys", len(dev.regions), len(keys)-i)
		}
		if err := r.Deregister(k); err != nil {
			t.Fatal(err)
		}
	}
	if len(dev.regions) != 0 {
		t.Errorf("%d regions without a key", len(dev.regions))
	}
}

// TestStrangers: what connects and is no rail is told apart, does no harm, and has a
// line together.
func TestStrangers(t *testing.T) {
	f, log := newFabric(), &clocktest.Log{}
	r, other := f.rail(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) }), f.rail(t)
	defer r.Close()
	defer other.Close()
	good := (&greeting{name: transport.Name{1}, depth: 8, at: portAddr{mtu: 5}, pairs: []pairAddr{{1, 2}}}).append(nil)
	for _, b := range [][]byte{
		[]byte("GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n........................................"),
		bytes.Repeat([]byte{0xff}, 200),
		good[:20],
	} {
		c, err := net.Dial("tcp", r.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(b)
		_ = c.(*net.TCPConn).CloseWrite()
		if n, err := c.Read(make([]byte, 10)); err == nil {
			t.Errorf("%d bytes in answer to %q", n, b)
		}
		_ = c.Close()
	}
	if _, err := other.Dial(t.Context(), r.Addr()); err != nil {
		t.Error(err)
	}
	if err := r.Close(); err != nil { // its log is complete
		t.Error(err)
	}
	if n := strings.Count(log.String(), "connection dropped"); n != 1 {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
	// And the other way: what answers is no rail.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err == nil {
			_, _ = c.Write(bytes.Repeat([]byte("SSH-2.0 "), 20))
		}
	}()
	if _, err := other.Dial(t.Context(), ln.Addr().String()); !errors.Is(err, transport.ErrProtocol) {
		t.Errorf("dial of something else: %v", err)
	}
	// One that says nothing costs a Dial its time, and no more.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := other.Dial(ctx, ln.Addr().String()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dial of something silent: %v", err)
	}
}
