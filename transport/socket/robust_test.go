package socket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// A rawPeer speaks to a target's rail byte by byte.
type rawPeer struct {
	t    *testing.T
	rail *Rail
	log  *clocktest.Log
	mem  []byte
	key  transport.Key
	c    net.Conn
}

func newRawPeer(t *testing.T) *rawPeer {
	t.Helper()
	p := &rawPeer{t: t, log: &clocktest.Log{}, mem: make([]byte, 1<<16)}
	var err error
	p.rail = newRailWith(t, "127.0.0.1:0", Config{Logger: slog.New(slog.NewTextHandler(p.log, nil))})
	p.rail.HandleImmediates(func(transport.Key, transport.Imm) error {
		t.Error("an immediate nobody sent")
		return nil
	})
	if p.key, err = p.rail.Register(p.mem, transport.Whole(int64(len(p.mem)))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.c != nil {
			p.c.Close()
		}
		if err := p.rail.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// nameOf makes up names for connections that nobody will fence.
func nameOf(i int) transport.Name { return transport.Name{1, byte(i), byte(i >> 8)} }

// connect dials, and says hello if it is given.
func (p *rawPeer) connect(h *hello) {
	p.t.Helper()
	c, err := net.Dial("tcp", p.rail.Addr())
	if err != nil {
		p.t.Fatal(err)
	}
	p.c = c
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		p.t.Fatal(err)
	}
	if h != nil {
		p.send(h.append(nil))
		var w [welcomeLen]byte
		if _, err := io.ReadFull(c, w[:]); err != nil {
			p.t.Fatalf("no welcome: %v", err)
		}
	}
}

func (p *rawPeer) send(b []byte) {
	p.t.Helper()
	if _, err := p.c.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// end reads what the target answers until it closes.
func (p *rawPeer) end() []byte {
	p.t.Helper()
	b, err := io.ReadAll(p.c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Fatal("the target keeps the connection")
	}
	return b
}

// quiet waits until the target has done with every connection.
func (p *rawPeer) quiet() {
	p.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		p.rail.mu.Lock()
		n := len(p.rail.conns)
		p.rail.mu.Unlock()
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%d connections are still served", n)
		}
		runtime.Gosched()
	}
}

func frameBytesOf(r request, descs []desc, payload []byte) []byte {
	b := r.append(nil)
	for _, d := range descs {
		b = d.append(b)
	}
	return append(b, payload...)
}

