package transport_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// dma is a segment of memory that is not mapped, and its bytes as a device has them.
func dma(t *testing.T, e *transport.Engine, name string, n int) (*transport.Segment, []byte) {
	t.Helper()
	f, bytes := transporttest.Memfd(t, n)
	mem, release, err := transport.ReserveDMABuf(int(f.Fd()), 0, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = release() })
	s, err := e.Register(name, mem, "cuda:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, bytes
}

// TestUnmapped: of several rails only those move memory that is not mapped which can, whatever the selection, from it
// and to it, also in one batch with memory that others could move; and when they are lost it waits for them. What was
// moved is announced over any.
func TestUnmapped(t *testing.T) {
	for _, sel := range transport.Selections {
		t.Run(string(sel), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := transporttest.NewNetwork()
				var here [3]*transporttest.Rail
				rails := func(at string) (rs []transport.Rail) {
					for i := range here {
						r := n.Rail(fmt.Sprint(at, i))
						if at == "a" {
							here[i] = r
						}
						if i == 1 {
							rs = append(rs, transporttest.Device{Rail: r})
						} else {
							rs = append(rs, r)
						}
					}
					return rs
				}
				quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
				came := make(chan transport.Message, 100)
				a := engine(t, transport.Config{Rails: rails("a"), Clock: clock.Std(), Logger: quiet, Select: sel, Name: "a"})
				b := engine(t, transport.Config{Rails: rails("b"), Clock: clock.Std(), Logger: quiet, OnMessage: func(m transport.Message) { came <- m }})
				const size = 256 << 10
				hostA, hostB := register(t, a, "host", size), register(t, b, "host", size)
				gpuA, deviceA := dma(t, a, "gpu", size)
				gpuB, deviceB := dma(t, b, "gpu", size)
				open := func(s *transport.Segment) *transport.Target {
					target, err := a.Open(s.Info())
					if err != nil {
						t.Fatal(err)
					}
					return target
				}
				toHost, toGPU := open(hostB), open(gpuB)
				synctest.Wait()
				submit := func(reqs ...transport.Request) *transport.Batch {
					return a.Submit(toHost, reqs, transport.BatchOptions{Timeout: 20 * time.Second, Message: []byte("moved")})
				}
				moved := func(what string, from, to []byte, r transport.Request) {
					t.Helper()
					copy(from, bytes.Repeat([]byte{from[0] + 3}, size))
					before := a.Rails()
					if err := wait(t, submit(r)); err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					if !bytes.Equal(from, to) {
						t.Errorf("%s: other bytes", what)
					}
					for i, s := range a.Rails() {
						if got := s.Write.Bytes + s.Read.Bytes - before[i].Write.Bytes - before[i].Read.Bytes; got != map[bool]int64{true: size}[i == 1] {
							t.Errorf("%s: rail %d moved %d bytes", what, i, got)
						}
					}
					<-came
				}
				for range 3 {
					moved("gpu to gpu", deviceA, deviceB, transport.Request{Local: gpuA.Bytes(), Target: toGPU})
					moved("host to gpu", hostA.Bytes(), deviceB, transport.Request{Local: hostA.Bytes(), Target: toGPU})
					moved("gpu to host", deviceA, hostB.Bytes(), transport.Request{Local: gpuA.Bytes()})
					moved("gpu from gpu", deviceB, deviceA, transport.Request{Op: transport.Read, Local: gpuA.Bytes(), Target: toGPU})
					moved("host from gpu", deviceB, hostA.Bytes(), transport.Request{Op: transport.Read, Local: hostA.Bytes(), Target: toGPU})
				}
				copy(deviceA, bytes.Repeat([]byte{'g'}, size))
				copy(hostA.Bytes(), bytes.Repeat([]byte{'h'}, size))
				if err := wait(t, submit(transport.Request{Local: gpuA.Bytes(), Target: toGPU}, transport.Request{Local: hostA.Bytes()})); err != nil {
					t.Fatal(err)
				}
				if <-came; !bytes.Equal(deviceA, deviceB) || !bytes.Equal(hostA.Bytes(), hostB.Bytes()) {
					t.Error("a batch of both: other bytes")
				}

				here[1].BlackHole(true)
				here[1].Sever()
				<-time.After(time.Second)
				deviceA[0] = 'x'
				late := []*transport.Batch{submit(transport.Request{Local: gpuA.Bytes()}), submit(transport.Request{Local: hostA.Bytes(), Target: toGPU})}
				if err := wait(t, submit(transport.Request{Local: hostA.Bytes(), Offset: 0})); err != nil {
					t.Errorf("what the other rails can move: %v", err)
				}
				<-time.After(5 * time.Second)
				for _, b := range late {
					if b.Status() != transport.InFlight {
						t.Errorf("with no rail that can: %v", b.Err())
					}
				}
				here[1].BlackHole(false)
				for _, b := range late {
					if err := wait(t, b); err != nil {
						t.Error(err)
					}
				}
				if hostB.Bytes()[0] != 'x' || deviceB[0] != 'h' {
					t.Error("the late ones moved other bytes")
				}
			})
		})
	}
}

