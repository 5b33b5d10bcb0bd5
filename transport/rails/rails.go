// Package rails makes a rail of what a user writes on a command line:
//
//	10.0.0.2:9101          TCP, listening there; named tcp/0, tcp/1, ... by its place
//	tcp/eth0               TCP over an interface, at its address and a free port
//	tcp/eth0@:9101         the same with a port, or with host:port
//	rdma/mlx5_0            RDMA over a verbs device
//	rdma/rxe0:1@:18000     its port 1, and where peers make contact
//	rdma/rxe0?gid=1&qps=2  with options
//	tcp/eth0?mptcp=1       Multipath TCP: the kernel spreads it over its paths
//	tcp/eth0?conns=4096    serves that many connections, of which peerconns= from one host
//	cma                    processes of this machine, by cross-memory attach; named cma/0, ... by its place
//
// A node and a bench that are given the same spec have the same rail. The caller
// owns the rail that Open returns, and gives it to a transfer engine or closes it.
package rails

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"kvferry/config"
	"kvferry/transport"
	"kvferry/transport/cma"
	"kvferry/transport/rdma"
	"kvferry/transport/tcp"
)

// Options are what a spec leaves open.
type Options struct {
	// Index names a rail that is given without a NIC: tcp/0, cma/1, ...
	Index int
	// Logger is the rail's. Default slog.Default.
	Logger *slog.Logger
}

// Open parses a spec and opens its rail. An error names the spec.
func Open(text string, opt Options) (transport.Rail, error) {
	s, err := Parse(text)
	if err != nil {
		return nil, err
	}
	r, err := s.open(opt)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", text, config.Named(err, optionOf))
	}
	return r, nil
}

// optionOf is what of a spec sets the fields of a rail's configuration.
var optionOf = map[string]string{
	"Name": "the NIC", "Device": "the device", "Port": "the device's port", "Listen": "the address", "Advertise": "option advertise", "Congestion": "option congestion",
	"SendBuffer": "option sndbuf", "MPTCP": "option mptcp", "GIDIndex": "option gid", "QueuePairs": "option qps", "QueueDepth": "option depth", "Poll": "option poll",
}

// OpenAll opens the rails of a configuration's field Rails, all or none of them. An error
// is a [config.Invalid] of that field.
func OpenAll(specs []string, opt Options) ([]transport.Rail, error) {
	var all []transport.Rail
	for i, text := range specs {
		opt.Index = i
		r, err := Open(text, opt)
		if err != nil {
			for _, r := range all {
				_ = r.Close()
			}
			return nil, config.Faults{{Field: fmt.Sprintf("Rails[%d]", i), Err: err}}.Err("")
		}
		all = append(all, r)
	}
	return all, nil
}

func (s *Spec) open(opt Options) (transport.Rail, error) {
	if s.Kind == RDMA {
		cfg := rdma.Config{
			Name: "rdma/" + s.NIC, Port: s.Port, Listen: s.Listen, Advertise: s.get("advertise"),
			QueuePairs: s.number("qps"), QueueDepth: s.number("depth"), Logger: opt.Logger,
			MaxConns: s.number("conns"), ConnsPerPeer: s.number("peerconns"),
		}
		if s.get("gid") != "" {
			gid := s.number("gid")
			cfg.GIDIndex = &gid
		}
		if poll := s.get("poll"); poll != "" {
			cfg.Poll, _ = time.ParseDuration(poll) // Parse has read it
		}
		return rail(rdma.New(cfg))
	}
	if s.Kind == CMA {
		return rail(cma.New(cma.Config{Name: fmt.Sprintf("cma/%d", opt.Index), Logger: opt.Logger}))
	}
	cfg := tcp.Config{
		Name: "tcp/" + s.NIC, Listen: s.Listen, Advertise: s.get("advertise"),
		Congestion: s.get("congestion"), SendBuffer: s.number("sndbuf"), MPTCP: s.number("mptcp") == 1, Logger: opt.Logger,
		MaxConns: s.number("conns"), ConnsPerPeer: s.number("peerconns"),
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

// rail keeps a nil pointer from becoming a Rail that is not nil.
func rail[R transport.Rail](r R, err error) (transport.Rail, error) {
	if err != nil {
		return nil, err
	}
	return r, nil
}

// interfaceAddress is the address of an interface that peers can dial: its first
// global IPv4 address, else its first global IPv6 address; of lo the loopback
// address.
func interfaceAddress(name string) (string, error) {
	nic, err := net.InterfaceByName(name)
	if err != nil {
		return "", fmt.Errorf("this machine has no interface %q: use one of %s", name, strings.Join(interfaceNames(), ", "))
	}
	if nic.Flags&net.FlagUp == 0 {
		return "", fmt.Errorf("interface %s is down: ip link set %s up", name, name)
	}
	addrs, err := nic.Addrs()
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
	for i, nic := range all {
		names[i] = nic.Name
	}
	return names
}
