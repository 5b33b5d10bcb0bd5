package socket

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/transport"
	"kvferry/transport/connection"
	"kvferry/transport/transporttest"
)

// A crowd is connections that take a rail's places and send nothing more.
type crowd []net.Conn

func (c crowd) leave() {
	for _, conn := range c {
		conn.Close()
	}
}

// join connects n times, from that many loopback addresses in turn, and sends the
// beginning that each is to have.
func (c *crowd) join(t *testing.T, to string, n, hosts int, begin func(i int) []byte) {
	t.Helper()
	for i := range n {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+i%hosts))}}
		conn, err := d.Dial("tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		*c = append(*c, conn)
		if b := begin(i); len(b) > 0 {
			if _, err := conn.Write(b); err != nil {
				t.Fatal(err)
			}
			if len(b) >= helloLen { // served by the time that others come
				_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
				if _, err := io.ReadFull(conn, make([]byte, welcomeLen)); err != nil {
					t.Fatalf("connection %d is not welcome: %v", i, err)
				}
			}
		}
	}
}

// Strangers that take all places and do nothing more, before their hello, after it, in
// the middle of a frame or with bad keys, keep nobody out.
func TestCrowd(t *testing.T) {
	hello := func(i int) []byte { h := hello{name: nameOf(i)}; return h.append(nil) }
	for name, c := range map[string]struct {
		hosts int
		begin func(i int) []byte
	}{
		"no hello":              {1, func(int) []byte { return nil }},
		"half a hello":          {1, func(i int) []byte { return hello(i)[:20] }},
		"hello, one address":    {1, hello},
		"hello, many addresses": {64, hello},
		"half a frame": {1, func(i int) []byte {
			return append(hello(i), frameBytesOf(request{count: 1, seq: 1, bytes: 1 << 20}, nil, nil)...)
		}},
		"bad key": {1, func(i int) []byte {
			return append(hello(i), frameBytesOf(request{count: 1, seq: 1, bytes: 1 << 20}, []desc{{77, 0, 1 << 20}}, []byte{1})...)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			transporttest.CheckLeaks(t)
			const transfers, places = 3, 1024
			log := &clocktest.Log{}
			owner := newEngine(t, newRailWith(t, "127.0.0.1:0", Config{Logger: slog.New(slog.NewTextHandler(log, nil)), MaxConns: places, helloWithin: time.Hour}))
			defer owner.Close()
			ini := newEngine(t, newRail(t, "127.0.0.1:0"))
			defer ini.Close()
			remote, err := owner.Register("remote", make([]byte, 1<<20), "cpu:0")
			if err != nil {
				t.Fatal(err)
			}
			local, err := ini.RegisterLocal("local", bytes.Repeat([]byte{5}, 1<<20), "cpu:0")
			if err != nil {
				t.Fatal(err)
			}
			var all crowd
			defer func() { all.leave() }()
			all.join(t, owner.Rails()[0].Addr, places, c.hosts, c.begin)
			tgt, err := ini.Open(remote.Info())
			if err != nil {
				t.Fatal(err)
			}
			well := 0
			for range transfers {
				b := ini.Submit(tgt, []transport.Request{{Local: local.Bytes()}}, transport.BatchOptions{Timeout: 10 * time.Second})
				if <-b.Done(); b.Err() == nil {
					well++
				} else {
					t.Log(b.Err())
				}
			}
			if t.Logf("%d of %d transfers went through beside %d such connections", well, transfers, len(all)); well != transfers {
				t.Error("strangers keep others out")
			}
			if n := strings.Count(log.String(), "no room"); n != 1 {
				t.Errorf("%d lines say so: %.1000s", n, log.String())
			}
		})
	}
}

// Connections with something under way are not ended for others, which are refused
// once all are like that.
func TestBusyStay(t *testing.T) {
	transporttest.CheckLeaks(t)
	log := &clocktest.Log{}
	r := newRailWith(t, "127.0.0.1:0", Config{MaxConns: 2, ConnsPerPeer: 2, Logger: slog.New(slog.NewTextHandler(log, nil))})
	defer r.Close()
	mem := make([]byte, 2<<20) // half for each
	key, err := r.Register(mem, transport.Whole(2<<20))
	if err != nil {
		t.Fatal(err)
	}
	var all crowd
	defer func() { all.leave() }()
	all.join(t, r.Addr(), 2, 1, func(i int) []byte {
		h := hello{name: nameOf(i)}
		return append(h.append(nil), frameBytesOf(request{count: 1, seq: 1, bytes: 1 << 20}, []desc{{key, uint64(i) << 20, 1 << 20}}, []byte{1})...)
	})
	busy := func() (n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for s := range r.conns {
			if s.Standing().Busy {
				n++
			}
		}
		return n
	}
	for deadline := time.Now().Add(10 * time.Second); busy() < 2; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of 2 frames are under way", busy())
		}
	}
	other := newRail(t, "127.0.0.1:0")
	defer other.Close()
	_, err = other.Dial(t.Context(), r.Addr())
	var full *connection.Full
	if !errors.Is(err, transport.ErrUnreachable) || !errors.As(err, &full) || full.Limit != 2 || !strings.Contains(err.Error(), "option peerconns") ||
		!strings.Contains(log.String(), "refused: 2 connections from one host have something under way, and no more are served (option peerconns raises that)") {
		t.Errorf("a third connection: %v; log %q", err, log.String())
	}
	// One that has ended its frame has nothing under way, and goes.
	if _, err := all[0].Write(make([]byte, 1<<20-1)); err != nil {
		t.Fatal(err)
	}
	var b [responseLen]byte
	if _, err := io.ReadFull(all[0], b[:]); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); busy() > 1; {
		if time.Now().After(deadline) {
			t.Fatal("an acknowledged frame is under way still")
		}
	}
	if _, err := other.Dial(t.Context(), r.Addr()); err != nil {
		t.Errorf("with an idle one: %v", err)
	}
	if n, err := all[0].Read(b[:]); err == nil {
		t.Errorf("the idle one lives on: %d bytes", n)
	}
	if busy() != 1 {
		t.Error("the busy one was ended")
	}
}
