package topology

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	netFolder = "sys/class/net"
	// Of include/uapi/linux/if_arp.h and if.h.
	typeLoopback = 772 // ARPHRD_LOOPBACK
	flagUp       = 1   // IFF_UP
)

// readNICs is all network interfaces, and the RDMA devices that have none. Order matters: an
// RDMA device belongs to an interface, and what is stacked depends on which are hardware.
func readNICs(t *tree, devices map[string]*device) []NIC {
	nics := []NIC{}
	for _, name := range t.list(netFolder) {
		if n, ok := readInterface(t, name, devices); ok {
			nics = append(nics, n)
		}
	}
	readRDMA(t, &nics, devices)
	stack(nics)
	nets := readNetworks(t)
	for i := range nics {
		nics[i].networks = nets[nics[i].Netdev]
	}
	slices.SortFunc(nics, func(a, b NIC) int { return compareNames(a.Name, b.Name) })
	return nics
}

// representor is the port name of a switch's side of a virtual function: the
// card's own switch ends there, not a cable. Names are the kernel's for all drivers
// (net/devlink/port.c): c1 is another controller's, as of a card with hosts of its own.
var representor = regexp.MustCompile(`^(c\d+)?pf\d+(vf|sf)\d+$`)

// readInterface is false for what is in the folder and no interface.
func readInterface(t *tree, name string, devices map[string]*device) (NIC, bool) {
	at, mode := t.real(path.Join(netFolder, name))
	if !mode.IsDir() || at == "" || at == "." {
		return NIC{}, false // bonding_masters is a file
	}
	n := NIC{Name: name, Netdev: name, Kind: Virtual, Node: -1}
	flags, _ := strconv.ParseUint(t.read(at, "flags"), 0, 32)
	n.Enabled = flags&flagUp != 0
	switch t.read(at, "operstate") {
	case "up":
		n.Up = true
	case "unknown": // drivers that do not tell, as of loopback and tun
		n.Up = n.Enabled
	}
	// Mbit/s; -1 or EINVAL where there is no cable, or no such thing.
	if mbit, ok := t.number(at, "speed"); ok && mbit > 0 {
		n.Speed = int64(mbit) * 1e6
	}
	if kind, _ := t.number(at, "type"); kind == typeLoopback {
		n.Kind = Loopback
	}
	for _, entry := range t.list(at) {
		if lower, ok := strings.CutPrefix(entry, "lower_"); ok {
			t.link(at, entry)
			n.Parts = append(n.Parts, lower)
		}
	}
	n.Master = t.link(at, "master")
	if t.has(at, "device") {
		n.Kind = Hardware
		n.locate(t, path.Join(at, "device"), devices)
		if representor.MatchString(t.read(at, "phys_port_name")) {
			n.Kind = Virtual
		}
	}
	return n, true
}

// locate fills in where the device behind a link is. That of a virtio NIC is
// virtio2 below the PCI device, and others (USB, VMBus) may be further down or
// not on PCI at all.
func (n *NIC) locate(t *tree, link string, devices map[string]*device) {
	at, _ := t.real(link)
	n.Driver = t.link(at, "driver")
	n.Path = pciPath(at)
	if len(n.Path) == 0 {
		if node, ok := t.number(at, "numa_node"); ok {
			n.Node = node
		}
		return
	}
	n.PCI = n.Path[len(n.Path)-1]
	if d := devices[n.PCI]; d != nil {
		n.Node, n.Link, n.Model, n.ids = d.node, d.link, d.model(), d.vendor+":"+d.product
		return
	}
	// A NIC on USB is behind the controller, which is no network device itself.
	if node, ok := t.number(pciFolder, n.PCI, "numa_node"); ok {
		n.Node = node
	}
}

