package rails

import (
	"fmt"
	"net"
	"strings"

	"kvferry/transport"
	"kvferry/transport/connection"
	"kvferry/transport/nic"
	"kvferry/transport/tcp"
)

// TCP is the kind of rail over TCP sockets. An address alone is one of these, and the
// rail is then named by its place: tcp/0.
const TCP = "tcp"

var tcpKind = kind{
	name:  TCP,
	what:  "tcp/ and an interface",
	forms: []string{"host:port", "tcp/eth0", "tcp/eth0@host:port"},
	flag:  []string{"host:port", "tcp/eth0", "tcp/eth0@:9101"},
	help: [][2]string{
		{"tcp/eth0, tcp/eth0@:7000", "TCP over an interface, at a port"},
		{"10.0.0.1:7000", "TCP at an address"},
		{"tcp/eth0?conns=4", "TCP over four connections, used as one"},
	},
	nics: "tcp/eth0 or tcp/eth0@:7000",
	options: []option{
		{"advertise", anything},
		{"congestion", anything},
		{"sndbuf", between(1, 1<<30)},
		{"mptcp", between(0, 1)},
		{"conns", between(1, tcp.MostConns)},
		{connection.OptionMax, between(1, 1<<20)},
		{connection.OptionPerPeer, between(1, 1<<20)},
	},
	open: openTCP,
	fields: map[string]string{
		"Name": "the NIC", "Listen": "the address", "Advertise": "option advertise", "Congestion": "option congestion",
		"SendBuffer": "option sndbuf", "MPTCP": "option mptcp", "Conns": "option conns",
	},
	nic: interfaceOf,
}

func openTCP(s *Spec, opt Options) (transport.Rail, error) {
	cfg := tcp.Config{
		Name: "tcp/" + s.NIC, Listen: s.Listen, Advertise: s.get("advertise"),
		Congestion: s.get("congestion"), SendBuffer: s.number("sndbuf"), MPTCP: s.number("mptcp") == 1, Conns: s.number("conns"), Logger: opt.Logger,
		MaxConns: s.number(connection.OptionMax), ConnsPerPeer: s.number(connection.OptionPerPeer),
	}
	if s.NIC == "" {
		cfg.Name = fmt.Sprintf("tcp/%d", opt.Index)
		return rail(tcp.New(cfg))
	}
	host, port := "", "0"
	if s.Listen != "" {
		host, port, _ = net.SplitHostPort(s.Listen) // Parse has read it
	}
	if host == "" {
		var err error
		if host, err = interfaceAddress(s.NIC); err != nil {
			return nil, err
		}
	}
	cfg.Listen = net.JoinHostPort(host, port)
	return rail(tcp.New(cfg))
}

// interfaceAddress is the address of an interface that peers can dial: its first
// global IPv4 address, else its first global IPv6 address; of lo the loopback
// address.
func interfaceAddress(name string) (string, error) {
	at, err := net.InterfaceByName(name)
	if err != nil {
		return "", fmt.Errorf("this machine has no interface %q: use one of %s", name, strings.Join(interfaceNames(), ", "))
	}
	if at.Flags&net.FlagUp == 0 {
		return "", fmt.Errorf("interface %s is down: ip link set %s up", name, name)
	}
	addrs, err := at.Addrs()
	if err != nil {
		return "", fmt.Errorf("interface %s: %w", name, err)
	}
	v6 := ""
	for _, a := range addrs {
		ip, ok := a.(*net.IPNet)
		switch {
		case !ok || !ip.IP.IsGlobalUnicast() && !ip.IP.IsLoopback():
		case ip.IP.To4() != nil:
			return ip.IP.String(), nil
		case v6 == "":
			v6 = ip.IP.String()
		}
	}
	if v6 == "" {
		return "", fmt.Errorf("interface %s has no address that peers can dial: give it one (ip addr add 10.0.0.1/24 dev %s)", name, name)
	}
	return v6, nil
}

func interfaceNames() []string {
	all, err := net.Interfaces()
	if err != nil || len(all) == 0 {
		return []string{"(none can be listed)"}
	}
	names := make([]string, len(all))
	for i, at := range all {
		names[i] = at.Name
	}
	return names
}

// interfaceOf is the interface that has a rail's address, as tcp/0 is a rail by its
// address, or else the one that it is named for.
func interfaceOf(r transport.Rail) string {
	if host, _, err := net.SplitHostPort(r.Addr()); err == nil {
		if owner := nic.Owner(net.ParseIP(host)); owner != "" {
			return owner
		}
	}
	_, name, _ := strings.Cut(r.Name(), "/")
	return name
}
