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

// patience bounds every wait for something that must happen. It is no measure of
// speed: the machine may be busy.
const patience = time.Minute

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
		cfg.Timeout = 2 * patience
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
	dialer := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
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

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick, end := time.NewTicker(5*time.Millisecond), time.NewTimer(patience)
	defer tick.Stop()
	defer end.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// moves waits until a stream has received more.
func (s *stream) moves(t testing.TB, what string) {
	t.Helper()
	from := s.received.Load()
	eventually(t, what, func() bool { return s.received.Load() > from+1<<20 })
}

// A meter holds what host 1's end of a link sends to a rate: more than the rate and a
// bucket's burst is too much on any machine. How near to its rate a link comes on a
// quiet one is for BenchmarkLinks to print.
type meter struct {
	l     *Lab
	nic   int
	rate  float64 // bits a second
	began time.Time
	from  int64
}

func (l *Lab) meter(t *testing.T, nic int, rate float64) *meter {
	m := &meter{l: l, nic: nic, rate: rate, began: time.Now()}
	m.from = m.sent(t)
	return m
}

func (m *meter) sent(t *testing.T) int64 {
	t.Helper()
	traffic, err := m.l.Traffic(1, m.nic)
	if err != nil {
		t.Fatal(err)
	}
	return traffic.SentBytes
}

// excess is how many bytes more were sent than the rate allows, if above 0.
func (m *meter) excess(t *testing.T) float64 {
	t.Helper()
	sent := m.sent(t) - m.from // before the time is taken
	return float64(sent) - m.rate/8*time.Since(m.began).Seconds() - float64(m.l.cfg.Burst) - 1514
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

// TestRates: both links carry bytes at once, neither more than its rate allows, and
// their counters know of all of them.
func TestRates(t *testing.T) {
	const rate = 100e6
	l := start(t, Config{Rates: []int64{rate, rate / 2}})
	meters := []*meter{l.meter(t, 0, rate), l.meter(t, 1, rate/2)}
	streams := []*stream{send(t, l, Address(1, 0), Address(2, 0), false), send(t, l, Address(1, 1), Address(2, 1), false)}
	for range 4 { // megabytes, of which a burst is a quarter of one
		for _, s := range streams {
			s.moves(t, "a megabyte on each")
		}
	}
	for nic, s := range streams {
		received := s.received.Load()
		here, err := l.Traffic(1, nic)
		if err != nil || here.SentBytes < received || here.ReceivedPackets == 0 {
			t.Errorf("link %d: %d bytes of payload, sent %+v, %v", nic, received, here, err)
		}
		if over := meters[nic].excess(t); over > 0 {
			t.Errorf("link %d: %.0f bytes more than its rate allows", nic, over)
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
		slow := l.meter(t, 0, 20e6)
		s.moves(t, "a megabyte at the new rate")
		if over := slow.excess(t); over > 0 {
			t.Errorf("%.0f bytes more than the new rate allows", over)
		}
		must(l.Clear(0))
		slow = l.meter(t, 0, 20e6)
		eventually(t, "more than the new rate allows, at the old one", func() bool { return slow.excess(t) > 0 })
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

// TestSwitch: each address of host 2 is reached; the NICs have no rate, and the ports have it, also
// once it has changed, and drop what their queues do not hold.
func TestSwitch(t *testing.T) {
	const rate, queue = 100e6, 64 << 10
	l := start(t, Config{Rates: []int64{rate}, SwitchQueue: queue, Addresses: 3})
	for _, to := range Addresses(2, 0, 3) {
		send(t, l, Address(1, 0), to, false).moves(t, "a megabyte to "+to)
	}
	shaped := func(want uint64) {
		t.Helper()
		for i, nic := range l.net.links[0].nics {
			at, err := l.net.hosts[i].QdiscList(nic)
			if err != nil || slices.ContainsFunc(at, func(q netlink.Qdisc) bool { return q.Type() == "tbf" }) {
				t.Errorf("the NIC of host %d has %v, %v", i+1, at, err)
			}
			all, err := l.net.wires.QdiscList(l.net.links[0].ports[i])
			if err != nil {
				t.Fatal(err)
			}
			k := slices.IndexFunc(all, func(q netlink.Qdisc) bool { return q.Type() == "tbf" })
			if k < 0 {
				t.Fatalf("the port to host %d has %v", i+1, all)
			}
			if b := all[k].(*netlink.Tbf); b.Rate != want || b.Limit != queue {
				t.Errorf("the port to host %d has %+v", i+1, b)
			}
		}
	}
	shaped(rate / 8)
	eventually(t, "a packet that the port to host 2 drops", func() bool {
		all, err := l.net.wires.QdiscList(l.net.links[0].ports[1])
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(all, func(q netlink.Qdisc) bool { return q.Attrs().Statistics.Queue.Drops > 0 })
	})
	if err := l.SetRate(0, rate/2); err != nil {
		t.Fatal(err)
	}
	shaped(rate / 16)
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
	send(t, l, Address(1, 0), Address(2, 0), true)
	for nic := range 3 {
		eventually(t, Name(nic)+" carries 1 MB", func() bool {
			traffic, err := l.Traffic(1, nic)
			if err != nil {
				t.Fatal(err)
			}
			return traffic.SentBytes > 1<<20
		})
	}
}
