package transfer

import (
	"log/slog"
	"math/bits"
	"net"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"kvferry/config"
	"kvferry/kvcache"
	"kvferry/transport"
	"kvferry/transport/rails"
)

// newEngine owns the rails also when it fails. Which of them are near which memory is
// this machine's topology, with the rows of a matrix file instead of those found.
func newEngine(matrix string, cfg transport.Config) (*transport.Engine, error) {
	log := cfg.Logger
	if log == nil {
		log = slog.Default()
	}
	var err error
	if cfg.Rank, err = rails.Ranks(cfg.Rails, matrix, log); err != nil {
		err = &config.Fault{Field: "Matrix", Err: err}
	}
	var e *transport.Engine
	if err == nil {
		e, err = transport.New(cfg)
	}
	if err != nil {
		for _, r := range cfg.Rails {
			_ = r.Close()
		}
	}
	return e, err
}

// defaultSegment is 1 GiB, or a power of two that takes no more than an eighth of
// the memory that is left on this machine: both ends may be here.
func defaultSegment() int64 {
	left, ok := kvcache.Available()
	if !ok {
		return 1 << 28
	}
	return min(1<<30, int64(1)<<(bits.Len64(uint64(max(left/8, 1)))-1))
}

// warm writes all of the memory, so that every page is there and none is the
// kernel's zero page.
func warm(mem []byte, salt uint64) {
	const chunks = 4
	each := (len(mem)/chunks + 8) &^ 7
	eachThread(chunks, func(i int) {
		at := min(i*each, len(mem))
		fill(mem[at:min(at+each, len(mem))], salt, int64(at))
	})
}

// cpuSeconds is the CPU time of this process so far.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// A sysfs reads the kernel's files about NICs; "" where there is none.
type sysfs string

func (s sysfs) read(name ...string) string {
	text, err := os.ReadFile(path.Join(append([]string{string(s)}, name...)...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// lineRate is what the rails' NICs say they can do together, in bytes a second;
// ok is false if one of them does not say.
func (s sysfs) lineRate(specs []string) (sum float64, ok bool) {
	for _, text := range specs {
		spec, err := rails.Parse(text)
		if err != nil {
			return 0, false
		}
		rate := 0.0
		switch {
		case spec.Kind == rails.RDMA:
			rate = s.rdmaRate(spec.NIC, max(spec.Port, 1))
		case spec.NIC != "":
			rate = s.netRate(spec.NIC)
		default:
			rate = s.netRate(interfaceOf(spec.Listen))
		}
		if rate <= 0 {
			return 0, false
		}
		sum += rate
	}
	return sum, len(specs) > 0
}

// netRate is an interface's speed, which the kernel tells in Mbit/s: -1 or an error
// where there is no cable. What is neither a device nor made of some has no speed of
// its own: a veth pair says 10000 and moves several times that.
func (s sysfs) netRate(name string) float64 {
	mbit, err := strconv.ParseFloat(s.read("class/net", name, "speed"), 64)
	if err != nil || name == "" {
		return 0
	}
	made := s.read("class/net", name, "uevent")
	if _, err := os.Stat(path.Join(string(s), "class/net", name, "device")); err != nil &&
		!strings.Contains(made, "DEVTYPE=vlan") && !strings.Contains(made, "DEVTYPE=bond") {
		return 0
	}
	return mbit * 1e6 / 8
}

// rdmaRate is a port's rate: "100 Gb/sec (4X EDR)". Soft RoCE makes one up, and is
// as fast as the interface below it.
func (s sysfs) rdmaRate(device string, port int) float64 {
	if parent := s.read("class/infiniband", device, "parent"); parent != "" {
		return s.netRate(parent)
	}
	gbit, _, _ := strings.Cut(s.read("class/infiniband", device, "ports", strconv.Itoa(port), "rate"), " Gb/sec")
	rate, err := strconv.ParseFloat(gbit, 64)
	if err != nil {
		return 0
	}
	return rate * 1e9 / 8
}

// interfaceOf is the interface that has the host's address, or "".
func interfaceOf(listen string) string {
	host, _, err := net.SplitHostPort(listen)
	ip := net.ParseIP(host)
	all, errs := net.Interfaces()
	if err != nil || ip == nil || errs != nil {
		return ""
	}
	for _, nic := range all {
		addrs, _ := nic.Addrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
				return nic.Name
			}
		}
	}
	return ""
}
