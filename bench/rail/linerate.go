package rail

// This file asks a machine how fast its NICs say that they are, in bytes a second.

import (
	"net"
	"os"
	"path"
	"strconv"
	"strings"

	"kvferry/transport/rails"
)

// SystemLineRates reads the rates of this machine's NICs.
const SystemLineRates LineRates = "/sys"

// A LineRates reads NICs' rates below a folder with the kernel's files about them, /sys.
type LineRates string

func (s LineRates) read(name ...string) string {
	text, err := os.ReadFile(path.Join(append([]string{string(s)}, name...)...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// Of is what the rails' NICs say they can do together, in bytes a second;
// ok is false if one of them does not say.
func (s LineRates) Of(specs []string) (sum float64, ok bool) {
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
			rate = s.NIC(spec.NIC)
		default:
			rate = s.NIC(InterfaceOf(spec.Listen))
		}
		if rate <= 0 {
			return 0, false
		}
		sum += rate
	}
	return sum, len(specs) > 0
}

// NIC is an interface's speed, which the kernel tells in Mbit/s: -1 or an error
// where there is no cable. What is neither a device nor made of some has no speed of
// its own: a veth pair says 10000 and moves several times that.
func (s LineRates) NIC(name string) float64 {
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
func (s LineRates) rdmaRate(device string, port int) float64 {
	if parent := s.read("class/infiniband", device, "parent"); parent != "" {
		return s.NIC(parent)
	}
	gbit, _, _ := strings.Cut(s.read("class/infiniband", device, "ports", strconv.Itoa(port), "rate"), " Gb/sec")
	rate, err := strconv.ParseFloat(gbit, 64)
	if err != nil {
		return 0
	}
	return rate * 1e9 / 8
}

// InterfaceOf returns the interface that has the address of listen's host, or "" if none has it.
func InterfaceOf(listen string) string {
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
