package transporttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/transport"
)

// testLostImmediate loses a connection with an immediate, or a message's, that rides with the last slice of
// its batch or comes behind it. Engines over any rail deliver it once, and never write to the memory after that,
// which is its owner's again; over the connection that comes next, and over another path.
func testLostImmediate(t *testing.T, make Factory) {
	for _, how := range []loss{lostAfter, lostBefore, lostAndClosed} {
		for _, c := range []struct {
			rails, slices int
			sel           transport.Selection
		}{{1, 1, transport.Affinity}, {1, 5, transport.Affinity}, {2, 1, transport.Affinity}, {2, 5, transport.Single}} {
			t.Run(fmt.Sprintf("%s/%d rails, %d slices", how, c.rails, c.slices), func(t *testing.T) {
				loseImmediate(t, make, how, c.rails, c.slices, c.sel, transport.BatchOptions{HasImm: true, Imm: 7})
			})
			for name, n := range map[string]int{"a message that rides": 100, "a message of parts": 3000} {
				t.Run(fmt.Sprintf("%s/%d rails, %d slices, %s", how, c.rails, c.slices, name), func(t *testing.T) {
					loseImmediate(t, make, how, c.rails, c.slices, c.sel, transport.BatchOptions{Message: bytesOf(n)})
				})
			}
		}
	}
}

// A loss says what becomes of the immediate.
type loss string

const (
	lostAfter     loss = "after it was delivered"
	lostBefore    loss = "before it was sent"
	lostAndClosed loss = "after it was delivered, and the memory is closed"
)

func loseImmediate(t *testing.T, factory Factory, how loss, rails, slices int, sel transport.Selection, opt transport.BatchOptions) {
	const size = 4096
	quiet := slog.New(slog.DiscardHandler)
	l := &losses{how: how, rides: len(opt.Message) <= transport.MaxText, over: make(chan struct{})}
	var here, there []transport.Rail
	for i := range rails {
		here = append(here, &losing{Rail: factory(t), l: l, number: i, apart: rails > 1})
		there = append(there, &losing{Rail: factory(t), l: &losses{}, number: i})
	}
	fail := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var dst []byte
	var want []byte
	came, wrong := 0, false
	own := bytes.Repeat([]byte{0xee}, size*slices)
	var remote *transport.Segment
	arrived := func() {
		came++
		wrong = wrong || !bytes.Equal(dst, want)
		copy(dst, own)
		if how == lostAndClosed {
			go func() {
				if err := remote.Close(); err != nil {
					t.Error(err)
				}
				close(l.over)
			}()
		}
	}
	b, err := transport.New(transport.Config{
		Rails: there, Logger: quiet,
		OnImmediate: func(transport.Immediate) { arrived() },
		OnMessage: func(m transport.Message) {
			wrong = wrong || !bytes.Equal(m.Bytes, bytesOf(len(m.Bytes)))
			arrived()
		},
	})
	fail(err)
	defer b.Close()
	up := newChan[struct{}]()
	a, err := transport.New(transport.Config{Rails: here, Logger: quiet, Select: sel, OnPath: func(ev transport.PathEvent) {
		if ev.State == transport.PathUp {
			up <- struct{}{}
		}
	}})
	fail(err)
	defer a.Close()
	if how != lostAndClosed {
		close(l.over)
	}
	src := bytesOf(size * slices)
	fill(src, 1)
	dst, want = bytesOf(len(src)), bytes.Clone(src)
	_, err = a.RegisterLocal("src", src, "cpu:0")
	fail(err)
	remote, err = b.Register("dst", dst, "cpu:0")
	fail(err)
	target, err := a.Open(remote.Info())
	fail(err)
	for range rails {
		select {
		case <-up:
		case <-time.After(patience):
			t.Fatal("not all paths come up")
		}
	}
	var reqs []transport.Request
	for i := range slices {
		reqs = append(reqs, transport.Request{Op: transport.Write, Local: src[i*size : (i+1)*size], Offset: int64(i * size)})
	}
	opt.Timeout = patience
	batch := a.Submit(target, reqs, opt)
	<-batch.Done()
	if !l.done.Load() {
		t.Error("the immediate went another way")
	}
	err = batch.Err()
	if closed := how == lostAndClosed; closed != (errors.Is(err, transport.ErrUnconfirmed) && errors.Is(err, transport.ErrBadKey)) || !closed && err != nil {
		t.Errorf("the batch ended with %v", err)
	}
	fail(b.Close()) // what is on its way has landed
	if came != 1 || wrong {
		t.Errorf("the immediate came %d times, before its bytes: %v", came, wrong)
	}
	if !bytes.Equal(dst, own) {
		t.Error("bytes landed after the immediate")
	}
}