// TestUnmappedNowhere: without a rail that can, memory that is not mapped is not registered; and where it is, here or there, and
// none goes from there to here, it is an error at once.
func TestUnmappedNowhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := transporttest.NewNetwork()
		quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
		plain := engine(t, transport.Config{Rails: []transport.Rail{n.Rail("plain")}, Clock: clock.Std(), Logger: quiet})
		able := engine(t, transport.Config{Clock: clock.Std(), Logger: quiet, Rails: []transport.Rail{
			neighbour{n.Rail("tcp"), "tcp/0", transport.OnLink}, transporttest.Device{Rail: n.Rail("able")},
		}})
		far := engine(t, transport.Config{Clock: clock.Std(), Logger: quiet, Rails: []transport.Rail{neighbour{n.Rail("far"), "tcp/0", transport.OnLink}}})
		gpu, _ := dma(t, able, "gpu", 4096)
		if _, err := plain.Register("gpu", gpu.Bytes(), "cuda:0"); !errors.Is(err, transport.ErrNoPath) || !strings.Contains(err.Error(), "mem/plain cannot move memory that is not mapped") {
			t.Errorf("registered: %v", err)
		}
		if _, err := far.Open(gpu.Info()); !errors.Is(err, transport.ErrNoPath) || !strings.Contains(err.Error(), "rails here are of kind tcp, those there that may be used for its memory of kind mem") {
			t.Errorf("opened: %v", err)
		}
		host := register(t, far, "host", 4096)
		target, err := able.Open(host.Info())
		if err != nil {
			t.Fatal(err)
		}
		b := able.Submit(target, []transport.Request{{Local: gpu.Bytes()}}, transport.BatchOptions{})
		if err := b.Err(); !errors.Is(err, transport.ErrNoPath) || !strings.Contains(err.Error(), `"gpu" here and "host" there`) {
			t.Errorf("submitted: %v", err)
		}
		w, err := gpu.Window("window", transport.Write, []transport.Range{{Offset: 0, Length: 64}})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range w.Info().Rails {
			if (r.Rank < 0) != (r.Rail == "tcp/0") || r.Key == 0 {
				t.Errorf("the window's peers are told %+v", r)
			}
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestUnmappedWaits: while it is tried which of the peer's rails a path goes to, memory that is not mapped stays with
// those that can move it.
func TestUnmappedWaits(t *testing.T) {
	for _, sel := range []transport.Selection{transport.Static, transport.RoundRobin, transport.Single} {
		synctest.Test(t, func(t *testing.T) {
			n := transporttest.NewNetwork()
			quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
			able, plain := n.Rail("a0"), n.Rail("a1")
			a := engine(t, transport.Config{Clock: clock.Std(), Logger: quiet, Select: sel, Rails: []transport.Rail{transporttest.Device{Rail: able}, plain}})
			b := engine(t, transport.Config{Clock: clock.Std(), Logger: quiet, Rails: []transport.Rail{transporttest.Device{Rail: n.Rail("b0")}, n.Rail("b1"), n.Rail("b2")}})
			src, ours := dma(t, a, "src", 4096)
			dst, theirs := dma(t, b, "dst", 4096)
			ours[7] = 7
			n.BlackHole("b0", true)
			n.Part("a0", "b1")
			n.Part("a0", "b2")
			target, err := a.Open(dst.Info())
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			batch := a.Submit(target, []transport.Request{{Local: src.Bytes()}}, transport.BatchOptions{Timeout: time.Minute})
			<-time.After(10 * time.Second) // many attempts
			if able.Dials() < 10 || plain.Carried() > 0 || batch.Status() != transport.InFlight {
				t.Errorf("%s: %d attempts, the rail that cannot carried %d slices, the batch is %v", sel, able.Dials(), plain.Carried(), batch.Status())
			}
			n.BlackHole("b0", false)
			if err := wait(t, batch); err != nil || theirs[7] != 7 {
				t.Errorf("%s: %v", sel, err)
			}
		})
	}
}
