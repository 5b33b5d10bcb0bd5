package nics

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// needLab skips a test that needs network namespaces.
func needLab(t testing.TB) {
	t.Helper()
	if err := Check(); err != nil {
		t.Skipf("no lab here: %v", err)
	}
}

func start(t testing.TB, cfg Config) *Lab {
	t.Helper()
	needLab(t)
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	l, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// A stream is a TCP connection from host 1 to host 2 that sends all it can.
type stream struct {
	received atomic.Int64
	failed   atomic.Pointer[error]
}

// send starts a stream from an address of host 1 to one of host 2.
func send(t testing.TB, l *Lab, from, to string, mptcp bool) *stream {
	t.Helper()
	s := new(stream)
	listen := to
	if mptcp {
		listen = "0.0.0.0" // whose other addresses the kernel tells
	}
	var listener net.Listener
	var in, out net.Conn
	config := net.ListenConfig{}
	config.SetMultipathTCP(mptcp)
	err := l.Do(2, func() (err error) {
		listener, err = config.Listen(t.Context(), "tcp4", listen+":0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	dialer := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	if dialer.SetMultipathTCP(mptcp); !mptcp {
		dialer.Control = func(_, _ string, c syscall.RawConn) (err error) {
			failed := c.Control(func(fd uintptr) { err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") })
			return errors.Join(err, failed)
		}
	}
	err = l.Do(1, func() (err error) {
		_, port, _ := net.SplitHostPort(listener.Addr().String())
		out, err = dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(to, port))
		return err
	})
	if err == nil {
		in, err = listener.Accept()
	}
	t.Cleanup(func() { listener.Close() }) // which takes the further connections of MPTCP
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close(); in.Close() })
	go func() {
		buf := make([]byte, 256<<10)
		for {
			if _, err := out.Write(buf); err != nil {
				s.failed.Store(&err)
				return
			}
		}
	}()
	go func() {
		buf := make([]byte, 256<<10)
		for {
			n, err := in.Read(buf)
			s.received.Add(int64(n))
			if err != nil {
				return
			}
		}
	}()
	return s
}

// rate is what a stream receives, in bits a second, over d.
func (s *stream) rate(d time.Duration) float64 {
	from, began := s.received.Load(), time.Now()
	<-time.After(d)
	return float64(s.received.Load()-from) * 8 / time.Since(began).Seconds()
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick, end := time.NewTicker(5*time.Millisecond), time.NewTimer(15*time.Second)
	defer tick.Stop()
	defer end.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("not within 15 s: %s", what)
		}
	}
}

// moves waits until a stream has received more.
func (s *stream) moves(t testing.TB, what string) {
	t.Helper()
	from := s.received.Load()
	eventually(t, what, func() bool { return s.received.Load() > from+1<<20 })
}

