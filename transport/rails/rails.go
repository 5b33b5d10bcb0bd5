// Package rails makes a rail of what a user writes on a command line:
//
//	10.0.0.2:9101          TCP, listening there; named tcp/0, tcp/1, ... by its place
//	tcp/eth0               TCP over an interface, at its address and a free port
//	tcp/eth0@:9101         the same with a port, or with host:port
//	rdma/mlx5_0            RDMA over a verbs device
//	rdma/rxe0:1@:18000     its port 1, and where peers make contact
//	rdma/rxe0?gid=1&qps=2  with options
//	tcp/eth0?mptcp=1       Multipath TCP: the kernel spreads it over its paths
//	tcp/eth0?conns=4       four connections to each peer, used as one
//	tcp/eth0?maxconns=9999 serves that many connections, of which peerconns= from one host
//	cma                    processes of this machine, by cross-memory attach; named cma/0, ... by its place
//	shm                    likewise, one-sided: for processes that trust each other, see package shm
//
// A node and a bench that are given the same spec have the same rail. The caller
// owns the rail that Open returns, and gives it to a transfer engine or closes it.
//
// What is known of a kind of rail stands in one value, in a file of its own: tcp.go,
// rdma.go, cma.go, shm.go. A new kind is such a file, and its line in the table in kind.go:
// parsing, errors, helps of flags and ranks are made from that.
package rails

import (
	"fmt"
	"log/slog"

	"kvferry/internal/config"
	"kvferry/transport"
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
	k := kindOf(s.Kind)
	r, err := k.open(s, opt)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", text, config.Named(err, k.fields))
	}
	return r, nil
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

// rail keeps a nil pointer from becoming a Rail that is not nil.
func rail[R transport.Rail](r R, err error) (transport.Rail, error) {
	if err != nil {
		return nil, err
	}
	return r, nil
}
