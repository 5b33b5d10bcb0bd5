package nic

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"

	"kvferry/transport"
)

// Reach says how packets from local, an address of the interface, to a peer's
// host:port would leave, and why it is not by the interface.
func Reach(name string, local net.IP, addr string) (transport.Reach, string) {
	host, _, err := net.SplitHostPort(addr)
	remote := net.ParseIP(host)
	if err != nil || remote == nil || name == "" {
		return transport.Unknown, "" // a name: what it stands for is found when dialing
	}
	routes, err := netlink.RouteGetWithOptions(remote, &netlink.RouteGetOptions{SrcAddr: local})
	switch {
	case errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH) || err == nil && len(routes) == 0:
		return transport.NoRoute, fmt.Sprintf("there is no route from %v to %v: give %s an address in its network, or add one (ip route add %v dev %s)", local, remote, name, remote, name)
	case err != nil:
		return transport.Unknown, err.Error()
	}
	r := routes[0]
	if r.Type == syscall.RTN_LOCAL {
		return transport.OnLink, "" // this machine
	}
	out, err := net.InterfaceByIndex(r.LinkIndex)
	if err != nil {
		return transport.Unknown, err.Error()
	}
	switch {
	case out.Name != name:
		return transport.Elsewhere, fmt.Sprintf("packets from %v to %v leave by %s, not %s: give each NIC a network of its own, or route by source at both ends (ip rule add from %v table 100; ip route add %v dev %s table 100)",
			local, remote, out.Name, name, local, remote, name)
	case r.Gw != nil:
		return transport.Routed, ""
	}
	return transport.OnLink, ""
}

// Watch calls changed whenever the interface loses or gets back its carrier, on one
// goroutine, until stop is called, which waits for it. up is how it is now.
func Watch(name string, changed func(up bool)) (up bool, stop func(), err error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return false, nil, fmt.Errorf("interface %s: %w", name, err)
	}
	updates, done := make(chan netlink.LinkUpdate, 16), make(chan struct{})
	if err := netlink.LinkSubscribe(updates, done); err != nil {
		return false, nil, fmt.Errorf("watching interface %s: %w", name, err)
	}
	index := link.Attrs().Index
	if link, err = netlink.LinkByIndex(index); err != nil { // now that nothing is missed
		close(done)
		return false, nil, fmt.Errorf("interface %s: %w", name, err)
	}
	now := running(link.Attrs())
	var watching sync.WaitGroup
	watching.Go(func() {
		last := now
		for u := range updates {
			if int(u.Index) != index {
				continue
			}
			if now := u.Header.Type != syscall.RTM_DELLINK && running(u.Attrs()); now != last {
				last = now
				changed(now)
			}
		}
	})
	return now, func() {
		close(done)
		watching.Wait()
	}, nil
}

// running is up, with a carrier.
func running(a *netlink.LinkAttrs) bool {
	return a.RawFlags&(syscall.IFF_UP|syscall.IFF_RUNNING) == syscall.IFF_UP|syscall.IFF_RUNNING
}