// stalls waits until nothing has come for 400 ms, twice what a queue of 50 ms at a
// fifth of its rate takes.
func (s *stream) stalls(t *testing.T, what string) {
	t.Helper()
	last, since := s.received.Load(), time.Now()
	eventually(t, what, func() bool {
		if now := s.received.Load(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 400*time.Millisecond
	})
	if err := s.failed.Load(); err != nil {
		t.Errorf("%s: the sender sees %v", what, *err)
	}
}

// flags returns whether a host's NIC is up and has carrier.
func flags(t *testing.T, l *Lab, host, nic int) (up, carrier bool) {
	t.Helper()
	link, err := l.net.hosts[host-1].LinkByName(Name(nic))
	if err != nil {
		t.Fatal(err)
	}
	raw := link.Attrs().RawFlags
	return raw&unix.IFF_UP != 0, raw&unix.IFF_LOWER_UP != 0
}

// TestRates: both links carry their rate at once, in frames: 1448 of 1514 bytes
// are payload, 95.6 %.
func TestRates(t *testing.T) {
	const rate = 100e6
	l := start(t, Config{Rates: []int64{rate, rate}})
	streams := []*stream{send(t, l, Address(1, 0), Address(2, 0), false), send(t, l, Address(1, 1), Address(2, 1), false)}
	for _, s := range streams {
		s.moves(t, "the first megabyte") // the bucket is full at first, and TCP slow
	}
	from := [2]int64{streams[0].received.Load(), streams[1].received.Load()}
	began := time.Now()
	<-time.After(1200 * time.Millisecond)
	for nic, s := range streams {
		got := float64(s.received.Load()-from[nic]) * 8 / time.Since(began).Seconds() / rate
		t.Logf("link %d: %.4f of its rate", nic, got)
		if got < 0.93 || got > 0.96 {
			t.Errorf("link %d carries %.4f of its rate, want 0.93 to 0.96", nic, got)
		}
		here, err := l.Traffic(1, nic)
		if err != nil || here.SentBytes < s.received.Load() || here.ReceivedPackets == 0 {
			t.Errorf("link %d: %d bytes of payload, sent %+v, %v", nic, s.received.Load(), here, err)
		}
	}
	if _, err := l.Traffic(3, 0); err == nil {
		t.Error("host 3 has counters")
	}
}

// TestFaults: what each does to a stream, on a link beside one that goes on.
func TestFaults(t *testing.T) {
	l := start(t, Config{Rates: []int64{100e6, 50e6}})
	s, other := send(t, l, Address(1, 0), Address(2, 0), false), send(t, l, Address(1, 1), Address(2, 1), false)
	s.moves(t, "the first megabyte")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	carriers := func(want bool) func() bool {
		return func() bool {
			for host := 1; host <= Hosts; host++ {
				up, carrier := flags(t, l, host, 0)
				if !up {
					t.Fatalf("host %d: a pulled cable sets no NIC down", host)
				}
				if carrier != want {
					return false
				}
			}
			return true
		}
	}
	t.Run("rate", func(t *testing.T) {
		must(l.SetRate(0, 20e6))
		s.moves(t, "what was queued") // at the new rate
		if got := s.rate(time.Second) / 20e6; got < 0.90 || got > 0.99 {
			t.Errorf("%.3f of the new rate", got)
		}
		must(l.Clear(0))
		s.moves(t, "what was queued")
		eventually(t, "the old rate", func() bool { return s.rate(200*time.Millisecond) > 85e6 })
	})
	t.Run("link-down", func(t *testing.T) {
		must(l.Cut(0))
		eventually(t, "no carrier", carriers(false))
		s.stalls(t, "a pulled cable")
		other.moves(t, "the other link")
		must(l.Restore(0))
		eventually(t, "carrier", carriers(true))
		s.moves(t, "the restored link")
	})
	t.Run("black-hole", func(t *testing.T) {
		must(l.BlackHole(0))
		s.stalls(t, "a black hole")
		if !carriers(true)() {
			t.Error("a black hole has carrier")
		}
		other.moves(t, "the other link")
		must(l.BlackHole(0)) // again is nothing
		must(l.Clear(0))
		s.moves(t, "the cleared link")
	})
	t.Run("kill", func(t *testing.T) {
		must(l.Kill(2))
		s.stalls(t, "a dead host")
		other.stalls(t, "a dead host")
		if err := l.Clear(0); err == nil {
			t.Error("a dead host's link is back")
		}
	})
}

// TestNothingIsLeft: a lab has no NIC here, and a closed one none anywhere, even
// where sockets that are still open keep a host's namespace.
func TestNothingIsLeft(t *testing.T) {
	before := linkNames(t)
	l := start(t, Config{Rates: []int64{1e9}})
	s := send(t, l, Address(1, 0), Address(2, 0), false)
	s.moves(t, "a stream")
	if during := linkNames(t); !slices.Equal(during, before) {
		t.Errorf("links here: %q, before %q", during, before)
	}
	fd, err := unix.Dup(int(l.net.hosts[0].fd))
	if err != nil {
		t.Fatal(err)
	}
	kept, err := netlink.NewHandleAt(netns.NsHandle(fd))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	defer kept.Close()
	l.Close()
	if _, err := l.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("a lab that was closed says %v", err)
	}
	s.stalls(t, "a link that is gone")
	_, err = l.Traffic(1, 0)
	for what, err := range map[string]error{"cut": l.Cut(0), "killed": l.Kill(1), "asked": err, "entered": l.Do(1, func() error { return nil })} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("a lab that is over is %s: %v", what, err)
		}
	}
	links, err := kept.LinkList()
	if err != nil || len(links) != 1 {
		t.Errorf("host 1 has %d links, want lo: %v", len(links), err)
	}
}

func linkNames(t *testing.T) (names []string) {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, nic := range all {
		names = append(names, nic.Name)
	}
	return names
}

// TestSharedSubnet: with a route for each source address a connection leaves by
// the NIC of its address; without, by the first.
func TestSharedSubnet(t *testing.T) {
	for noRoutes, by := range map[bool]int{false: 1, true: 0} {
		l := start(t, Config{Rates: []int64{1e9, 1e9}, SharedSubnet: true, NoRoutes: noRoutes})
		send(t, l, l.cfg.address(1, 1), l.cfg.address(2, 1), false).moves(t, "a connection of the second NICs")
		var sent [2]int64
		for nic := range sent {
			traffic, err := l.Traffic(1, nic)
			if err != nil {
				t.Fatal(err)
			}
			sent[nic] = traffic.SentBytes
		}
		if sent[by] < 1<<20 || sent[1-by] > 1<<16 {
			t.Errorf("NoRoutes %v: sent %d, want all by NIC %d", noRoutes, sent, by)
		}
	}
}

// TestMPTCP: one connection uses all links.
func TestMPTCP(t *testing.T) {
	l := start(t, Config{Rates: []int64{100e6, 100e6, 100e6}, MPTCP: true})
	s := send(t, l, Address(1, 0), Address(2, 0), true)
	for nic := range 3 {
		eventually(t, Name(nic)+" carries 1 MB", func() bool {
			traffic, err := l.Traffic(1, nic)
			if err != nil {
				t.Fatal(err)
			}
			return traffic.SentBytes > 1<<20
		})
	}
	t.Logf("three links of 100 Mbit/s: %.0f Mbit/s", s.rate(time.Second)/1e6)
}
