package rails_test

import (
	"errors"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kvferry/transport"
	"kvferry/transport/rails"
	"kvferry/transport/rdma"
	"kvferry/transport/shm"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text, kind, nic, listen string
		port                    int
	}{
		{"127.0.0.1:0", "tcp", "", "127.0.0.1:0", 0},
		{"node-3:9101", "tcp", "", "node-3:9101", 0},
		{"[fd00::2]:9101", "tcp", "", "[fd00::2]:9101", 0},
		{"10.0.0.1:7?congestion=bbr&sndbuf=4096", "tcp", "", "10.0.0.1:7", 0},
		{"tcp/eth0", "tcp", "eth0", "", 0},
		{"tcp/eth0?mptcp=1", "tcp", "eth0", "", 0},
		{"tcp/eth0?maxconns=4096&peerconns=512", "tcp", "eth0", "", 0},
		{"cma", "cma", "", "", 0},
		{"shm", "shm", "", "", 0},
		{"tcp/eth0.100@:7000", "tcp", "eth0.100", ":7000", 0},
		{"tcp/eth0@10.0.0.1:7000", "tcp", "eth0", "10.0.0.1:7000", 0},
		{"rdma/mlx5_0", "rdma", "mlx5_0", "", 0},
		{"rdma/mlx5_0:2", "rdma", "mlx5_0", "", 2},
		{"rdma/rxe0@10.0.0.1:0", "rdma", "rxe0", "10.0.0.1:0", 0},
		{"rdma/rxe0:1@[fd00::2]:18000?gid=0&qps=2&depth=128&poll=-1ns", "rdma", "rxe0", "[fd00::2]:18000", 1},
	} {
		s, err := rails.Parse(c.text)
		if err != nil {
			t.Error(err)
			continue
		}
		if s.Kind != c.kind || s.NIC != c.nic || s.Listen != c.listen || s.Port != c.port || s.String() != c.text {
			t.Errorf("%s: %+v, again %s", c.text, s, s)
		}
	}
}

