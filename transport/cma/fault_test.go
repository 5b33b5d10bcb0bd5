package cma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/transport"
	"kvferry/transport/socket"
	"kvferry/transport/transporttest"
)

func TestMain(m *testing.M) {
	switch transporttest.Role() {
	case "":
		os.Exit(m.Run())
	case "target":
		beTarget()
	case "initiator":
		beInitiator()
	}
}

// patience bounds every wait for something that must happen. It is no measure of
// speed: the machine may be busy.
const patience = time.Minute

// killLen is what is moved over and over while a process is killed.
const killLen = 8 << 20

// beTarget lends memory until it is killed.
func beTarget() {
	transporttest.Lend(transporttest.Must(New(Config{Name: "cma/0"})), make([]byte, killLen))
}

// beInitiator writes and reads until it is killed.
func beInitiator() {
	var addr string
	var key uint64
	transporttest.Must(fmt.Fscan(os.Stdin, &addr, &key))
	r := transporttest.Must(New(Config{Name: "cma/0"}))
	ep := transporttest.Must(r.Dial(context.Background(), addr))
	local := bytes.Repeat([]byte{1}, killLen)
	done := make(chan error)
	for i := 0; ; i++ {
		s := transport.NewSlice(transport.Op(i%2), local, transport.Key(key), 0, func(_ *transport.Slice, err error) { done <- err })
		transporttest.Must(ep.Post([]*transport.Slice{s}))
		if err := <-done; err != nil {
			os.Exit(1)
		}
		if i == 1 {
			fmt.Println("busy")
		}
	}
}

