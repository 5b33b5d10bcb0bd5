package transport_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock"
	"kvferry/transport"
	"kvferry/transport/pacing"
	"kvferry/transport/transporttest"
)

// A pair is two engines on one network, each with a 64 KiB segment; b has
// opened a's... and a is the initiator of every test.
type pair struct {
	t      *testing.T
	net    *transporttest.Network
	rail   *transporttest.Rail // the initiator's
	a, b   *transport.Engine
	local  *transport.Segment
	remote *transport.Segment
	target *transport.Target
	imms   chan transport.Immediate // delivered at b
}

const segLen = 64 << 10

func newPair(t *testing.T, cfg transport.Config) *pair {
	t.Helper()
	p := &pair{t: t, net: transporttest.NewNetwork(), imms: make(chan transport.Immediate, 1024)}
	p.rail = p.net.Rail("a")
	if len(cfg.Rails) == 0 {
		cfg.Rails = []transport.Rail{p.rail}
	}
	cfg.Clock = clock.Std()
	p.a = engine(t, cfg)
	p.b = engine(t, transport.Config{
		Rails: []transport.Rail{p.net.Rail("b")}, Clock: clock.Std(),
		OnImmediate: func(i transport.Immediate) { p.imms <- i },
	})
	p.local = register(t, p.a, "local", segLen)
	p.remote = register(t, p.b, "remote", segLen)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range p.local.Bytes() {
		p.local.Bytes()[i] = byte(rng.Uint32())
	}
	p.open()
	return p
}

func (p *pair) open() {
	p.t.Helper()
	tgt, err := p.a.Open(p.remote.Info())
	if err != nil {
		p.t.Fatal(err)
	}
	p.target = tgt
}

func engine(t *testing.T, cfg transport.Config) *transport.Engine {
	t.Helper()
	e, err := transport.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e
}

func register(t *testing.T, e *transport.Engine, name string, n int) *transport.Segment {
	t.Helper()
	s, err := e.Register(name, make([]byte, n), "cpu:0")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// reqs cuts the whole segment into n requests.
func (p *pair) reqs(op transport.Op, n int) []transport.Request {
	size := segLen / n
	var rs []transport.Request
	for i := range n {
		rs = append(rs, transport.Request{Op: op, Local: p.local.Bytes()[i*size : (i+1)*size], Offset: int64(i * size)})
	}
	return rs
}

func wait(t *testing.T, b *transport.Batch) error {
	t.Helper()
	select {
	case <-b.Done():
	case <-time.After(time.Hour):
		t.Fatal("the batch never ended")
	}
	if (b.Err() == nil) != (b.Status() == transport.Completed) {
		t.Fatalf("status %v with error %v", b.Status(), b.Err())
	}
	return b.Err()
}

// TestApplied: each piece of a request is said to be applied once, although others of the batch are not, and when slices
// were lost and sent again.
func TestApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{SliceSize: 1000, Retries: 3})
		synctest.Wait()
		for _, fault := range []transporttest.Kind{transporttest.Delay, transporttest.Cut} {
			p.rail.Inject(transporttest.Fault{Slice: int(p.rail.Carried()) + 12, Kind: fault, Delay: time.Second}) // of request 1
			var mu sync.Mutex
			var applied [8][]int // where pieces begin
			b := p.a.Submit(p.target, p.reqs(transport.Read, 8), transport.BatchOptions{OnApplied: func(i, from, to int) {
				mu.Lock()
				defer mu.Unlock()
				if applied[i] = append(applied[i], from); to != min(from+1000, segLen/8) {
					t.Errorf("bytes %d to %d of request %d", from, to, i)
				}
			}})
			synctest.Wait()
			if fault == transporttest.Delay {
				mu.Lock()
				if b.Status() != transport.InFlight || len(applied[0]) != 9 || len(applied[1]) != 2 || applied[2] != nil {
					t.Errorf("the third slice of request 1 is under way: %v, applied %v", b.Status(), applied)
				}
				mu.Unlock()
			}
			if err := wait(t, b); err != nil {
				t.Fatal(err)
			}
			for i, got := range applied {
				if slices.Sort(got); !slices.Equal(got, []int{0, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000}) {
					t.Errorf("%v: applied of request %d: %v", fault, i, got)
				}
			}
		}
	})
}

func TestWriteReadImmediate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{SliceSize: 1000})
		calls := 0
		b := p.a.Submit(p.target, p.reqs(transport.Write, 8), transport.BatchOptions{
			Imm: 42, HasImm: true,
			OnDone: func(*transport.Batch) { calls++ },
		})
		if err := wait(t, b); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if calls != 1 || b.Bytes() != segLen {
			t.Errorf("OnDone ran %d times, %d bytes", calls, b.Bytes())
		}
		if got := <-p.imms; got != (transport.Immediate{Value: 42, Segment: "remote", Rail: "mem/b"}) {
			t.Errorf("immediate %+v", got)
		}
		if !bytes.Equal(p.local.Bytes(), p.remote.Bytes()) {
			t.Error("WRITE moved other bytes")
		}
		clear(p.local.Bytes())
		if err := wait(t, p.a.Submit(p.target, p.reqs(transport.Read, 4), transport.BatchOptions{})); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p.local.Bytes(), p.remote.Bytes()) {
			t.Error("READ moved other bytes")
		}
		st := p.a.Rails()[0]
		want := transport.RailStats{
			Name: "mem/a", Addr: "a", Immediates: 1, Dials: 1, Conns: 1, Paths: 1, Up: 1,
			Write:  transport.OpStats{Bytes: segLen, Slices: 8 * 9},
			Read:   transport.OpStats{Bytes: segLen, Slices: 4 * 17},
			Posted: 8*9 + 4*17,
		}
		if !reflect.DeepEqual(st, want) {
			t.Errorf("accounting\n got %+v\nwant %+v", st, want)
		}
	})
}