// stack marks what is made of hardware and takes over where that is.
func stack(nics []NIC) {
	byName := map[string]*NIC{}
	for i := range nics {
		byName[nics[i].Netdev] = &nics[i]
	}
	// A VLAN on a bond of NICs: as many rounds as there can be storeys.
	for changed := true; changed; {
		changed = false
		for i := range nics {
			if nics[i].stackOn(byName) {
				changed = true
			}
		}
	}
	for i := range nics {
		n := &nics[i]
		if byName[n.Master] == nil {
			n.Master = ""
		}
		// A veth pair says 10000 and moves several times that: only hardware has a
		// speed, and bonds and VLANs that of theirs.
		if !n.physical() {
			n.Speed = 0
		}
		// Azure's netvsc is a device that is not on PCI, with a virtual function of a
		// card below it that carries the bytes.
		if n.Kind == Hardware {
			n.Parts = slices.DeleteFunc(n.Parts, func(p string) bool {
				return len(n.Path) > 0 || byName[p] == nil || len(byName[p].Path) == 0
			})
		}
	}
}

// stackOn makes a virtual interface a stacked one if a part of it is known to go by hardware,
// and reports whether it did. The NUMA node is that of its parts, if they have one in common.
func (n *NIC) stackOn(byName map[string]*NIC) bool {
	physical := func(part string) bool { return byName[part] != nil && byName[part].physical() }
	if n.Kind != Virtual || !slices.ContainsFunc(n.Parts, physical) {
		return false
	}
	n.Kind = Stacked
	// A bridge also has the virtual machines' ports.
	n.Parts = slices.DeleteFunc(n.Parts, func(p string) bool { return !physical(p) })
	for i, name := range n.Parts {
		part := byName[name]
		if i == 0 {
			n.Node = part.Node
		} else if n.Node != part.Node {
			n.Node = -1
		}
	}
	return true
}

// physical reports whether bytes on the NIC go by hardware.
func (n *NIC) physical() bool { return n.Kind == Hardware || n.Kind == Stacked }

// networks are the IP networks that an interface is in, as the routes to them say.
type networks struct {
	v4    []route
	other bool // a global IPv6 address
}

type route struct {
	network, mask string // hexadecimal, as the kernel writes them
	metric        int    // the lower goes first
	order         int    // in the kernel's table, of those with one metric
}

const (
	routeFile    = "proc/net/route"
	inet6File    = "proc/net/if_inet6"
	routeColumns = 8
)

// readNetworks reads the IPv4 routes without a gateway, and IPv6 addresses. The
// columns are Iface Destination Gateway Flags RefCnt Use Metric Mask, and
// address index length scope flags interface. These files and not the interfaces' addresses:
// discovery must find the same in a capture, and no file of sysfs has addresses. Of the
// routing tables, the kernel's main one is all that is in there.
func readNetworks(t *tree) map[string]networks {
	all := map[string]networks{}
	for i, line := range strings.Split(t.read(routeFile), "\n") {
		f := strings.Fields(line)
		if len(f) < routeColumns || f[2] != "00000000" || f[7] == "00000000" {
			continue
		}
		metric, err := strconv.Atoi(f[6])
		if err != nil {
			continue
		}
		n := all[f[0]]
		n.v4 = append(n.v4, route{f[1], f[7], metric, i})
		all[f[0]] = n
	}
	for _, line := range strings.Split(t.read(inet6File), "\n") {
		if f := strings.Fields(line); len(f) == 6 && f[3] == "00" { // scope: global
			n := all[f[5]]
			n.other = true
			all[f[5]] = n
		}
	}
	return all
}

// addressed reports whether the interface has an address that others can dial.
func (n networks) addressed() bool { return n.other || len(n.v4) > 0 }

// shadows reports whether packets to a network that both are in leave by n's
// interface, also those that are sent from the other's address: Linux routes by where a packet
// goes to. It does not see rules for source addresses, which put that right.
func (n networks) shadows(other networks) bool {
	return slices.ContainsFunc(n.v4, func(a route) bool {
		return slices.ContainsFunc(other.v4, func(b route) bool {
			return a.network == b.network && a.mask == b.mask &&
				(a.metric < b.metric || a.metric == b.metric && a.order < b.order)
		})
	})
}
