package admission

import (
	"net"
	"net/netip"
	"testing"
)

func TestClientOf(t *testing.T) {
	for _, tc := range []struct{ addr, want string }{
		{"127.0.0.1:80", "127.0.0.1"},
		{"[::ffff:10.0.0.7]:80", "10.0.0.7"},
		{"[2001:db8:1:2:3:4:5:6]:80", "2001:db8:1:2::"},
		{"[fe80::1%eth0]:80", "fe80::"},
	} {
		addr := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(tc.addr))
		if got := clientOf(addr); got.String() != tc.want {
			t.Errorf("%s counts as %v, want %s", tc.addr, got, tc.want)
		}
	}
}
