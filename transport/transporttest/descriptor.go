package transporttest

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"kvferry/transport"
)

// This file is the part of the contract that is about memory by its descriptor.

// A part is what a test registers of a memfd: at no page's border, and more than one page.
const (
	partAt  = 5000
	partLen = 30_001
	fileLen = 40_960
)

// A mover moves bytes between memory that each of two engines has by a descriptor.
type mover struct {
	t           *testing.T
	here, there *transport.Engine
	to          *transport.Target
	src         []byte // at here, as it is named
	ours, ends  []byte // both files, as tests see them
	in          *inbox
}

// part is memory of a memfd, opened by open, and the file as the test sees it. The descriptor that was given is closed.
func part(t *testing.T, open func(int, int64, int) ([]byte, func() error, error)) (mem, file []byte) {
	t.Helper()
	f, file := Memfd(t, fileLen)
	mem, release, err := open(int(f.Fd()), partAt, partLen)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := release(); err != nil {
				t.Error(err)
			}
		}
	})
	if len(mem) != partLen {
		t.Fatalf("%d bytes, not %d", len(mem), partLen)
	}
	return mem, file
}

// newMover has two engines, over a rail each.
func newMover(t *testing.T, there, here transport.Rail, open func(int, int64, int) ([]byte, func() error, error)) *mover {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	x := &mover{t: t, in: &inbox{t: t, came: make(map[string]int)}}
	var err error
	if x.there, err = transport.New(transport.Config{Rails: []transport.Rail{there}, Logger: quiet, OnMessage: x.in.take}); err != nil {
		t.Fatal(err)
	}
	if x.here, err = transport.New(transport.Config{Rails: []transport.Rail{here}, Logger: quiet, Name: "here", SliceSize: 7000}); err != nil {
		t.Fatal(err)
	}
	var dst []byte
	x.src, x.ours = part(t, open)
	dst, x.ends = part(t, open)
	remote, err := x.there.Register("dst", dst, "cpu:0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.here.RegisterLocal("src", x.src, "cpu:0"); err != nil {
		t.Fatal(err)
	}
	if x.to, err = x.here.Open(remote.Info()); err != nil {
		t.Fatal(err)
	}
	return x
}

// close closes both engines; the memory is released when the test ends.
func (x *mover) close() {
	for _, e := range []*transport.Engine{x.here, x.there} {
		if err := e.Close(); err != nil {
			x.t.Error(err)
		}
	}
}

// move moves n bytes from one place to another, in one direction, with a message, and looks at both files.
func (x *mover) move(op transport.Op, local, remote, n int) {
	x.t.Helper()
	fill(x.ours, uint64(local+n))
	fill(x.ends, uint64(remote+n+1))
	wants := [2][]byte{bytes.Clone(x.ours), bytes.Clone(x.ends)}
	from, to := wants[0][partAt+local:][:n], wants[1][partAt+remote:][:n]
	if op == transport.Read {
		from, to = to, from
	}
	copy(to, from)
	before := x.in.total()
	b := x.here.Submit(x.to, []transport.Request{{Op: op, Local: x.src[local : local+n], Offset: int64(remote)}}, transport.BatchOptions{Message: []byte("moved"), Timeout: patience})
	<-b.Done()
	if err := b.Err(); err != nil {
		x.t.Fatalf("%v of %d bytes: %v", op, n, err)
	}
	if !bytes.Equal(x.ours, wants[0]) || !bytes.Equal(x.ends, wants[1]) {
		x.t.Errorf("%v of %d bytes from %d to %d: the files have other bytes", op, n, local, remote)
	}
	if got := x.in.total() - before; got != 1 {
		x.t.Errorf("%v of %d bytes: %d messages came", op, n, got)
	}
}

// all moves pieces that devices treat in different ways: those that go with the request, those of several pages, and all.
func (x *mover) all() {
	x.t.Helper()
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		x.move(op, 0, 0, 1)
		x.move(op, 1, 3, 60)
		x.move(op, 4095, 100, 4097)
		x.move(op, partLen-9, 0, 9)
		x.move(op, 0, 0, partLen)
	}
}

// testMemfd: memory of memfds moves as any other does.
func testMemfd(t *testing.T, make Factory) {
	x := newMover(t, make(t), make(t), transport.MapFile)
	defer x.close()
	x.all()
}

// testDMABuf: memory that is not mapped moves too, where the rail says so; or there is no segment of it, and
// the error says why.
func testDMABuf(t *testing.T, make Factory) {
	there, here := make(t), make(t)
	_, able := here.(transport.DMABufRail)
	if _, takes := here.(Exporting); able && !takes {
		t.Logf("NOT TRIED: %s moves memory that is not mapped, and here is no dma-buf that it takes", here.Name())
	} else if able {
		x := newMover(t, there, here, transport.ReserveDMABuf)
		defer x.close()
		x.all()
		return
	}
	defer there.Close()
	e, err := transport.New(transport.Config{Rails: []transport.Rail{here}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	mem, _ := part(t, transport.ReserveDMABuf)
	for name, register := range map[string]func(string, []byte, string) (*transport.Segment, error){"Register": e.Register, "RegisterLocal": e.RegisterLocal} {
		_, err = register("dma", mem, "cpu:0")
		if err == nil || !able && (!errors.Is(err, transport.ErrNoPath) || !strings.Contains(err.Error(), here.Name()+" cannot move memory that is not mapped")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// testBare: a key without memory moves no bytes, and is good for immediates.
func testBare(t *testing.T, make Factory) {
	x := newBench(t, make, 4096)
	defer x.close()
	if _, able := x.b.(transport.DMABufRail); able {
		return // has the memory itself
	}
	whole := transport.Whole(4096)
	var err error
	if x.key, err = x.b.Register(nil, whole.Bare()); err != nil {
		t.Fatal(err)
	}
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		for _, n := range []int{1, 4096} {
			c := newTally(t)
			s := transport.NewSlice(op, x.src[:n], x.key, 0, c.done)
			x.post(c, []*transport.Slice{s})
			c.wait(1)
			if err := c.err(s); !errors.Is(err, transport.ErrBounds) {
				t.Errorf("%v of %d bytes: %v", op, n, err)
			}
		}
	}
	c := newTally(t)
	s := transport.NewSlice(transport.Write, nil, x.key, 0, c.done)
	s.HasImm, s.Imm = true, transport.Imm{Source: 1, Value: 7}
	x.post(c, []*transport.Slice{s})
	c.wait(1)
	if err := c.err(s); err != nil || len(x.imms) != 1 {
		t.Errorf("an immediate: %v, %d came", err, len(x.imms))
	}
	if err := x.b.Deregister(x.key); err != nil {
		t.Error(err)
	}
}