// TestParseFaults: an error names the spec, what is wrong and what would do.
func TestParseFaults(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "tcp/eth0",
		"eth0":                     "neither an address nor a NIC",
		":7000":                    "tcp/eth0@:7000",
		"mem":                      "host:port",
		"udp/eth0":                 `kind "udp" is unknown: use tcp/`,
		"tcp/":                     "no name of a NIC",
		"tcp/eth0:7000":            "tcp/eth0@:7000",
		"tcp/eth0@":                "write host:port",
		"tcp/eth0@7000":            "write host:port",
		"10.0.0.1:http":            "use a number up to",
		"10.0.0.1:70000":           "65535",
		"rdma/":                    "rdma/mlx5_0:1",
		"rdma/mlx5_0:0":            "use 1 to 255",
		"rdma/mlx5_0:x":            "use 1 to 255",
		"rdma/rxe0?":               "gid, qps, depth, poll, advertise",
		"rdma/rxe0?gids=1":         `"gids" is unknown: a rdma rail has gid, qps`,
		"rdma/rxe0?qps=0":          "from 1 to 16",
		"rdma/rxe0?qps=2&qps=2":    "twice",
		"rdma/rxe0?gid=%zz":        `option gid is "%zz"`,
		"rdma/rxe0?poll=5":         "like 20us",
		"tcp/eth0?qps=2":           "advertise, congestion, sndbuf, mptcp, conns, maxconns, peerconns",
		"tcp/eth0?advertise=":      "give it a value",
		"127.0.0.1:0?sndbuf=small": "whole number",
		"tcp/eth0?mptcp=yes":       "from 0 to 1",
		"cma/0":                    "no NIC and no options: write cma",
		"0.0.0.0:9101":             "it names no host",
		"tcp/eth0@[::]:0":          "it names no host",
		"cma?qps=2":                "no NIC and no options: write cma",
	} {
		if _, err := rails.Parse(text); err == nil || !strings.Contains(err.Error(), want) || text != "" && !strings.HasPrefix(err.Error(), strconv.Quote(text)+": ") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestSpecs: a list and a repeated flag are the same.
func TestSpecs(t *testing.T) {
	var s rails.Specs
	for _, text := range []string{"tcp/eth0,rdma/mlx5_0:1?gid=3&qps=2", "cma"} {
		if err := s.Set(text); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"tcp/eth0", "rdma/mlx5_0:1?gid=3&qps=2", "cma"}; !slices.Equal(s, want) || s.String() != strings.Join(want, ",") {
		t.Errorf("%q, want %q", s, want)
	}
}

// TestAllocator: memory is made as one of the rails wants it, and else as always.
func TestAllocator(t *testing.T) {
	of := func(specs ...string) uintptr { return reflect.ValueOf(rails.Allocator(specs)).Pointer() }
	private, shared := reflect.ValueOf(transport.MapMemory).Pointer(), reflect.ValueOf(shm.Map).Pointer()
	if of() != private || of("tcp/eth0", "cma", "nonsense") != private || of("tcp/eth0", "shm") != shared {
		t.Error("memory for other rails is given")
	}
}

func TestOpen(t *testing.T) {
	loopback := ""
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, nic := range all {
		if nic.Flags&net.FlagLoopback != 0 && nic.Flags&net.FlagUp != 0 {
			loopback = nic.Name
		}
	}
	if loopback == "" {
		t.Skip("no loopback interface")
	}
	opened, err := rails.OpenAll([]string{"tcp/" + loopback, "127.0.0.1:0", "tcp/" + loopback + "@localhost:0?congestion=system"}, rails.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"tcp/" + loopback, "tcp/1", "tcp/" + loopback} {
		if opened[i].Name() != name || strings.HasSuffix(opened[i].Addr(), ":0") {
			t.Errorf("rail %d is %s at %s, want %s", i, opened[i].Name(), opened[i].Addr(), name)
		}
		opened[i].Close()
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for spec, want := range map[string]string{
		"tcp/nosuch0":          `no interface "nosuch0": use one of`,
		taken.Addr().String():  "another process listens there",
		"tcp/lo0x@127.0.0.1:x": "use a number up to",
		"bogus":                "neither",
	} {
		_, err := rails.OpenAll([]string{"127.0.0.1:0", spec}, rails.Options{})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "Rails[1]: "+strconv.Quote(spec)+": ") {
			t.Errorf("%s: %v, want %q", spec, err, want)
		}
	}
	// A device that is not there: with libibverbs or without, the error names the rail.
	_, err = rails.Open("rdma/nosuch0?qps=2", rails.Options{})
	if err == nil || !strings.Contains(err.Error(), "rdma/nosuch0") {
		t.Errorf("%v (without verbs: %v)", err, errors.Is(err, rdma.ErrNoVerbs))
	}
}

// FuzzParse: what parses is written back as a spec that parses to the same.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"127.0.0.1:0", "tcp/eth0@[::1]:9", "rdma/mlx5_0:1@h:1?gid=1&qps=2&depth=128&poll=20us&advertise=a%26b",
		"mem", "cma", "cma?", "tcp/?", "rdma/a:b@c?d=e&f", "[]:", "tcp/a?congestion=%00",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := rails.Parse(text)
		if err != nil {
			return
		}
		again, err := rails.Parse(s.String())
		if err != nil || again.String() != s.String() || again.NIC != s.NIC || again.Listen != s.Listen || again.Port != s.Port {
			t.Errorf("%q is written %q, which reads as %+v: %v", text, s, again, err)
		}
	})
}

// TestWithOptions: what was asked of a rail stands beside its name.
func TestWithOptions(t *testing.T) {
	for spec, want := range map[string]string{
		"tcp/lo": "tcp/lo", "127.0.0.1:0": "tcp/lo", "cma": "tcp/lo", "no rail": "tcp/lo",
		"tcp/lo?conns=4": "tcp/lo?conns=4", "tcp/lo@:9000?congestion=bbr&conns=2": "tcp/lo?congestion=bbr&conns=2",
	} {
		if got := rails.WithOptions("tcp/lo", spec); got != want {
			t.Errorf("%q: %q, want %q", spec, got, want)
		}
	}
}
