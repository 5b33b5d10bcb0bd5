package nics

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kvferry/lab"
	"kvferry/lab/wire"
)

// connect is a TCP connection from host 1 to host 2 over a link.
func connect(t testing.TB, l *Lab, nic int) (out, in net.Conn) {
	t.Helper()
	var listener net.Listener
	err := l.Do(2, func() (err error) {
		listener, err = net.Listen("tcp4", Address(2, nic)+":0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	err = l.Do(1, func() (err error) {
		out, err = net.DialTimeout("tcp4", listener.Addr().String(), patience)
		return err
	})
	if err == nil {
		in, err = listener.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close(); in.Close() })
	return out, in
}

// roundTrip is how long a byte takes there and back, the least of three.
func roundTrip(t testing.TB, out, in net.Conn) time.Duration {
	t.Helper()
	least := time.Hour
	for range 3 {
		began := time.Now()
		b := []byte{1}
		_, err := out.Write(b)
		if err == nil {
			_, err = io.ReadFull(in, b)
		}
		if err == nil {
			_, err = in.Write(b)
		}
		if err == nil {
			_, err = io.ReadFull(out, b)
		}
		if err != nil {
			t.Fatal(err)
		}
		least = min(least, time.Since(began))
	}
	return least
}

// TestDelayOfLinks: a round trip takes the delays of both directions, as they are now.
func TestDelayOfLinks(t *testing.T) {
	eachWay(t, func(t *testing.T, by By) {
		l := start(t, Config{
			By: by, Rates: []int64{1e9, 1e9},
			Conditions: []wire.Link{{{Delay: 10 * time.Millisecond}, {Delay: 30 * time.Millisecond}}, {}},
		})
		out, in := connect(t, l, 0)
		least := func(want time.Duration) {
			t.Helper()
			if got := roundTrip(t, out, in); got < want {
				t.Errorf("a round trip takes %v, less than %v", got, want)
			}
		}
		least(40 * time.Millisecond)
		if err := l.SetCondition(0, "delay", "60ms/15ms"); err != nil {
			t.Fatal(err)
		}
		least(75 * time.Millisecond)
		if err := l.Inflict(lab.Fault{Action: lab.SetDelay, Host: 2, NIC: 0, Value: "80ms/0s"}); err != nil {
			t.Fatal(err)
		}
		least(80 * time.Millisecond)
		if err := l.Clear(0); err != nil {
			t.Fatal(err)
		}
		least(40 * time.Millisecond)
		// A link that was clean at the start.
		out, in = connect(t, l, 1)
		if err := l.SetCondition(1, "delay", "25ms"); err != nil {
			t.Fatal(err)
		}
		least(50 * time.Millisecond)
		if err := l.SetCondition(1, "jitter", "26ms"); err == nil {
			t.Error("a jitter above the delay was taken")
		}
	})
}

// TestBadLink: over a link that does all that a bad one does, TCP delivers what was sent; and
// the link has done it.
func TestBadLink(t *testing.T) {
	eachWay(t, func(t *testing.T, by By) {
		bad := wire.Conditions{Delay: 2 * time.Millisecond, Jitter: time.Millisecond, Loss: 0.01, Reorder: 0.01, Duplicate: 0.01}
		l := start(t, Config{By: by, Rates: []int64{1e9}, Conditions: []wire.Link{{bad, bad}}, Seed: 5})
		out, in := connect(t, l, 0)
		// From now on: ARP, which made the connection possible, has no checksum.
		if err := l.SetCondition(0, "corrupt", "1%"); err != nil {
			t.Fatal(err)
		}
		data := bytes.Repeat([]byte("what was sent arrives "), 200_000)
		failed := make(chan error, 1)
		go func() {
			_, err := out.Write(data)
			failed <- errors.Join(err, out.(*net.TCPConn).CloseWrite())
		}()
		h := sha256.New()
		if _, err := io.Copy(h, in); err != nil {
			t.Fatal(err)
		}
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(data); !bytes.Equal(h.Sum(nil), sum[:]) {
			t.Error("other bytes arrived")
		}
		_, lines, _, _, err := l.net.lines(0) // a busy machine may have dropped some more
		if c := lines[0]; err != nil || c.Packets < int64(len(data)/1500) || c.Lost == 0 || by == ByRelay && (c.Reordered == 0 || c.Duplicated == 0 || c.Corrupted == 0) || c.Overflowed > 0 {
			t.Errorf("%+v", c)
		}
	})
}

// TestFaultsOfBadLink: a link that is bad can be cut, a black hole and cleared, as a
// clean one.
func TestFaultsOfBadLink(t *testing.T) {
	eachWay(t, func(t *testing.T, by By) {
		l := start(t, Config{By: by, Rates: []int64{1e9}, Conditions: []wire.Link{{{Delay: time.Millisecond}, {Delay: time.Millisecond}}}})
		s := send(t, l, Address(1, 0), Address(2, 0), false)
		s.moves(t, "over a good link")
		for name, fault := range map[string]func(int) error{"cut": l.Cut, "black hole": l.BlackHole} {
			if err := fault(0); err != nil {
				t.Fatal(err)
			}
			s.stalls(t, name)
			if err := l.Clear(0); err != nil {
				t.Fatal(err)
			}
			s.moves(t, "after "+name)
		}
	})
}

// TestFlapping: a cable that flaps goes and comes until it is cleared, and is in the journal.
func TestFlapping(t *testing.T) {
	l := start(t, Config{Rates: []int64{1e9}, Out: t.TempDir(), Flaps: []lab.Flap{{Every: 40 * time.Millisecond, Out: 20 * time.Millisecond}}})
	count := func() int {
		journal, err := os.ReadFile(filepath.Join(l.cfg.Out, "host1", journalName))
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(journal, []byte(`"action":"link-`))
	}
	eventually(t, "six changes", func() bool { return count() >= 6 })
	if err := l.Clear(0); err != nil {
		t.Fatal(err)
	}
	if err := l.Inflict(lab.Fault{Action: lab.SetFlap, Host: 1, NIC: 0, Value: "60ms/20ms"}); err != nil {
		t.Fatal(err)
	}
	from := count()
	eventually(t, "two changes more", func() bool { return count() >= from+2 })
}

// TestCongestion: a connection over the links has the congestion control that was asked for, at
// both ends.
func TestCongestion(t *testing.T) {
	l := start(t, Config{Rates: []int64{1e9}, Congestion: "reno"})
	algorithm := func(c net.Conn) (name string) {
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err == nil {
			err = errors.Join(raw.Control(func(fd uintptr) {
				name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
			}), err)
		}
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimRight(name, "\x00")
	}
	if out, in := connect(t, l, 0); algorithm(out) != "reno" || algorithm(in) != "reno" {
		t.Errorf("%s and %s", algorithm(out), algorithm(in))
	}
}
