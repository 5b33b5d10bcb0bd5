package tcp

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

func newRail(t testing.TB, listen string) *Rail {
	t.Helper()
	r, err := New(Config{Name: "tcp/lo", Listen: listen})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestContract(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(listen, func(t *testing.T) {
			transporttest.TestRail(t, func(t testing.TB) transport.Rail { return newRail(t, listen) }, transporttest.Checked)
		})
	}
}

// mptcp is a rail of Multipath TCP; the test is skipped where the kernel has none.
func mptcp(t testing.TB, listen string) *Rail {
	t.Helper()
	if on, err := os.ReadFile("/proc/sys/net/mptcp/enabled"); err != nil || strings.TrimSpace(string(on)) != "1" {
		t.Skipf("SKIPPED: this kernel has no MPTCP, or it is off (sysctl net.mptcp.enabled=1): %q, %v", on, err)
	}
	r, err := New(Config{Name: "tcp/lo", Listen: listen, MPTCP: true})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestMultipathContract(t *testing.T) {
	mptcp(t, "127.0.0.1:0").Close()
	transporttest.TestRail(t, func(t testing.TB) transport.Rail { return mptcp(t, "127.0.0.1:0") }, transporttest.Checked)
}

// TestMultipathFallback: a rail that is to be multipath does not go on as plain TCP
// in silence; one that need not be is served by either.
func TestMultipathFallback(t *testing.T) {
	transporttest.CheckLeaks(t)
	multi, plain := mptcp(t, "127.0.0.1:0"), newRail(t, "127.0.0.1:0")
	defer multi.Close()
	defer plain.Close()
	if _, err := multi.Dial(t.Context(), plain.Addr()); !errors.Is(err, transport.ErrUnreachable) || !strings.Contains(err.Error(), "fell back to plain TCP") {
		t.Errorf("to a plain rail: %v", err)
	}
	if _, err := plain.Dial(t.Context(), multi.Addr()); err != nil {
		t.Errorf("from a plain rail: %v", err)
	}
	if _, err := multi.Dial(t.Context(), multi.Addr()); err != nil {
		t.Errorf("from a multipath rail: %v", err)
	}
}

func TestConfigValidate(t *testing.T) {
	for _, c := range []struct {
		cfg    Config
		fields []string
	}{
		{Config{}, []string{"Name", "Listen"}},
		{Config{Name: "eth0", Listen: "127.0.0.1:0"}, []string{"Name"}},
		{Config{Name: "tcp/eth0", Listen: "0.0.0.0:9000"}, []string{"Advertise"}},
		{Config{Name: "tcp/eth0", Listen: ":9000"}, []string{"Advertise"}},
		{Config{Name: "tcp/eth0", Listen: "[::]:9000", SendBuffer: -1, MaxConns: -1, ConnsPerPeer: -1}, []string{"Advertise", "SendBuffer", "MaxConns", "ConnsPerPeer"}},
	} {
		_, err := New(c.cfg)
		if err == nil {
			t.Errorf("%+v was accepted", c.cfg)
			continue
		}
		for _, f := range c.fields {
			if !strings.Contains(err.Error(), "Config."+f+": ") {
				t.Errorf("%+v: %s is not named in: %v", c.cfg, f, err)
			}
		}
	}
	r, err := New(Config{Name: "tcp/any", Listen: ":0", Advertise: "node7"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if host, port, err := net.SplitHostPort(r.Addr()); err != nil || host != "node7" || port == "0" {
		t.Errorf("advertises %q", r.Addr())
	}
	_, port, _ := net.SplitHostPort(r.Addr())
	if _, err := New(Config{Name: "tcp/any", Listen: ":" + port, Advertise: "node7"}); err == nil || !strings.Contains(err.Error(), "tcp/any") {
		t.Errorf("port in use: %v", err)
	}
}

// A rail with an address of its own connects from it, whichever the system would take:
// the peer's answers then come in by the same NIC.
func TestDialsFromItsAddress(t *testing.T) {
	transporttest.CheckLeaks(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	r := newRail(t, "127.0.0.3:0")
	defer r.Close()
	for _, own := range []net.IP{net.IPv4(127, 0, 0, 3), nil} { // of loopback New leaves it to the system
		from := "127.0.0.1"
		if r.local = nil; own != nil {
			r.local, from = &net.TCPAddr{IP: own}, own.String()
		}
		c, err := r.dial(t.Context(), ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if got := c.LocalAddr().(*net.TCPAddr).IP.String(); got != from {
			t.Errorf("connects from %s, want %s", got, from)
		}
		c.Close()
	}
}
