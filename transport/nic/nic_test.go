package nic

import (
	"net"
	"runtime"
	"strings"
	"testing"

	"kvferry/transport"
)

func TestOwner(t *testing.T) {
	if got := Owner(net.IPv4(127, 0, 0, 1)); !strings.HasPrefix(got, "lo") {
		t.Errorf("127.0.0.1 is of %q", got)
	}
	if got := Owner(net.IPv4(192, 0, 2, 1)); got != "" {
		t.Errorf("an address of nobody is of %q", got)
	}
}

// What would leave by another interface is told from what leaves by the right one.
// lab/nics has the case of several NICs in one network.
func TestReach(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux is asked")
	}
	lo := Owner(net.IPv4(127, 0, 0, 1))
	if r, why := Reach(lo, net.IPv4(127, 0, 0, 1), "127.0.0.2:80"); r != transport.OnLink {
		t.Errorf("this machine: %v, %s", r, why)
	}
	if r, _ := Reach(lo, net.IPv4(127, 0, 0, 1), "host.example:80"); r != transport.Unknown {
		t.Errorf("a name: %v", r)
	}
	if r, _ := Reach(lo, net.IPv4(127, 0, 0, 1), "no port"); r != transport.Unknown {
		t.Errorf("no address: %v", r)
	}
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		addrs, _ := i.Addrs()
		if i.Flags&net.FlagLoopback != 0 || i.Flags&net.FlagUp == 0 || len(addrs) == 0 {
			continue
		}
		n, ok := addrs[0].(*net.IPNet)
		if !ok || n.IP.To4() == nil || n.Mask[3] == 255 {
			continue
		}
		peer := n.IP.Mask(n.Mask).To4() // the network's last address
		for j := range peer {
			peer[j] |= ^n.Mask[len(n.Mask)-4+j]
		}
		peer[3]--
		if peer.Equal(n.IP) {
			peer[3]--
		}
		at := net.JoinHostPort(peer.String(), "80")
		if r, why := Reach(i.Name, n.IP, at); r != transport.OnLink {
			t.Errorf("%s is in the network of %s: %v, %s", at, i.Name, r, why)
		}
		r, why := Reach("eth77", n.IP, at)
		if r != transport.Elsewhere || !strings.Contains(why, "leave by "+i.Name+", not eth77") {
			t.Errorf("by another interface: %v, %s", r, why)
		}
		return
	}
	t.Skip("no interface but lo has an IPv4 address")
}

func TestWatch(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux is asked")
	}
	up, stop, err := Watch(Owner(net.IPv4(127, 0, 0, 1)), func(bool) {})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if !up {
		t.Error("the loopback interface is down")
	}
	if _, _, err := Watch("nothing0", func(bool) {}); err == nil || !strings.Contains(err.Error(), "nothing0") {
		t.Errorf("an interface that is not there: %v", err)
	}
}