// Whatever a peer sends, memory outside the ranges it names with a valid key
// stays as it was, and what is no frame ends the connection with a reset.
func TestTargetRefusesNoise(t *testing.T) {
	const n = 1000
	payload := bytes.Repeat([]byte{0xff}, n)
	for name, f := range map[string]func(p *rawPeer) []byte{
		"http": func(p *rawPeer) []byte { return []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") },
		"magic": func(p *rawPeer) []byte {
			b := frameBytesOf(request{count: 1, seq: 1, bytes: n}, []desc{{p.key, 0, n}}, payload)
			b[0] ^= 1
			return b
		},
		"op": func(p *rawPeer) []byte {
			return frameBytesOf(request{op: 9, count: 1, seq: 1, bytes: n}, []desc{{p.key, 0, n}}, payload)
		},
		"sequence": func(p *rawPeer) []byte {
			return frameBytesOf(request{count: 1, seq: 2, bytes: n}, []desc{{p.key, 0, n}}, payload)
		},
		"no descriptors": func(p *rawPeer) []byte { return frameBytesOf(request{seq: 1}, nil, nil) },
		"too many": func(p *rawPeer) []byte {
			return frameBytesOf(request{count: maxCount + 1, seq: 1, bytes: n}, []desc{{p.key, 0, n}}, payload)
		},
		"length above the sum": func(p *rawPeer) []byte {
			return frameBytesOf(request{count: 1, seq: 1, bytes: n + 1}, []desc{{p.key, 0, n}}, payload)
		},
		"length below the sum": func(p *rawPeer) []byte {
			return frameBytesOf(request{count: 1, seq: 1, bytes: n - 1}, []desc{{p.key, 0, n}}, payload)
		},
		"huge slice": func(p *rawPeer) []byte {
			return frameBytesOf(request{count: 1, seq: 1, bytes: n}, []desc{{p.key, 0, 1 << 63}}, payload)
		},
		"immediate of a read": func(p *rawPeer) []byte {
			return frameBytesOf(request{op: transport.Read, hasImm: true, count: 1, seq: 1, bytes: n}, []desc{{p.key, 0, n}}, payload)
		},
		"a long poke":         func(*rawPeer) []byte { return (&request{op: opPoke, bytes: mostPoke + 1}).append(nil) },
		"a poke with a count": func(*rawPeer) []byte { return (&request{op: opPoke, count: 1}).append(nil) },
		"noise":               func(p *rawPeer) []byte { return bytes.Repeat([]byte("noise"), 10_000) },
	} {
		t.Run(name, func(t *testing.T) {
			transporttest.CheckLeaks(t)
			p := newRawPeer(t)
			h := &hello{name: transport.Name{1}}
			if name == "http" {
				h = nil
			}
			p.connect(h)
			p.send(f(p))
			answer := p.end()
			if h != nil {
				r, err := parseResponse(append(answer, make([]byte, responseLen)...))
				if err != nil || r.typ != reset {
					t.Errorf("answer % x, %v; want a reset", answer, err)
				}
			} else if len(answer) != 0 {
				t.Errorf("answered %q", answer)
			}
			if err := p.rail.Close(); err != nil { // its log is complete
				t.Error(err)
			}
			if !strings.Contains(p.log.String(), "connection dropped") {
				t.Errorf("not logged: %q", p.log.String())
			}
			if !bytes.Equal(p.mem, make([]byte, len(p.mem))) {
				t.Error("memory was touched")
			}
		})
	}
}

// A connection cut at any place of a frame harms nothing else, and the rail
// serves on. Who watches hears of what has changed.
func TestCutMidFrame(t *testing.T) {
	transporttest.CheckLeaks(t)
	p := newRawPeer(t)
	told := make([]bool, len(p.mem))
	var err error
	if p.key, err = p.rail.Register(p.mem, transport.Whole(int64(len(p.mem))).Watched(func(offset, n int64) {
		for i := range n {
			told[offset+i] = true
		}
	})); err != nil {
		t.Fatal(err)
	}
	frame := frameBytesOf(request{count: 2, seq: 1, bytes: 2000}, []desc{{p.key, 100, 1000}, {p.key, 5000, 1000}}, bytes.Repeat([]byte{7}, 2000))
	for i, at := range []int{0, 1, requestLen - 1, requestLen, requestLen + descLen + 3, len(frame) - 1500, len(frame) - 1} {
		clear(p.mem)
		clear(told)
		p.connect(&hello{name: nameOf(i)})
		p.send(frame[:at])
		if err := p.c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if answer := p.end(); len(answer) != 0 {
			t.Errorf("cut at %d: answered % x", at, answer)
		}
		p.c.Close()
		p.quiet()
		for j, b := range p.mem {
			inside := j >= 100 && j < 1100 || j >= 5000 && j < 6000
			if b != 0 && !inside {
				t.Fatalf("cut at %d: byte %d was touched", at, j)
			}
			if b != 0 && !told[j] {
				t.Fatalf("cut at %d: nobody heard of byte %d", at, j)
			}
		}
	}
	p.connect(&hello{name: transport.Name{99}})
	p.send(frame)
	var b [responseLen]byte
	if _, err := io.ReadFull(p.c, b[:]); err != nil {
		t.Fatal(err)
	}
	if r, err := parseResponse(b[:]); err != nil || r.typ != ack || r.seq != 1 {
		t.Errorf("after all that: %+v, %v", r, err)
	}
}

// Deregister cuts off a peer that stalls within a frame into the region.
func TestDeregisterStalled(t *testing.T) {
	transporttest.CheckLeaks(t)
	p := newRawPeer(t)
	p.connect(&hello{name: transport.Name{1}})
	frame := frameBytesOf(request{count: 1, seq: 1, bytes: 1 << 16}, []desc{{p.key, 0, 1 << 16}}, []byte{1})
	p.send(frame)
	g := p.rail.regions.get(p.key)
	for { // until the target is in the frame
		g.mu.Lock()
		n := len(g.users)
		g.mu.Unlock()
		if n > 0 {
			break
		}
		runtime.Gosched()
	}
	if err := p.rail.Deregister(p.key); err != nil {
		t.Fatal(err)
	}
	clear(p.mem)
	p.end()
}

// A new connection that names a lost one is welcome only after that one's
// bytes cannot land any more.
func TestFence(t *testing.T) {
	transporttest.CheckLeaks(t)
	p := newRawPeer(t)
	first := transport.NewSecret()
	p.connect(&hello{name: first.Name()})
	old := p.c
	defer old.Close()
	p.send(frameBytesOf(request{count: 1, seq: 1, bytes: 1000}, []desc{{p.key, 0, 1000}}, bytes.Repeat([]byte{1}, 500)))
	p.connect(&hello{name: transport.Name{2}, lost: []transport.Secret{first, {77}}})
	clear(p.mem)
	// The old connection's other half goes nowhere, even if it gets there.
	_, _ = old.Write(bytes.Repeat([]byte{1}, 500))
	p.send(frameBytesOf(request{op: transport.Read, count: 1, seq: 1, bytes: 1000}, []desc{{p.key, 0, 1000}}, nil))
	answer := make([]byte, responseLen+1000)
	if _, err := io.ReadFull(p.c, answer); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(answer[responseLen:], make([]byte, 1000)) {
		t.Error("bytes of the lost connection were applied after the welcome")
	}
	if _, err := io.ReadAll(old); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the lost connection lives on")
	}
}

