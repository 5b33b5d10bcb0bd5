// Package nic asks the system about a network interface on behalf of the rail that
// is bound to it: which interface packets to a peer would leave by, and whether it
// has a carrier.
//
// Binding a socket to an address does not bind it to the address's interface: the
// system routes by destination alone unless it has rules, and answers for any of its
// addresses on any interface (the weak host model). Four connections that are dialed
// without regard to that share one link. So a rail asks before it is paired with a
// peer's, and refuses what would leave by another interface.
//
// A cable that is pulled is no error to TCP for minutes. The carrier says so at once.
package nic

import "net"

// Owner is the interface that has an address, or "".
func Owner(ip net.IP) string {
	all, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
				return i.Name
			}
		}
	}
	return ""
}
