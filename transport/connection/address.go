package connection

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// PeerOf is the peer that an address belongs to, for Admit: a host, and of IPv6 the
// network of 64 bits, which one host has all of.
func PeerOf(addr net.Addr) string {
	at, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return addr.String()
	}
	ip := at.Addr().Unmap()
	if ip.Is6() && !ip.IsLoopback() {
		if p, err := ip.WithZone("").Prefix(64); err == nil {
			return p.String()
		}
	}
	return ip.String()
}

// Advertised is what peers are told to dial for a rail that listens at a port: its
// address, or the host or host:port that its configuration has instead.
func Advertised(at *net.TCPAddr, advertise string) string {
	if advertise == "" {
		return at.String()
	}
	if _, _, err := net.SplitHostPort(advertise); err == nil {
		return advertise
	}
	return net.JoinHostPort(strings.Trim(advertise, "[]"), fmt.Sprint(at.Port))
}
