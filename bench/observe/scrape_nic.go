package observe

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// A traffic holds the bytes that a network interface has carried since it came up.
type traffic struct {
	Received    uint64 `json:"received_bytes"`
	Transmitted uint64 `json:"transmitted_bytes"`
}

// A NIC's bytes by its name: "eth0", and of RDMA "mlx5_0/1", whose bytes the network
// interface of the same card does not count.
type nicTraffic map[string]traffic

// ReadNICs reads this machine's counters, of Linux; elsewhere there are none.
func ReadNICs() nicTraffic { return readNICs(os.DirFS("/sys/class")) }

// readNICs reads the counters below /sys/class. What cannot be read is left out.
func readNICs(class fs.FS) nicTraffic {
	nics := nicTraffic{}
	read := func(name, dir, received, transmitted string, unit uint64) {
		r, err1 := number(class, path.Join(dir, received))
		t, err2 := number(class, path.Join(dir, transmitted))
		if err1 == nil && err2 == nil {
			nics[name] = traffic{r * unit, t * unit}
		}
	}
	interfaces, _ := fs.ReadDir(class, "net")
	for _, i := range interfaces {
		read(i.Name(), path.Join("net", i.Name(), "statistics"), "rx_bytes", "tx_bytes", 1)
	}
	devices, _ := fs.ReadDir(class, "infiniband")
	for _, d := range devices {
		ports, _ := fs.ReadDir(class, path.Join("infiniband", d.Name(), "ports"))
		for _, p := range ports {
			// PortRcvData and PortXmitData are in words of four octets (InfiniBand Architecture
			// Specification 1, 16.1.3.5).
			read(d.Name()+"/"+p.Name(), path.Join("infiniband", d.Name(), "ports", p.Name(), "counters"), "port_rcv_data", "port_xmit_data", 4)
		}
	}
	return nics
}

func number(class fs.FS, name string) (uint64, error) {
	text, err := fs.ReadFile(class, name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

// Since is what the interfaces carried after n was another. One that is new, or whose
// counters went back, is left out.
func (n nicTraffic) Since(before nicTraffic) nicTraffic {
	d := nicTraffic{}
	for name, now := range n {
		old, ok := before[name]
		if ok && now.Received >= old.Received && now.Transmitted >= old.Transmitted {
			d[name] = traffic{now.Received - old.Received, now.Transmitted - old.Transmitted}
		}
	}
	return d
}

// Most is the most that can have come to or gone from this machine: all interfaces, in the
// direction that has more. A bond or a bridge counts its members' bytes again, so it may
// be less.
func (n nicTraffic) Most() uint64 {
	var received, transmitted uint64
	for _, t := range n {
		received += t.Received
		transmitted += t.Transmitted
	}
	return max(received, transmitted)
}