// A lying target cannot make the initiator write outside its slices or hang.
func TestInitiatorRefusesNoise(t *testing.T) {
	for name, answer := range map[string][]byte{
		"noise":         bytes.Repeat([]byte("noise"), 100),
		"data unasked":  (&response{typ: data, seq: 7, bytes: 10}).append(nil),
		"too much data": append((&response{typ: data, seq: 1, bytes: 5000}).append(nil), make([]byte, 5000)...),
		"nak of none":   (&response{typ: nak, seq: 3, index: 2, code: codeBadKey}).append(nil),
		"nak beyond":    (&response{typ: nak, seq: 1, index: 2, code: codeBadKey}).append(nil),
		"reset":         (&response{typ: reset, code: codeProtocol}).append(nil),
	} {
		t.Run(name, func(t *testing.T) {
			transporttest.CheckLeaks(t)
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			var liar sync.WaitGroup
			defer liar.Wait()
			liar.Go(func() {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				_, _ = io.ReadFull(c, make([]byte, helloLen))
				_, _ = c.Write(append([]byte(helloMagic), make([]byte, 8)...))
				_, _ = io.ReadFull(c, make([]byte, requestLen+descLen))
				_, _ = c.Write(answer)
				_, _ = io.Copy(io.Discard, c) // until the initiator gives up
			})
			ini := newEngine(t, newRail(t, "127.0.0.1:0"))
			defer ini.Close()
			mem := make([]byte, 3000)
			seg, err := ini.Register("local", mem, "cpu:0")
			if err != nil {
				t.Fatal(err)
			}
			tgt, err := ini.Open(transport.SegmentInfo{
				Name: "liar", Length: 1000,
				Rails: []transport.RailAddr{{Rail: "tcp/lo", Addr: ln.Addr().String(), Key: 1}},
			})
			if err != nil {
				t.Fatal(err)
			}
			b := ini.Submit(tgt, []transport.Request{{Op: transport.Read, Local: seg.Bytes()[1000:2000]}}, transport.BatchOptions{Timeout: patience, Tag: "cmpl-3"})
			<-b.Done()
			if !errors.Is(b.Err(), transport.ErrProtocol) || !strings.Contains(b.Err().Error(), "cmpl-3") {
				t.Errorf("got %v", b.Err())
			}
			if !bytes.Equal(mem[:1000], make([]byte, 1000)) || !bytes.Equal(mem[2000:], make([]byte, 1000)) {
				t.Error("memory around the slice was touched")
			}
		})
	}
}

