//go:build cgo && linux

package rdma

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/transport"
)

// The faults of a lab of two hosts: host 2 is the target, host 1 writes to it and
// says on standard output when the lab is to pull a cable or cut the power. Orders
// to the target go over the second NIC, which stays whole.

const (
	labBytes = 4 << 20
	// What lab's test waits for on standard output.
	markLink = "FAULT-LINK"
	markKill = "FAULT-KILL"
)

// An order of host 1 to the target, and its answer.
type order struct {
	Do    string // open, revoke, unpin, sum, slow
	Delay time.Duration
}

type report struct {
	Err     string
	Info    transport.SegmentInfo // open
	Sum     [sha256.Size]byte     // sum
	Imms    []uint64              // sum: since the last time
	Repeats int64
}

func labEngine(t *testing.T, on func(transport.Immediate)) (*transport.Engine, *Rail) {
	t.Helper()
	r, err := New(Config{Name: "rdma/" + os.Getenv("KVFERRY_LAB_RDMA_0"), Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		t.Fatal(err)
	}
	e, err := transport.New(transport.Config{Rails: []transport.Rail{r}, OnImmediate: on, SliceSize: 64 << 10, BackoffMax: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return e, r
}

func labMemory(t *testing.T) []byte {
	t.Helper()
	mem, _, err := transport.MapMemory(labBytes)
	if err != nil {
		t.Fatal(err)
	}
	return mem
}

func TestLabFaults(t *testing.T) {
	switch os.Getenv("KVFERRY_LAB_HOST") {
	case "1":
		labInitiator(t)
	case "2":
		labTarget(t)
	default:
		t.Skip("not a host of a lab: make test-roce runs this")
	}
}

// labTarget carries out orders until their connection ends.
func labTarget(t *testing.T) {
	var mu sync.Mutex
	var imms []uint64
	var slow atomic.Int64
	e, r := labEngine(t, func(m transport.Immediate) {
		if d := slow.Load(); d > 0 {
			<-time.After(time.Duration(d))
		}
		mu.Lock()
		imms = append(imms, m.Value)
		mu.Unlock()
	})
	mem := labMemory(t)
	ln, err := net.Listen("tcp", os.Getenv("KVFERRY_LAB_ADDR_1")+":7000")
	if err != nil {
		t.Fatal(err)
	}
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	in, out := json.NewDecoder(c), json.NewEncoder(c)
	var seg *transport.Segment
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
		var rep report
		var err error
		switch o.Do {
		case "open":
			if seg != nil {
				err = seg.Close() // a region goes with its last key
			}
			if err == nil {
				seg, err = e.Register("kv", mem, "cpu:0")
			}
			if err == nil {
				rep.Info = seg.Info()
			}
		case "revoke":
			<-time.After(o.Delay)
			err = seg.Close()
		case "unpin": // behind the rail's back
			<-time.After(o.Delay)
			r.regs.mu.Lock()
			for _, p := range r.regs.pins {
				err = errors.Join(err, p.mr.close())
				p.mr = gone{p.mr.addr()}
			}
			r.regs.mu.Unlock()
		case "slow":
			slow.Store(int64(o.Delay))
		case "sum":
			rep.Sum = sha256.Sum256(mem)
			mu.Lock()
			rep.Imms, imms = imms, nil
			mu.Unlock()
		}
		if err != nil {
			rep.Err = err.Error()
		}
		if err := out.Encode(rep); err != nil {
			t.Error(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// gone is memory that is not registered any more.
type gone struct{ at uint64 }

func (gone) keys() (uint32, uint32) { return 0, 0 }
func (g gone) addr() uint64         { return g.at }
func (gone) close() error           { return nil }

// labHost is host 1.
type labHost struct {
	*testing.T
	e   *transport.Engine
	r   *Rail
	src *transport.Segment
	c   net.Conn
	in  *json.Decoder
	out *json.Encoder
	imm uint64
}

func (h *labHost) tell(o order) report {
	h.Helper()
	if err := h.out.Encode(o); err != nil {
		h.Fatal(err)
	}
	return h.answer()
}

func (h *labHost) answer() report {
	h.Helper()
	var r report
	if err := h.in.Decode(&r); err != nil {
		h.Fatal(err)
	}
	if r.Err != "" {
		h.Errorf("target: %s", r.Err)
	}
	return r
}

// open is a new segment at the target.
func (h *labHost) open() *transport.Target {
	h.Helper()
	t, err := h.e.Open(h.tell(order{Do: "open"}).Info)
	if err != nil {
		h.Fatal(err)
	}
	return t
}

// write submits a batch of random bytes and an immediate.
func (h *labHost) write(t *transport.Target, timeout time.Duration) (*transport.Batch, chan struct{}) {
	h.imm++
	rng := rand.NewChaCha8([32]byte{byte(h.imm), byte(h.imm >> 8)})
	_, _ = rng.Read(h.src.Bytes())
	done := make(chan struct{})
	b := h.e.Submit(t, []transport.Request{{Op: transport.Write, Local: h.src.Bytes()}}, transport.BatchOptions{
		Timeout: timeout, HasImm: true, Imm: h.imm, OnDone: func(*transport.Batch) { close(done) },
	})
	return b, done
}

// wait returns how a batch ended, which it must by its deadline.
func (h *labHost) wait(b *transport.Batch, done chan struct{}, timeout time.Duration) error {
	h.Helper()
	select {
	case <-done:
	case <-time.After(timeout + 3*time.Second):
		h.Fatalf("no terminal status %v after the deadline", 3*time.Second)
	}
	return b.Err()
}

// whole checks that the target has what was written, and one immediate for it.
func (h *labHost) whole(what string, err error) {
	h.Helper()
	if err != nil {
		h.Errorf("%s: %v", what, err)
		return
	}
	r := h.tell(order{Do: "sum"})
	if r.Sum != sha256.Sum256(h.src.Bytes()) {
		h.Errorf("%s: the target has other bytes", what)
	}
	if len(r.Imms) != 1 || r.Imms[0] != h.imm {
		h.Errorf("%s: immediates %d, sent %d", what, r.Imms, h.imm)
	}
}

// recovers writes once more, without a fault.
func (h *labHost) recovers() {
	h.Helper()
	h.tell(order{Do: "sum"})
	t := h.open()
	defer t.Close()
	b, done := h.write(t, 20*time.Second)
	h.whole("afterwards", h.wait(b, done, 20*time.Second))
}

func (h *labHost) command(name string, args ...string) {
	h.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		h.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

func labInitiator(t *testing.T) {
	h := &labHost{T: t}
	h.e, h.r = labEngine(t, nil)
	var err error
	if h.src, err = h.e.Register("src", labMemory(t), "cpu:0"); err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); ; {
		if h.c, err = net.Dial("tcp", os.Getenv("KVFERRY_LAB_PEER_2_1")+":7000"); err == nil {
			break
		}
		if time.Since(start) > 20*time.Second {
			t.Fatal(err)
		}
		<-time.After(50 * time.Millisecond)
	}
	h.in, h.out = json.NewDecoder(h.c), json.NewEncoder(h.c)
	h.recovers() // nothing has happened yet

	for _, c := range []struct {
		name string
		run  func(*labHost)
	}{
		{"KeyRevoked", labKeyRevoked},
		{"BadAddress", labBadAddress},
		{"Deregistered", labDeregistered},
		{"Loss", labLoss},
		{"ImmediatePressure", labImmediatePressure},
		{"LinkDown", labLinkDown},
		{"DeviceRemoved", labDeviceRemoved},
		{"PeerKilled", labPeerKilled},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			h.T = t
			c.run(h)
			t.Logf("took %v", time.Since(start).Round(10*time.Millisecond))
		})
	}
	h.T = t
	if err := h.e.Close(); err != nil {
		t.Error(err)
	}
}

// labKeyRevoked takes the permission away while a batch is under way.
func labKeyRevoked(h *labHost) {
	t := h.open()
	defer t.Close()
	b, done := h.write(t, 20*time.Second)
	h.tell(order{Do: "revoke"})
	if err := h.wait(b, done, 20*time.Second); err != nil && !errors.Is(err, transport.ErrBadKey) {
		h.Errorf("write to a revoked segment: %v", err)
	}
	b, done = h.write(t, 5*time.Second)
	if err := h.wait(b, done, 5*time.Second); !errors.Is(err, transport.ErrBadKey) {
		h.Errorf("write after it was revoked: %v", err)
	}
	h.recovers()
}

// labBadAddress asks for memory that is not the target's: the device says no.
func labBadAddress(h *labHost) {
	info := h.tell(order{Do: "open"}).Info
	ep, err := h.r.Dial(h.Context(), info.Rails[0].Addr)
	if err != nil {
		h.Fatal(err)
	}
	post := func(mem []byte) error {
		done := make(chan error, 1)
		s := transport.NewSlice(transport.Write, mem, info.Rails[0].Key, 0, func(_ *transport.Slice, err error) { done <- err })
		if n, err := ep.Post([]*transport.Slice{s}); n != 1 {
			return err
		}
		select {
		case err := <-done:
			return err
		case <-time.After(10 * time.Second):
			h.Fatal("no completion")
			return nil
		}
	}
	if err := post(h.src.Bytes()[:8192]); err != nil {
		h.Fatal(err)
	}
	x := ep.(*endpoint)
	x.eps.Lock()
	x.keys[info.Rails[0].Key].memory.addr += 1 << 40
	x.eps.Unlock()
	var ce *CompletionError
	if err := post(h.src.Bytes()[:8192]); !errors.Is(err, transport.ErrBadKey) || !errors.As(err, &ce) || ce.Status != uint32(statusRemoteAccess) {
		h.Errorf("write to a bad address: %v", err)
	}
	if err := post(h.src.Bytes()[:8192]); err == nil {
		h.Error("an endpoint goes on after its queue pair failed")
	}
	if err := ep.Close(); err != nil {
		h.Error(err)
	}
	h.recovers()
}

// labDeregistered takes the memory region away from under a batch.
func labDeregistered(h *labHost) {
	t := h.open()
	defer t.Close()
	b, done := h.write(t, 20*time.Second)
	h.whole("before", h.wait(b, done, 20*time.Second))
	b, done = h.write(t, 20*time.Second)
	h.tell(order{Do: "unpin", Delay: 5 * time.Millisecond})
	if err := h.wait(b, done, 20*time.Second); err != nil && !errors.Is(err, transport.ErrBadKey) {
		h.Errorf("write to a region deregistered in flight: %v", err)
	}
	b, done = h.write(t, 5*time.Second)
	if err := h.wait(b, done, 5*time.Second); !errors.Is(err, transport.ErrBadKey) {
		h.Errorf("write to a deregistered region: %v", err)
	}
	h.tell(order{Do: "revoke"}) // the region's pin goes with its last key
	h.recovers()
}

// labLoss drops a packet in a hundred, both ways.
func labLoss(h *labHost) {
	h.command("tc", "qdisc", "add", "dev", "eth0", "root", "netem", "loss", "1%")
	defer h.command("tc", "qdisc", "del", "dev", "eth0", "root")
	t := h.open()
	defer t.Close()
	h.tell(order{Do: "sum"})
	for i := range 3 {
		b, done := h.write(t, 30*time.Second)
		h.whole(fmt.Sprintf("batch %d", i), h.wait(b, done, 30*time.Second))
	}
}

// labImmediatePressure sends far more immediates than the target has receives, to
// a handler that takes its time.
func labImmediatePressure(h *labHost) {
	h.tell(order{Do: "sum"})
	h.tell(order{Do: "slow", Delay: time.Millisecond})
	t := h.open()
	defer t.Close()
	const n = 1500
	var left sync.WaitGroup
	var failed atomic.Int64
	for i := range uint64(n) {
		left.Add(1)
		h.e.Submit(t, nil, transport.BatchOptions{Timeout: 40 * time.Second, HasImm: true, Imm: i, OnDone: func(b *transport.Batch) {
			if b.Err() != nil {
				failed.Add(1)
			}
			left.Done()
		}})
	}
	left.Wait()
	h.tell(order{Do: "slow"})
	seen := map[uint64]int{}
	for _, v := range h.tell(order{Do: "sum"}).Imms {
		seen[v]++
	}
	if failed.Load() != 0 || len(seen) != n {
		h.Errorf("%d of %d immediates failed, %d arrived", failed.Load(), n, len(seen))
	}
	for v, k := range seen {
		if k != 1 {
			h.Errorf("immediate %d came %d times", v, k)
		}
	}
	h.recovers()
}

// labLinkDown has the lab pull the cable for two seconds, in mid-batch.
func labLinkDown(h *labHost) {
	t := h.open()
	defer t.Close()
	h.tell(order{Do: "sum"})
	b, done := h.write(t, 40*time.Second)
	fmt.Println(markLink)
	for h.r.usableNow() { // until the device has noticed
		<-time.After(20 * time.Millisecond)
	}
	short, over := h.write2(t, 500*time.Millisecond)
	if err := h.wait(short, over, 500*time.Millisecond); !errors.Is(err, transport.ErrDeadline) && err != nil {
		h.Errorf("a batch that ends while the link is down: %v", err)
	}
	if err := h.wait(b, done, 40*time.Second); err != nil {
		h.Errorf("the batch that the fault met: %v", err)
	}
	h.recovers()
}

// write2 submits another batch of the same bytes without an immediate.
func (h *labHost) write2(t *transport.Target, timeout time.Duration) (*transport.Batch, chan struct{}) {
	done := make(chan struct{})
	b := h.e.Submit(t, []transport.Request{{Op: transport.Write, Local: h.src.Bytes()}}, transport.BatchOptions{
		Timeout: timeout, OnDone: func(*transport.Batch) { close(done) },
	})
	return b, done
}

func (r *Rail) usableNow() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.usable() == nil
}

// labDeviceRemoved removes the initiator's device and brings another of its name.
func labDeviceRemoved(h *labHost) {
	t := h.open()
	defer t.Close()
	h.tell(order{Do: "sum"})
	b, done := h.write(t, 40*time.Second)
	h.command("rdma", "link", "delete", "rxe0")
	h.command("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0")
	h.whole("the batch that the fault met", h.wait(b, done, 40*time.Second))
	h.recovers()
}

// labPeerKilled has the lab cut the target's power.
func labPeerKilled(h *labHost) {
	t := h.open()
	defer t.Close()
	b, done := h.write(t, 20*time.Second)
	h.wait(b, done, 20*time.Second)
	fmt.Println(markKill)
	for {
		b, done = h.write(t, 8*time.Second)
		if err := h.wait(b, done, 8*time.Second); err != nil {
			if !errors.Is(err, transport.ErrDeadline) || !errors.Is(err, transport.ErrUnreachable) {
				h.Errorf("write to a host that is dead: %v", err)
			}
			h.Logf("%v", err)
			break
		}
	}
	// Nothing is left that waits for it.
	_ = h.c.Close()
}
