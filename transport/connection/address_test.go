package connection

import (
	"net"
	"strings"
	"testing"
)

func TestPeerOf(t *testing.T) {
	for addr, want := range map[string]string{
		"10.0.0.1:9000":            "10.0.0.1",
		"[::ffff:10.0.0.1]:9000":   "10.0.0.1",
		"[2001:db8:1:2:3::4]:9000": "2001:db8:1:2::/64",
		"[2001:db8:1:2:9::9]:1":    "2001:db8:1:2::/64",
		"[fe80::1%eth0]:1":         "fe80::/64",
		"[::1]:9000":               "::1",
	} {
		at, err := net.ResolveTCPAddr("tcp", addr)
		if strings.Contains(addr, "%") {
			at, err = &net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0", Port: 1}, nil
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := PeerOf(at); got != want {
			t.Errorf("%s is of %s, want %s", addr, got, want)
		}
	}
	if got := PeerOf(&net.UnixAddr{Name: "@x", Net: "unix"}); got != "@x" {
		t.Errorf("a Unix socket is of %s", got)
	}
}

func TestAdvertised(t *testing.T) {
	at := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 9101}
	for advertise, want := range map[string]string{
		"": "10.0.0.1:9101", "node7": "node7:9101", "node7:7000": "node7:7000", "fd00::7": "[fd00::7]:9101", "[fd00::7]": "[fd00::7]:9101", "[fd00::7]:1": "[fd00::7]:1",
	} {
		if got := Advertised(at, advertise); got != want {
			t.Errorf("%q: %s, want %s", advertise, got, want)
		}
	}
}
