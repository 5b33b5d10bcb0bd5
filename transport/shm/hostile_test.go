//go:build linux

package shm

import (
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// A stranger speaks to a rail by hand.
type stranger struct {
	t   *testing.T
	c   *net.UnixConn
	ctl *control
	b   [maxMessage]byte

	bell   *bell
	number int
}

func connect(t *testing.T, r *Rail) *stranger {
	t.Helper()
	c, err := dialSocket(r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &stranger{t: t, c: c}
}

func dialSocket(addr string) (*net.UnixConn, error) {
	return net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: addr, Net: "unixpacket"})
}

// greet says hello and opens the control page.
func (x *stranger) greet() {
	x.t.Helper()
	if err := send(x.c, appendHello(nil, transport.NewSecret().Name()), -1); err != nil {
		x.t.Fatal(err)
	}
	fd := -1
	n, err := receive(x.c, x.b[:], &fd)
	if err != nil {
		x.t.Fatal(err)
	}
	if _, err := parseWelcome(x.b[:n]); err != nil || fd < 0 {
		x.t.Fatal(err, fd)
	}
	if x.ctl, err = openControl(fd); err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(x.ctl.close)
	a, fd := x.hear()
	if a.typ != typeBell || fd < 0 {
		x.t.Fatal(a, fd)
	}
	if x.bell, err = openBell(fd); err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(x.bell.close)
	x.number = int(a.number)
}

// ask asks for a key, and returns what came with the answer.
func (x *stranger) ask(key transport.Key) (a answer, fd int) {
	x.t.Helper()
	r := request{typ: typeAsk, seq: 1, key: key}
	if err := send(x.c, r.append(nil), -1); err != nil {
		x.t.Fatal(err)
	}
	return x.hear()
}

// hear is what the rail says next, and what came with it.
func (x *stranger) hear() (a answer, fd int) {
	x.t.Helper()
	fd = -1
	n, err := receive(x.c, x.b[:], &fd)
	if err == nil {
		a, err = parseAnswer(x.b[:n])
	}
	if err != nil {
		x.t.Fatal(err)
	}
	return a, fd
}

// dropped waits until the rail has hung up.
func (x *stranger) dropped(what string) {
	x.t.Helper()
	for {
		fd := -1
		_, err := receive(x.c, x.b[:], &fd)
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			x.t.Fatalf("%s: the connection lives on", what)
		}
		if err != nil {
			return
		}
	}
}

// TestStranger: who connects and is no rail is turned away, and its descriptors are not kept.
func TestStranger(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	r, log := loggedRail(t)
	defer r.Close()
	ask := request{typ: typeAsk, seq: 1, key: 1}
	for name, first := range map[string][]byte{"another protocol": []byte("GET / HTTP/1.1\r\n\r\n"), "too long": make([]byte, 4*maxMessage), "an ask": ask.append(nil)} {
		x := connect(t, r)
		if err := send(x.c, first, -1); err != nil {
			t.Fatal(err)
		}
		x.dropped(name)
	}
	for name, message := range map[string][]byte{"a byte": {9}, "an answer": (&answer{typ: typeTold}).append(nil), "too long": make([]byte, maxMessage)} {
		x := connect(t, r)
		x.greet()
		if err := send(x.c, message, -1); err != nil {
			t.Fatal(err)
		}
		x.dropped(name)
	}
	x := connect(t, r)
	x.greet()
	if err := send(x.c, ask.append(nil), 0); err != nil { // standard input, for no reason
		t.Fatal(err)
	}
	x.dropped("descriptors")
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "connection dropped") {
		t.Errorf("log: %s", log.String())
	}
}