// A peer that accepts and says nothing costs its batch the deadline, not more.
func TestBlackHole(t *testing.T) {
	transporttest.CheckLeaks(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ini := newEngine(t, newRail(t, "127.0.0.1:0"))
	defer ini.Close()
	seg, err := ini.Register("local", make([]byte, 1000), "cpu:0")
	if err != nil {
		t.Fatal(err)
	}
	tgt, err := ini.Open(transport.SegmentInfo{Name: "hole", Length: 1000, Rails: []transport.RailAddr{{Rail: "tcp/lo", Addr: ln.Addr().String(), Key: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	b := ini.Submit(tgt, []transport.Request{{Local: seg.Bytes()}}, transport.BatchOptions{Timeout: 50 * time.Millisecond})
	<-b.Done()
	if d := time.Since(start); !errors.Is(b.Err(), context.DeadlineExceeded) || d < 50*time.Millisecond || d > patience {
		t.Errorf("%v after %v", b.Err(), d)
	}
}

// A batch survives the restart of its target's rail at the same address, if
// the segment has the same key there; a new key is a refusal, not a hang.
func TestPeerRestart(t *testing.T) {
	transporttest.CheckLeaks(t)
	ini := newEngine(t, newRail(t, "127.0.0.1:0"))
	defer ini.Close()
	seg, err := ini.Register("local", bytes.Repeat([]byte{5}, 1<<20), "cpu:0")
	if err != nil {
		t.Fatal(err)
	}
	first := newRail(t, "127.0.0.1:0")
	mem := make([]byte, 1<<20)
	key, err := first.Register(mem, transport.Whole(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	addr := first.Addr()
	open := func(key transport.Key) *transport.Target {
		tgt, err := ini.Open(transport.SegmentInfo{Name: "remote", Length: 1 << 20, Rails: []transport.RailAddr{{Rail: "tcp/lo", Addr: addr, Key: key}}})
		if err != nil {
			t.Fatal(err)
		}
		return tgt
	}
	tgt := open(key)
	write := func(tgt *transport.Target) *transport.Batch {
		return ini.Submit(tgt, []transport.Request{{Local: seg.Bytes()}}, transport.BatchOptions{Timeout: patience})
	}
	b := write(tgt)
	<-b.Done()
	if b.Err() != nil {
		t.Fatal(b.Err())
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	b = write(tgt) // nobody is there
	again := newRail(t, addr)
	defer again.Close()
	<-b.Done()
	if !errors.Is(b.Err(), transport.ErrBadKey) {
		t.Errorf("old key at the restarted peer: %v", b.Err())
	}
	if key, err = again.Register(mem, transport.Whole(1<<20)); err != nil {
		t.Fatal(err)
	}
	clear(mem)
	b = write(open(key))
	<-b.Done()
	if b.Err() != nil || !bytes.Equal(mem, seg.Bytes()) {
		t.Errorf("new key: %v", b.Err())
	}
}

// 100 batches at once in both directions while connections are cut; then the
// engines are closed with batches in flight.
func TestConcurrentBatches(t *testing.T) {
	transporttest.CheckLeaks(t)
	const n, size = 100, 32 << 10
	var mu sync.Mutex
	imms := make(map[uint64]int)
	initiator := newRail(t, "127.0.0.1:0")
	ini := newEngine(t, initiator)
	owner, err := transport.New(transport.Config{Rails: []transport.Rail{newRail(t, "127.0.0.1:0")}, OnImmediate: func(i transport.Immediate) {
		mu.Lock()
		defer mu.Unlock()
		imms[i.Value]++
	}})
	if err != nil {
		t.Fatal(err)
	}
	local, err := ini.Register("local", make([]byte, n*size), "cpu:0")
	if err != nil {
		t.Fatal(err)
	}
	remote, err := owner.Register("remote", make([]byte, n*size), "cpu:0")
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		for j := range size {
			local.Bytes()[i*size+j], remote.Bytes()[i*size+j] = byte(i), byte(i+100)
		}
	}
	tgt, err := ini.Open(remote.Info())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			var reqs []transport.Request
			for at := i * size; at < (i+1)*size; at += 1024 {
				reqs = append(reqs, transport.Request{Op: transport.Op(i % 2), Local: local.Bytes()[at : at+1024], Offset: int64(at)})
			}
			b := ini.Submit(tgt, reqs, transport.BatchOptions{Timeout: patience, Imm: uint64(i), HasImm: true, Tag: fmt.Sprint(i)})
			if i%10 == 9 {
				initiator.mu.Lock()
				for ep := range initiator.eps {
					_ = ep.c.Close()
				}
				initiator.mu.Unlock()
			}
			<-b.Done()
			if b.Err() != nil {
				t.Error(b.Err())
			}
		})
	}
	wg.Wait()
	if !bytes.Equal(local.Bytes(), remote.Bytes()) {
		t.Error("bytes went astray")
	}
	for i := range uint64(n) {
		if imms[i] != 1 {
			t.Errorf("immediate %d came %d times", i, imms[i])
		}
	}
	var flying []*transport.Batch
	for range 20 {
		flying = append(flying, ini.Submit(tgt, []transport.Request{{Op: transport.Read, Local: local.Bytes()}}, transport.BatchOptions{}))
	}
	<-flying[0].Done()
	wg.Go(func() { owner.Close() })
	if err := ini.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	for _, b := range flying {
		<-b.Done()
		if b.Err() != nil && !errors.Is(b.Err(), net.ErrClosed) {
			t.Error(b.Err())
		}
	}
	clear(local.Bytes())
	clear(remote.Bytes())
}