// A batch may be an immediate and nothing else.
func TestImmediateAlone(t *testing.T) {
	p := newPair(t, transport.Config{})
	b := p.a.Submit(p.target, nil, transport.BatchOptions{HasImm: true, Imm: 9})
	<-b.Done()
	if err := b.Err(); err != nil {
		t.Fatal(err)
	}
	if got := <-p.imms; got.Value != 9 {
		t.Errorf("immediate %d", got.Value)
	}
}

func TestSubmitFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{})
		mem := p.local.Bytes()
		for name, c := range map[string]struct {
			reqs []transport.Request
			want error
		}{
			"bounds":         {[]transport.Request{{Local: mem[:100], Offset: segLen - 99}}, transport.ErrBounds},
			"overflow":       {[]transport.Request{{Local: mem[:100], Offset: 1<<63 - 1}}, transport.ErrBounds},
			"negative":       {[]transport.Request{{Local: mem[:100], Offset: -1}}, transport.ErrBounds},
			"not registered": {[]transport.Request{{Local: make([]byte, 10)}}, transport.ErrNotRegistered},
			"empty":          {[]transport.Request{{}}, transport.ErrInvalid},
			"op":             {[]transport.Request{{Op: 7, Local: mem[:1]}}, transport.ErrInvalid},
		} {
			b := p.a.Submit(p.target, c.reqs, transport.BatchOptions{Tag: "cmpl-7"})
			var e *transport.Error
			if err := wait(t, b); !errors.Is(err, c.want) || !errors.As(err, &e) || e.Tag != "cmpl-7" {
				t.Errorf("%s: got %v, want %v", name, err, c.want)
			}
		}
		if err := wait(t, p.a.Submit(p.target, nil, transport.BatchOptions{})); err != nil {
			t.Errorf("empty batch: %v", err)
		}
		if err := wait(t, p.a.Submit(nil, p.reqs(transport.Read, 1), transport.BatchOptions{})); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("no target: %v", err)
		}
		if err := wait(t, p.a.Submit(p.target, p.reqs(transport.Read, 1), transport.BatchOptions{Deadline: time.Now().Add(-1)})); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("deadline passed: %v", err)
		}
		p.a.Close()
		if err := wait(t, p.a.Submit(p.target, p.reqs(transport.Read, 1), transport.BatchOptions{})); !errors.Is(err, net.ErrClosed) {
			t.Errorf("closed engine: %v", err)
		}
	})
}

func TestConfigValidate(t *testing.T) {
	n := transporttest.NewNetwork()
	a := n.Rail("a")
	cfg := transport.Config{
		Rails: []transport.Rail{a, nil, a}, SliceSize: -1, Retries: -1, DialTimeout: -1,
		BackoffMin: time.Second, BackoffMax: time.Millisecond, Link: &pacing.Link{},
	}
	_, err := transport.New(cfg)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, field := range []string{"Rails[1]", "Rails[2]", "SliceSize", "Retries", "DialTimeout", "BackoffMin", "Link"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named in: %v", field, err)
		}
	}
	if err := (&transport.Config{}).Validate(); err == nil || !strings.Contains(err.Error(), "Rails") {
		t.Errorf("no rails: %v", err)
	}
}

func TestOpenFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{})
		for name, c := range map[string]struct {
			change func(*transport.SegmentInfo)
			want   error
		}{
			"other kind": {func(i *transport.SegmentInfo) { i.Rails[0].Rail = "rdma/mlx5_0" }, transport.ErrNoPath},
			"no rails":   {func(i *transport.SegmentInfo) { i.Rails = nil }, transport.ErrNoPath},
			"key zero":   {func(i *transport.SegmentInfo) { i.Rails[0].Key = 0 }, transport.ErrInvalid},
			"no address": {func(i *transport.SegmentInfo) { i.Rails[0].Addr = "" }, transport.ErrInvalid},
			"length":     {func(i *transport.SegmentInfo) { i.Length = 0 }, transport.ErrInvalid},
		} {
			info := p.remote.Info()
			c.change(&info)
			if _, err := p.a.Open(info); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
		}
	})
}

// With one of two rails dead, batches go over the other, and over both again
// when it is back.
func TestDeadRail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := transporttest.NewNetwork()
		a := engine(t, transport.Config{Rails: []transport.Rail{n.Rail("a0"), n.Rail("a1")}, Clock: clock.Std(), SliceSize: 1024, DialTimeout: time.Second})
		b := engine(t, transport.Config{Rails: []transport.Rail{n.Rail("b0"), n.Rail("b1")}, Clock: clock.Std()})
		local, remote := register(t, a, "local", segLen), register(t, b, "remote", segLen)
		n.BlackHole("b1", true)
		tgt, err := a.Open(remote.Info())
		if err != nil {
			t.Fatal(err)
		}
		move := func() (over [2]int64) {
			t.Helper()
			before := a.Rails()
			batch := a.Submit(tgt, []transport.Request{{Local: local.Bytes()}}, transport.BatchOptions{Timeout: 10 * time.Second})
			if err := wait(t, batch); err != nil {
				t.Fatal(err)
			}
			for i, st := range a.Rails() {
				over[i] = st.Write.Bytes - before[i].Write.Bytes
			}
			return over
		}
		if over := move(); over != [2]int64{segLen, 0} {
			t.Errorf("dead rail: %v bytes over each", over)
		}
		n.BlackHole("b1", false)
		<-time.After(3 * time.Second) // a hanging dial, and the wait before the next
		if over := move(); over[0] == 0 || over[1] == 0 || over[0]+over[1] != segLen {
			t.Errorf("rail is back: %v bytes over each", over)
		}
	})
}
