package rail

// This file reads what the kernel says of an end's rails and of its machine.

import (
	"net"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kvferry/kvcache"
	"kvferry/transport"
	"kvferry/transport/nic"
	"kvferry/transport/rails"
)

// Facts are what an end's kernel says of a rail. A zero field is unknown, unless its comment says what else zero means.
type Facts struct {
	Rail       string  `json:"rail"` // its name
	Addr       string  `json:"addr"` // where peers reach it
	Kind       string  `json:"kind"`
	NIC        string  `json:"nic,omitempty"` // the network interface
	LineRate   float64 `json:"line_rate"`
	MTU        int     `json:"mtu"`
	NoCarrier  bool    `json:"no_carrier"`
	Changes    int     `json:"carrier_changes"`     // of the carrier, since the interface is there
	Congestion string  `json:"congestion"`          // the system's; a rail's own is cubic, and bbr where packets are lost
	BBR        bool    `json:"bbr"`                 // may be used
	Elsewhere  string  `json:"elsewhere,omitempty"` // why packets to the other end do not leave by the NIC
	Routed     bool    `json:"routed,omitempty"`    // they go by a gateway
}

// Host is what an end's kernel says of the machine.
type Host struct {
	Memlock   int64  `json:"memlock_bytes"` // RLIMIT_MEMLOCK; -1 is no limit
	HugeFree  int64  `json:"huge_pages_free_bytes"`
	HugePages string `json:"transparent_huge_pages"` // always, madvise or never; "" is unknown
	Available int64  `json:"memory_available_bytes"`
}

// root is the folder that has the kernel's sys and proc: "/" but in tests.
type root string

func (r root) read(name ...string) string {
	text, err := os.ReadFile(path.Join(append([]string{string(r)}, name...)...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func (r root) number(name ...string) int {
	n, _ := strconv.Atoi(r.read(name...)) // none is unknown
	return n
}

// facts reads the facts of a rail that was opened as spec. peer is the address of the other end's rail, or "" if
// that is not known.
func (r root) facts(spec, name, addr, peer string) Facts {
	f := Facts{Rail: name, Addr: addr}
	s, err := rails.Parse(spec)
	if err != nil {
		return f
	}
	f.Kind = s.Kind
	f.LineRate, _ = r.lineRate([]string{spec})
	host, _, _ := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	if ip == nil {
		return f // from memory to memory
	}
	if f.NIC = nic.Owner(ip); f.NIC == "" {
		return f
	}
	f.MTU = r.number("sys/class/net", f.NIC, "mtu")
	f.NoCarrier = r.read("sys/class/net", f.NIC, "carrier") == "0"
	f.Changes = r.number("sys/class/net", f.NIC, "carrier_changes")
	f.Congestion = r.read("proc/sys/net/ipv4/tcp_congestion_control")
	for _, name := range strings.Fields(r.read("proc/sys/net/ipv4/tcp_available_congestion_control")) {
		f.BBR = f.BBR || name == "bbr"
	}
	if peer == "" {
		return f
	}
	switch reach, why := nic.Reach(f.NIC, ip, peer); reach {
	case transport.Elsewhere, transport.NoRoute:
		f.Elsewhere = why
	case transport.Routed:
		f.Routed = true
	}
	return f
}

// host reads what the kernel says of the machine.
func (r root) host() *Host {
	h := &Host{Memlock: -1}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil && limit.Cur <= 1<<62 {
		h.Memlock = int64(limit.Cur)
	}
	_, chosen, _ := strings.Cut(r.read("sys/kernel/mm/transparent_hugepage/enabled"), "[") // always [madvise] never
	h.HugePages, _, _ = strings.Cut(chosen, "]")
	var free, each int64
	for line := range strings.Lines(r.read("proc/meminfo")) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "HugePages_Free:":
			free = n
		case "Hugepagesize:":
			each = n << 10
		}
	}
	h.HugeFree = free * each
	h.Available, _ = kvcache.Available()
	return h
}

// lineRate returns what the rails' NICs say they can do together, in bytes a second. ok is false if one of them does
// not say.
func (r root) lineRate(specs []string) (sum float64, ok bool) {
	for _, text := range specs {
		spec, err := rails.Parse(text)
		if err != nil {
			return 0, false
		}
		rate := 0.0
		switch {
		case spec.Kind == rails.RDMA:
			rate = r.rdmaRate(spec.NIC, max(spec.Port, 1))
		case spec.NIC != "":
			rate = r.nicRate(spec.NIC)
		default:
			rate = r.nicRate(interfaceOf(spec.Listen))
		}
		if rate <= 0 {
			return 0, false
		}
		sum += rate
	}
	return sum, len(specs) > 0
}

// nicRate returns an interface's speed in bytes a second, or 0. The kernel tells it in Mbit/s: -1 or an error
// where there is no cable. What is neither a device nor made of some has no speed of
// its own: a veth pair says 10000 and moves several times that.
func (r root) nicRate(name string) float64 {
	mbit, err := strconv.ParseFloat(r.read("sys/class/net", name, "speed"), 64)
	if err != nil || name == "" {
		return 0
	}
	made := r.read("sys/class/net", name, "uevent")
	if _, err := os.Stat(path.Join(string(r), "sys/class/net", name, "device")); err != nil &&
		!strings.Contains(made, "DEVTYPE=vlan") && !strings.Contains(made, "DEVTYPE=bond") {
		return 0
	}
	return mbit * 1e6 / 8
}

// rdmaRate returns a port's rate, which the kernel writes as "100 Gb/sec (4X EDR)". Soft RoCE makes one up, and is
// as fast as the interface below it.
func (r root) rdmaRate(device string, port int) float64 {
	if parent := r.read("sys/class/infiniband", device, "parent"); parent != "" {
		return r.nicRate(parent)
	}
	gbit, _, _ := strings.Cut(r.read("sys/class/infiniband", device, "ports", strconv.Itoa(port), "rate"), " Gb/sec")
	rate, err := strconv.ParseFloat(gbit, 64)
	if err != nil {
		return 0
	}
	return rate * 1e9 / 8
}

// interfaceOf returns the interface that has the address of listen's host, or "" if none has it.
func interfaceOf(listen string) string {
	host, _, _ := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); ip != nil {
		return nic.Owner(ip)
	}
	return ""
}
