package socket

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"

	"kvferry/internal/clock/clocktest"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// A connection that is lost with writes unanswered is named in every hello until one is
// welcome: the target ends it first. One that had nothing to land is not.
func TestLostAreNamed(t *testing.T) {
	transporttest.CheckLeaks(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	hellos := make(chan hello, 1)
	welcome := make(chan bool, 1) // whether the next one is
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b := make([]byte, helloLen)
			_, _ = io.ReadFull(c, b)
			h, err := parseHello(b)
			if err != nil {
				t.Error(err)
			}
			hellos <- h
			if <-welcome {
				_, _ = c.Write(appendWelcome(nil, codeOK))
				_, _ = io.ReadFull(c, make([]byte, requestLen+descLen)) // what is asked for is never done
			}
			c.Close()
		}
	}()
	defer func() { ln.Close(); <-served }()
	r := newRail(t, "127.0.0.1:0")
	defer r.Close()
	var lost []transport.Secret
	for i, c := range []struct {
		welcome bool
		op      transport.Op
		named   int // of those lost so far, all or none
	}{
		{true, transport.Write, 0},
		{false, 0, 1}, // the target has not said that it has ended the first
		{true, transport.Read, 1},
		{true, transport.Write, 0},
		{true, transport.Write, 1},
		{true, transport.Write, 1},
		{true, transport.Read, 1},
		{true, transport.Read, 0},
	} {
		welcome <- c.welcome
		ep, err := r.Dial(t.Context(), ln.Addr().String())
		h := <-hellos
		if len(h.lost) != c.named || len(h.lost) == 1 && h.lost[0] != lost[len(lost)-1] {
			t.Errorf("hello %d names %x as lost, want %d of %x", i, h.lost, c.named, lost)
		}
		if !c.welcome {
			if !errors.Is(err, transport.ErrUnreachable) {
				t.Errorf("dial %d: %v", i, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.name != ep.Secret().Name() || slices.Contains(lost, ep.Secret()) {
			t.Errorf("hello %d: name %x of secret %x", i, h.name, ep.Secret())
		}
		ended := make(chan error, 1)
		s := transport.NewSlice(c.op, make([]byte, 100), 1, 0, func(_ *transport.Slice, err error) { ended <- err })
		if n, err := ep.Post([]*transport.Slice{s}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if err := <-ended; !errors.Is(err, transport.ErrUnreachable) {
			t.Errorf("slice %d ended with %v", i, err)
		}
		if err := ep.Close(); err != nil {
			t.Error(err)
		}
		if c.op == transport.Write {
			lost = append(lost, ep.Secret())
		}
	}
}

// A connection that has ended leaves its place to the next: nobody is put out for that.
func TestPlacesAreGivenBack(t *testing.T) {
	transporttest.CheckLeaks(t)
	log := &clocktest.Log{}
	p := rawPeer{t: t, rail: newRailWith(t, "127.0.0.1:0", Config{MaxConns: 2, Logger: slog.New(slog.NewTextHandler(log, nil))})}
	for i := range 5 {
		p.connect(&hello{name: nameOf(i)})
		p.c.Close()
		p.quiet()
	}
	if err := p.rail.Close(); err != nil { // its log is complete
		t.Error(err)
	}
	if strings.Contains(log.String(), "no room") {
		t.Errorf("log: %s", log.String())
	}
}