// losses are what several rails lose together: one connection.
type losses struct {
	how   loss
	rides bool // the immediate goes with the last slice; else behind all, when those have ended
	done  atomic.Bool
	over  chan struct{} // closed when the loss may be told
}

// A losing rail loses the connection on which the first immediate goes, and hears of nothing
// that was posted with that.
type losing struct {
	transport.Rail
	l      *losses
	number int
	apart  bool // there are others: it is not connected again
	lost   atomic.Bool
}

func (r *losing) Name() string {
	kind, _, _ := strings.Cut(r.Rail.Name(), "/")
	return fmt.Sprintf("%s/%d", kind, r.number)
}

func (r *losing) Dial(ctx context.Context, addr string) (transport.Endpoint, error) {
	if r.lost.Load() && r.apart {
		<-ctx.Done()
		return nil, fmt.Errorf("%w: %w", transport.ErrUnreachable, ctx.Err())
	}
	ep, err := r.Rail.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &losingEndpoint{Endpoint: ep, r: r}, nil
}

type losingEndpoint struct {
	transport.Endpoint
	r *losing

	mu     sync.Mutex
	broken error
	kept   []*transport.Slice // ended, and not told
}

// Post implements transport.Endpoint: until something is lost the rail's slices are others,
// whose ends are kept.
func (e *losingEndpoint) Post(slices []*transport.Slice) (int, error) {
	e.mu.Lock()
	broken := e.broken
	e.mu.Unlock()
	if broken != nil {
		return 0, broken
	}
	if e.r.l.done.Load() || e.r.l.over == nil {
		return e.Endpoint.Post(slices)
	}
	for i, s := range slices {
		last := s.HasImm && !s.Imm.Part()
		if last && e.r.l.how == lostBefore {
			e.keep(s)
			go e.lose()
			for _, s := range slices[i+1:] {
				e.keep(s)
			}
			return len(slices), nil
		}
		if !last && !e.r.l.rides {
			if n, err := e.Endpoint.Post(slices[i : i+1]); n == 0 || err != nil {
				return i, err
			}
			continue
		}
		on := transport.NewSlice(s.Op, s.Local, s.Key, s.Offset, func(_ *transport.Slice, err error) {
			e.keep(s)
			if last {
				go e.lose()
			}
		})
		on.LocalKey, on.HasImm, on.Imm, on.Behind = s.LocalKey, s.HasImm, s.Imm, s.Behind
		if n, err := e.Endpoint.Post([]*transport.Slice{on}); n == 0 || err != nil {
			return i, err
		}
	}
	return len(slices), nil
}

func (e *losingEndpoint) keep(s *transport.Slice) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kept = append(e.kept, s)
}

// lose ends all that was kept as a lost connection does, once the target is as it is to be.
func (e *losingEndpoint) lose() {
	<-e.r.l.over
	e.r.l.done.Store(true)
	e.r.lost.Store(true)
	e.end(fmt.Errorf("%w: lost by the test", transport.ErrUnreachable))
}

func (e *losingEndpoint) end(err error) {
	e.mu.Lock()
	if e.broken == nil {
		e.broken = err
	}
	kept := e.kept
	e.kept = nil
	e.mu.Unlock()
	transport.CompleteAll(kept, err)
}

func (e *losingEndpoint) Close() error {
	err := e.Endpoint.Close()
	e.end(net.ErrClosed)
	return err
}
