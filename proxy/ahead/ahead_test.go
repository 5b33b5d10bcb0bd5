package ahead

import (
	"context"
	"net"
	"runtime"
	"testing"
	"time"

	"kvferry/attempt"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
)

// TestWay: what a load counts is on the way no more, and what is on the way takes room.
func TestWay(t *testing.T) {
	var w Way
	load := &proto.Load{Room: 3, KvBlocksTotal: 20, KvBlocksUsed: 5, Running: 2}
	expect := func(tokens int, o attempt.Outlook) {
		t.Helper()
		if got := w.Outlook(time.Second, load, 16); got != o || w.Tokens() != tokens {
			t.Errorf("%+v, %d tokens; want %+v, %d", got, w.Tokens(), o, tokens)
		}
	}
	expect(0, attempt.Outlook{RoundTrip: time.Second, Sequences: 3, Blocks: 13})
	w.Submitted(1, 17, 17)
	w.Submitted(2, 0, 160)
	w.Submitted(5, 33, 33)
	expect(50, attempt.Outlook{RoundTrip: time.Second, Sequences: 0, Blocks: 13 - 2 - 10 - 3})
	w.Counted(3)
	expect(33, attempt.Outlook{RoundTrip: time.Second, Sequences: 2, Blocks: 10})
	w.Counted(5)
	expect(0, attempt.Outlook{RoundTrip: time.Second, Sequences: 3, Blocks: 13})
}

// TestPath: the round trip is that of the last connection, as far as the kernel tells.
func TestPath(t *testing.T) {
	p := NewPath()
	if d := p.RoundTrip(); d != 0 {
		t.Errorf("%v of no connection", d)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	if _, _, err := p.Clone().ClientHandshake(context.Background(), "node", conn); err != nil {
		t.Fatal(err)
	}
	if d := p.RoundTrip(); (d > 0) != (runtime.GOOS == "linux") || d > clocktest.Patience {
		t.Errorf("%v over loopback", d)
	}
	conn.Close()
	if d := p.RoundTrip(); d != 0 {
		t.Errorf("%v of a connection that is closed", d)
	}
	one, two := net.Pipe()
	defer one.Close()
	defer two.Close()
	if _, _, err := p.ClientHandshake(context.Background(), "node", one); err != nil {
		t.Fatal(err)
	}
	if d := p.RoundTrip(); d != 0 {
		t.Errorf("%v of what is no TCP connection", d)
	}
}