// TestKilledTarget: what is on its way from a process that is killed fails at once.
func TestKilledTarget(t *testing.T) {
	available(t)
	child, addr, key := transporttest.StartTarget(t)
	r := newRail(t)
	defer r.Close()
	for _, op := range []transport.Op{transport.Read, transport.Write} {
		ep, err := r.Dial(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		const n = 7 // 56 MiB, which is a queue's length
		ended := make(chan error, n)
		var slices []*transport.Slice
		for range n {
			slices = append(slices, transport.NewSlice(op, make([]byte, killLen), key, 0, func(_ *transport.Slice, err error) { ended <- err }))
		}
		if k, err := ep.Post(slices); k != n || err != nil {
			t.Fatalf("posted %d: %v", k, err)
		}
		if op == transport.Write {
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		failed := 0
		for range n {
			select {
			case err := <-ended:
				if err != nil {
					failed++
				}
				if err != nil && !errors.Is(err, transport.ErrUnreachable) {
					t.Errorf("%v: %v", op, err)
				}
			case <-time.After(patience):
				t.Fatalf("%v: a slice never ended", op)
			}
		}
		if op == transport.Read && failed > 0 {
			t.Errorf("%d slices failed before anybody was killed", failed)
		}
		if op == transport.Read {
			continue
		}
		if _, err := r.Dial(t.Context(), addr); !errors.Is(err, transport.ErrUnreachable) {
			t.Errorf("dial of the killed process: %v", err)
		}
	}
}

// TestKilledInitiator: a process that is killed with memory on loan leaves nothing
// behind, and nothing of it lands any more.
func TestKilledInitiator(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	r := newRail(t)
	defer r.Close()
	r.HandleImmediates(func(transport.Key, transport.Imm) error {
		t.Error("an immediate nobody sent")
		return nil
	})
	mem := make([]byte, killLen)
	key, err := r.Register(mem, transport.Whole(killLen))
	if err != nil {
		t.Fatal(err)
	}
	child, in, out := transporttest.StartRole(t, "initiator")
	if _, err := fmt.Fprintln(in, r.Addr(), uint64(key)); err != nil {
		t.Fatal(err)
	}
	if line, err := out.ReadString('\n'); line != "busy\n" {
		t.Fatal(line, err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := r.Deregister(key); err != nil {
		t.Fatal(err)
	}
	clear(mem)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(mem, make([]byte, killLen)) {
		t.Error("bytes landed after Deregister")
	}
}

// A gate stops a rail before it copies, as many times as it is shut.
type gate struct {
	shut    atomic.Int32
	reached chan struct{}
	open    chan struct{}
}

func newGate() *gate { return &gate{reached: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) rail(t *testing.T) *Rail {
	t.Helper()
	r, err := listen(Config{Name: "cma/0"}, func(c socket.Conn) (socket.Memory, error) {
		m, err := attach(c)
		return gated{m, g}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

type gated struct {
	socket.Memory
	g *gate
}

func (m gated) Copy(dst [][]byte, at []uint64) error {
	if m.g.shut.Load() > 0 {
		m.g.shut.Add(-1)
		m.g.reached <- struct{}{}
		<-m.g.open
	}
	return m.Memory.Copy(dst, at)
}

// TestTakenBack: a target does not wait for an initiator that has stalled in the middle
// of a READ, and what that copies when it goes on does not count.
func TestTakenBack(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	g := newGate()
	a, b := g.rail(t), newRail(t)
	defer a.Close()
	defer b.Close()
	mem := bytes.Repeat([]byte{1}, 1<<20)
	key, err := b.Register(mem, transport.Whole(int64(len(mem))))
	if err != nil {
		t.Fatal(err)
	}
	ep, err := a.Dial(t.Context(), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	g.shut.Store(1)
	ended := make(chan error, 1)
	local := make([]byte, len(mem))
	s := transport.NewSlice(transport.Read, local, key, 0, func(_ *transport.Slice, err error) { ended <- err })
	if _, err := ep.Post([]*transport.Slice{s}); err != nil {
		t.Fatal(err)
	}
	<-g.reached
	if err := b.Deregister(key); err != nil { // returns, although nobody opens the gate
		t.Fatal(err)
	}
	clear(mem) // somebody else's now
	g.open <- struct{}{}
	select {
	case err := <-ended:
		if !errors.Is(err, transport.ErrUnreachable) {
			t.Errorf("the read ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the read never ended")
	}
}

// TestClosedWhileCopied: an endpoint that is closed has its memory back although the
// target is about to copy it, and what that then copies is never announced.
func TestClosedWhileCopied(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	for _, apart := range []bool{false, true} { // bytes and immediate in one slice, or two
		g := newGate()
		a, b := newRail(t), g.rail(t)
		b.HandleImmediates(func(transport.Key, transport.Imm) error {
			t.Error("bytes that were taken back are announced")
			return nil
		})
		key, err := b.Register(make([]byte, 1<<20), transport.Whole(1<<20))
		if err != nil {
			t.Fatal(err)
		}
		ep, err := a.Dial(t.Context(), b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		g.shut.Store(2)
		ended := make(chan error, 3)
		done := func(_ *transport.Slice, err error) { ended <- err }
		local := bytes.Repeat([]byte{1}, 1<<16)
		slices := []*transport.Slice{
			transport.NewSlice(transport.Write, local, key, 0, done),
			transport.NewSlice(transport.Write, local, key, 0, done),
		}
		if apart {
			slices = append(slices, transport.NewSlice(transport.Write, nil, key, 0, done))
		}
		last := slices[len(slices)-1]
		last.HasImm, last.Imm = true, transport.Imm{Source: 1, Seq: 1}
		// The first slice keeps the target while the others come: it has all there is
		// of them in its buffer when it goes on.
		if n, err := ep.Post(slices[:1]); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		<-g.reached
		if n, err := ep.Post(slices[1:]); n != len(slices)-1 || err != nil {
			t.Fatal(n, err)
		}
		if _, err := a.Dial(t.Context(), a.Addr()); err != nil { // they are sent meanwhile
			t.Fatal(err)
		}
		g.open <- struct{}{}
		<-g.reached
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			ep.Close()
		}()
		select {
		case <-closed:
		case <-time.After(patience):
			t.Fatal("Close waits for the peer")
		}
		for range slices {
			if err := <-ended; err != nil && !errors.Is(err, net.ErrClosed) {
				t.Errorf("ended with %v", err)
			}
		}
		clear(local)
		g.open <- struct{}{}
		if err := errors.Join(b.Close(), a.Close()); err != nil {
			t.Error(err)
		}
	}
}
