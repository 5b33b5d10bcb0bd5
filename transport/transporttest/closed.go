package transporttest

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync/atomic"
	"testing"

	"kvferry/transport"
)

// This file is the part of the contract that is about the time after Close.

// testAfterClose calls everything that a rail and its endpoints have once more.
func testAfterClose(t *testing.T, make Factory) {
	x := newBench(t, make, 4096)
	defer x.close()
	key, name, addr, secret := whole(t, x.a, x.src), x.a.Name(), x.a.Addr(), x.ep.Secret()
	post := func(ep transport.Endpoint) error {
		t.Helper()
		n, err := ep.Post([]*transport.Slice{transport.NewSlice(transport.Write, x.src, x.key, 0, func(*transport.Slice, error) { t.Error("a slice that was not taken has completed") })})
		if n != 0 {
			t.Errorf("%d slices were taken after Close", n)
		}
		if none, again := ep.Post(nil); none != 0 || !errors.Is(again, err) {
			t.Errorf("no slices: %d, %v, and for one %v", none, again, err)
		}
		return err
	}
	closed := dial(t, x.a, x.b.Addr())
	if err := closed.Close(); err != nil {
		t.Error(err)
	}
	if err := post(closed); !errors.Is(err, net.ErrClosed) || closed.Secret() == (transport.Secret{}) {
		t.Errorf("a closed endpoint: Post %v, secret %x", err, closed.Secret())
	}
	if n, err := x.ep.Post(nil); n != 0 || err != nil {
		t.Errorf("no slices: %d, %v", n, err)
	}
	if err := x.a.Close(); err != nil {
		t.Fatal(err)
	}
	if x.a.Name() != name || x.a.Addr() != addr || x.ep.Secret() != secret {
		t.Errorf("%s at %s has become %s at %s, or the endpoint another", name, addr, x.a.Name(), x.a.Addr())
	}
	if _, err := x.a.Register(x.src, transport.Whole(1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Register: %v", err)
	}
	for _, k := range []transport.Key{key, key ^ 1, 0} {
		if err := x.a.Deregister(k); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Deregister: %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if ep, err := x.a.Dial(ctx, x.b.Addr()); !errors.Is(err, net.ErrClosed) || ep != nil {
		t.Errorf("Dial: %v, %v", ep, err)
	}
	if err := post(x.ep); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Post: %v", err)
	}
	if err := errors.Join(x.ep.Close(), closed.Close(), x.a.Close()); err != nil {
		t.Errorf("closed again: %v", err)
	}
	x.a.Fence(secret)
	x.a.Fence(transport.NewSecret())
	if r, ok := x.a.(transport.Router); ok {
		r.Route(x.b.Addr())
	}
	// The peer is as it was.
	if err := x.b.Deregister(x.key); err != nil {
		t.Error(err)
	}
}

// testNoImmediateAfter takes memory and then a rail away while immediates come, one after
// the other and in their order: none comes with a key that is deregistered, or when Close
// has returned, nor is one being handled.
func testNoImmediateAfter(t *testing.T, factory Factory) {
	for _, end := range []string{"Deregister", "Close"} {
		var gone, busy atomic.Bool
		var next uint64 // a race if two are handled at once
		handled := make(chan struct{}, 1<<16)
		b := factory(t)
		b.HandleImmediates(func(_ transport.Key, m transport.Imm) error {
			if busy.Swap(true) || m.Seq != next {
				t.Errorf("immediate %d comes where %d should, or beside it", m.Seq, next)
			}
			next++
			defer busy.Store(false)
			handled <- struct{}{}
			for range 100 {
				runtime.Gosched()
			}
			if gone.Load() {
				t.Errorf("an immediate is handled after %s", end)
			}
			return nil
		})
		a := factory(t)
		a.HandleImmediates(func(transport.Key, transport.Imm) error { return nil })
		key := whole(t, b, bytesOf(4096))
		ep := dial(t, a, b.Addr())
		c := newTally(t)
		slices := make([]*transport.Slice, 500)
		for i := range slices {
			slices[i] = transport.NewSlice(transport.Write, nil, key, 0, c.done)
			slices[i].HasImm, slices[i].Imm = true, transport.Imm{Source: 1, Seq: uint64(i)}
		}
		n, err := ep.Post(slices)
		if err != nil {
			t.Fatal(err)
		}
		<-handled
		if end == "Close" {
			err = b.Close()
		} else {
			err = b.Deregister(key)
		}
		gone.Store(true)
		if err != nil {
			t.Error(err)
		}
		c.wait(n)
		for _, r := range []transport.Rail{a, b} {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