// TestScribbler: a peer that writes whatever it likes into the control page keeps nothing but its own: the
// key is taken back from it, others' copies go on.
func TestScribbler(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	a, b := newRail(t), newRail(t)
	defer a.Close()
	defer b.Close()
	b.HandleImmediates(func(transport.Key, transport.Imm) error { t.Error("an immediate nobody sent"); return nil })
	mem, release, err := Map(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close(); _ = release() }()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		key, err := b.Register(mem, transport.Whole(1<<20))
		if err != nil {
			t.Fatal(err)
		}
		x := connect(t, b)
		x.greet()
		granted, fd := x.ask(key)
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		for i := range x.ctl.words {
			x.ctl.words[i] = rng.Uint64()
		}
		if x.ctl.words[wordBusy]>>1 == uint64(granted.slot)+1 { // which would be an announcement
			x.ctl.words[wordBusy] = 0
		}
		ep, err := a.Dial(t.Context(), b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		s := transport.NewSlice(transport.Write, make([]byte, 1<<20), key, 0, func(_ *transport.Slice, err error) { ended <- err })
		if _, err := ep.Post([]*transport.Slice{s}); err != nil {
			t.Fatal(err)
		}
		if err := ends(t, ended, "another's copy"); err != nil {
			t.Errorf("another's copy: %v", err)
		}
		if err := b.Deregister(key); err != nil {
			t.Error(err)
		}
		x.ctl.end() // it may end as an honest one does
		_ = x.c.Close()
		if err := ep.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestHostileTarget: a target that answers what it should not breaks its own connection, and nothing
// here.
func TestHostileTarget(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	r := newRail(t)
	defer r.Close()
	good := grantOfRanges(1)
	good.seq, good.file, good.length = 1, 0, 1<<20
	for name, play := range map[string]func(c *net.UnixConn, f *file) error{
		"a grant of no file": func(c *net.UnixConn, _ *file) error {
			a := good
			a.file = 7
			return send(c, a.append(nil), -1)
		},
		"memory beyond its file": func(c *net.UnixConn, f *file) error {
			a := good
			a.file, a.offset = 7, uint64(len(f.mem))
			return send(c, a.append(nil), f.fd)
		},
		"a file with a told": func(c *net.UnixConn, f *file) error {
			a := answer{typ: typeTold}
			return send(c, a.append(nil), f.fd)
		},
		"a second bell": func(c *net.UnixConn, f *file) error {
			a := answer{typ: typeBell}
			return send(c, a.append(nil), f.fd)
		},
		"an answer to another question": func(c *net.UnixConn, _ *file) error {
			a := good
			a.seq = 2
			return send(c, a.append(nil), -1)
		},
		"parts that are not of one": func(c *net.UnixConn, _ *file) error {
			a := good
			a.total = 2
			if err := send(c, a.append(nil), -1); err != nil {
				return err
			}
			a.generation++
			return send(c, a.append(nil), -1)
		},
		"ranges beyond the memory": func(c *net.UnixConn, _ *file) error {
			a := good
			a.ranges = []transport.Range{{Offset: 1 << 20, Length: 1}}
			return send(c, a.append(nil), -1)
		},
		"garbage": func(c *net.UnixConn, _ *file) error { return send(c, []byte("garbage"), -1) },
	} {
		t.Run(name, func(t *testing.T) {
			ep, played := dialHostile(t, r, func(c *net.UnixConn, f *file) error {
				var b [maxMessage]byte
				if _, err := receive(c, b[:], nil); err != nil { // the ask
					return err
				}
				return play(c, f)
			})
			ended := make(chan error, 1)
			s := transport.NewSlice(transport.Write, make([]byte, 10), 1, 0, func(_ *transport.Slice, err error) { ended <- err })
			if _, err := ep.Post([]*transport.Slice{s}); err != nil {
				t.Fatal(err)
			}
			if err := ends(t, ended, "the slice"); !errors.Is(err, transport.ErrProtocol) {
				t.Errorf("the slice ended with %v", err)
			}
			if err := ends(t, played, "the target"); err != nil {
				t.Error(err)
			}
			if err := ep.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// dialHostile connects a rail to a target that plays its part once it was greeted; its control page is f.
func dialHostile(t *testing.T, r *Rail, play func(c *net.UnixConn, f *file) error) (ep transport.Endpoint, played chan error) {
	t.Helper()
	addr := prefix + r.machine + "/" + strings.ReplaceAll(t.Name(), " ", "-")
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: addr, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	f, err := newFile("kvferry-hostile", controlSize, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.release() })
	played = make(chan error, 1)
	go func() {
		played <- func() error {
			c, err := ln.AcceptUnix()
			if err != nil {
				return err
			}
			defer c.Close()
			var b [maxMessage]byte
			if _, err := receive(c, b[:], nil); err != nil {
				return err
			}
			probe := [16]byte{1}
			w := welcome{at: addressOf(probe[:]), probe: probe}
			if err := send(c, w.append(nil), f.fd); err != nil {
				return err
			}
			bell := answer{typ: typeBell}
			if err := send(c, bell.append(nil), f.fd); err != nil { // long enough
				return err
			}
			if err := play(c, f); err != nil {
				return err
			}
			for err == nil { // until it hangs up
				_, err = receive(c, b[:], nil)
			}
			probe[0] = 2
			return nil
		}()
	}()
	if ep, err = r.Dial(t.Context(), addr); err != nil {
		t.Fatal(err)
	}
	return ep, played
}
