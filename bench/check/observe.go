package check

import (
	"net"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kvferry/bench/rail"
	"kvferry/kvcache"
	"kvferry/transport"
	"kvferry/transport/nic"
	"kvferry/transport/rails"
)

// root is the folder that has sys and proc; "/" but in tests.
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

// facts are those of a rail that was opened as spec; peer is where the other end's is reached, ""
// is not known.
func (r root) facts(spec, name, addr, peer string) Facts {
	f := Facts{Rail: name, Addr: addr}
	s, err := rails.Parse(spec)
	if err != nil {
		return f
	}
	f.Kind = s.Kind
	f.LineRate, _ = rail.LineRates(path.Join(string(r), "sys")).Of([]string{spec})
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

// host is what the kernel says of the machine.
func (r root) host() Host {
	h := Host{Memlock: -1}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil && limit.Cur <= 1<<62 {
		h.Memlock = int64(limit.Cur)
	}
	h.HugePages = chosen(r.read("sys/kernel/mm/transparent_hugepage/enabled"))
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

// chosen is the word in brackets: "always [madvise] never".
func chosen(text string) string {
	_, rest, _ := strings.Cut(text, "[")
	word, _, _ := strings.Cut(rest, "]")
	return word
}
