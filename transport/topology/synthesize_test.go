package topology

import (
	"fmt"
	"path"
	"strings"
)

// A board puts together the files of a machine that nobody here has, as the
// kernel's documentation of sysfs and public listings of such machines have them:
// see testdata/README.md.
type board struct{ s Snapshot }

func newBoard() *board { return &board{Snapshot{}} }

func (b *board) file(text string, name ...string) {
	b.s[path.Join(name...)] = entry{Text: text + "\n"}
}

func (b *board) folder(name ...string) { b.s[path.Join(name...)] = entry{Dir: true} }

// link makes a symlink as sysfs does, relative to the folder that it is in.
func (b *board) link(to string, name ...string) {
	at := path.Join(name...)
	from, target := strings.Split(path.Dir(at), "/"), strings.Split(to, "/")
	n := commonPrefix(from, target)
	b.s[at] = entry{Link: strings.Repeat("../", len(from)-n) + strings.Join(target[n:], "/")}
}

// node is a NUMA node whose first CPU is on the socket.
func (b *board) node(id, socket int, cpus string, gib int64, distance string) {
	at := path.Join("sys/devices/system/node", fmt.Sprintf("node%d", id))
	b.file(cpus, at, "cpulist")
	b.file(distance, at, "distance")
	b.file(fmt.Sprintf("Node %d MemTotal:       %d kB", id, gib<<20), at, "meminfo")
	b.folder(at, "hugepages")
	b.file(fmt.Sprint(socket), "sys/devices/system/cpu", "cpu"+cpus[:digits(cpus)], "topology/physical_package_id")
	b.s["proc/meminfo"] = entry{Text: fmt.Sprintf("MemTotal:       %d kB\nHugepagesize:       2048 kB\nHugetlb:               0 kB\n", gib<<20)}
}

// A card is a PCI device; ids are vendor:device, class is in hexadecimal.
type card struct {
	ids, class, driver string
	node               int
	link               Link
}

// A bridge's link is that of what is behind it, so nothing reads it.
func bridge(ids string, node int) card {
	return card{ids: ids, class: "060400", driver: "pcieport", node: node}
}

// pci adds the device at the end of a path below sys/devices and returns where it
// is; the bridges before it are added with their own calls.
func (b *board) pci(at string, c card) string {
	folder := path.Join("sys/devices", at)
	address := path.Base(at)
	vendor, product, _ := strings.Cut(c.ids, ":")
	b.link(folder, pciFolder, address)
	b.file("0x"+vendor, folder, "vendor")
	b.file("0x"+product, folder, "device")
	b.file("0x"+c.class, folder, "class")
	b.file(fmt.Sprintf("pci:v0000%[1]sd0000%[2]ssv0000%[1]ssd00000000bc%[3]ssc%[4]si%[5]s", strings.ToUpper(vendor), strings.ToUpper(product),
		strings.ToUpper(c.class[:2]), strings.ToUpper(c.class[2:4]), strings.ToUpper(c.class[4:])), folder, "modalias")
	b.file(fmt.Sprint(c.node), folder, "numa_node")
	if c.driver != "" {
		driver := path.Join("sys/bus/pci/drivers", c.driver)
		b.folder(driver)
		b.link(driver, folder, "driver")
	}
	if c.link.Width > 0 {
		b.file(fmt.Sprintf("%.1f GT/s PCIe", c.link.Speed), folder, "current_link_speed")
		b.file(fmt.Sprint(c.link.Width), folder, "current_link_width")
		b.file(fmt.Sprintf("%.1f GT/s PCIe", c.link.MaxSpeed), folder, "max_link_speed")
		b.file(fmt.Sprint(c.link.MaxWidth), folder, "max_link_width")
	}
	return folder
}

func (b *board) bridges(node int, ids string, at ...string) {
	for _, one := range at {
		b.pci(one, bridge(ids, node))
	}
}

// States of an interface.
const (
	linkUp  = "up"
	noLink  = "no link" // enabled, and no carrier
	linkOff = "off"     // ip link set down
	untold  = "unknown" // up, as drivers have it that do not tell
)

// ethernet adds an interface of the device in folder, "" for a virtual one. mbit 0
// is a speed that cannot be read, as of a Wi-Fi card.
func (b *board) ethernet(folder, name, state string, mbit int) string {
	at := path.Join("sys/devices/virtual/net", name)
	if folder != "" {
		at = path.Join(folder, "net", name)
		b.link(folder, at, "device")
	}
	b.link(at, netFolder, name)
	b.file("1", at, "type")
	b.file(map[string]string{linkUp: "up", noLink: "down", linkOff: "down", untold: "unknown"}[state], at, "operstate")
	b.file(map[string]string{linkUp: "0x1003", noLink: "0x1003", linkOff: "0x1002", untold: "0x1003"}[state], at, "flags")
	if mbit != 0 {
		b.file(fmt.Sprint(mbit), at, "speed")
	}
	return at
}

func (b *board) loopback() {
	at := b.ethernet("", "lo", untold, 0)
	b.file("772", at, "type")
	b.file("0x9", at, "flags")
}

// rdma adds an RDMA device; interfaces are those of its GIDs.
func (b *board) rdma(folder, name, state, rate, layer string, interfaces ...string) {
	at := path.Join(folder, "infiniband", name)
	b.link(folder, at, "device")
	b.link(at, rdmaFolder, name)
	b.file(state, at, "ports/1/state")
	b.file(rate, at, "ports/1/rate")
	b.file(layer, at, "ports/1/link_layer")
	for i, dev := range interfaces {
		b.file(dev, at, "ports/1/gid_attrs/ndevs", fmt.Sprint(i))
	}
}

// routes are connected networks, by interface and metric, in the kernel's order.
func (b *board) routes(lines ...string) {
	text := "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask"
	for _, line := range lines {
		f := strings.Fields(line) // interface, network number, metric
		text += fmt.Sprintf("\n%s\t0000%02X0A\t00000000\t0001\t0\t0\t%s\t00FFFFFF", f[0], f[1][0]-'0', f[2])
	}
	b.file(text, routeFile)
}

// laptop: Wi-Fi and a USB dock in one network, the built-in socket without a
// cable, a small NVIDIA GPU, docker and a VPN.
func laptop() Snapshot {
	b := newBoard()
	b.node(0, 0, "0-15", 31, "10")
	const root = "pci0000:00"
	b.pci(root+"/0000:00:02.0", card{ids: "8086:46a6", class: "030000", driver: "i915", node: -1})
	b.bridges(-1, "8086:460d", root+"/0000:00:06.0")
	b.pci(root+"/0000:00:06.0/0000:01:00.0", card{"10de:25b9", "030200", "nvidia", -1, Link{2.5, 8, 16, 8}})
	usb := b.pci(root+"/0000:00:14.0", card{ids: "8086:51ed", class: "0c0330", driver: "xhci_hcd", node: -1})
	wifi := b.pci(root+"/0000:00:14.3", card{ids: "8086:51f0", class: "028000", driver: "iwlwifi", node: -1})
	lan := b.pci(root+"/0000:00:1f.6", card{ids: "8086:1a1e", class: "020000", driver: "e1000e", node: -1})
	b.ethernet(wifi, "wlp0s20f3", linkUp, 0)
	b.ethernet(lan, "enp0s31f6", noLink, -1)
	dock := usb + "/usb2/2-1/2-1.3/2-1.3:1.0"
	b.folder("sys/bus/usb/drivers/r8152")
	b.link("sys/bus/usb/drivers/r8152", dock, "driver")
	b.ethernet(dock, "enx00e04c680001", linkUp, 1000)
	b.ethernet("", "docker0", noLink, -1)
	b.ethernet("", "tun0", untold, 10)
	b.loopback()
	b.routes("enx00e04c680001 0 100", "wlp0s20f3 0 600", "docker0 1 0", "tun0 2 50")
	return b.s
}

// twoSockets: a ConnectX-6 Dx on each socket, one of them in a slot that came up
// with half of its lanes at half of their speed; two ports of 1 Gbit/s, one empty;
// a VLAN on the first card, and a screen of the management controller.
func twoSockets() Snapshot {
	b := newBoard()
	b.node(0, 0, "0-31,64-95", 252, "10 21")
	b.node(1, 1, "32-63,96-127", 252, "21 10")
	b.bridges(0, "8086:1bbc", "pci0000:00/0000:00:0c.0", "pci0000:00/0000:00:0d.0")
	b.pci("pci0000:00/0000:00:0c.0/0000:01:00.0", card{"1a03:2000", "030000", "ast", 0, Link{}})
	for i, state := range []string{linkUp, noLink} {
		lom := b.pci(fmt.Sprintf("pci0000:00/0000:00:0d.0/0000:02:00.%d", i), card{"14e4:165f", "020000", "tg3", 0, Link{5, 1, 5, 1}})
		b.ethernet(lom, fmt.Sprintf("eno%d", i+1), state, []int{1000, -1}[i])
	}
	b.bridges(0, "8086:352a", "pci0000:16/0000:16:02.0")
	b.bridges(1, "8086:352a", "pci0000:c9/0000:c9:02.0")
	one := b.pci("pci0000:16/0000:16:02.0/0000:17:00.0", card{"15b3:101d", "020000", "mlx5_core", 0, Link{16, 16, 16, 16}})
	two := b.pci("pci0000:c9/0000:c9:02.0/0000:ca:00.0", card{"15b3:101d", "020000", "mlx5_core", 1, Link{8, 8, 16, 16}})
	first := b.ethernet(one, "ens1f0np0", linkUp, 100000)
	b.file("p0", first, "phys_port_name")
	b.file("p0", b.ethernet(two, "ens2f0np0", linkUp, 100000), "phys_port_name")
	vlan := b.ethernet("", "ens1f0np0.100", linkUp, 100000)
	b.link(first, vlan, "lower_ens1f0np0")
	b.rdma(one, "mlx5_0", "4: ACTIVE", "100 Gb/sec (2X HDR)", "Ethernet", "ens1f0np0", "ens1f0np0", "ens1f0np0.100")
	b.rdma(two, "mlx5_1", "4: ACTIVE", "100 Gb/sec (2X HDR)", "Ethernet", "ens2f0np0", "ens2f0np0")
	b.loopback()
	b.routes("eno1 0 100", "ens1f0np0 1 101", "ens2f0np0 2 102", "ens1f0np0.100 3 400")
	return b.s
}

// eightGPUs: HGX H100 with a ConnectX-7 for each GPU behind the same PCIe switch,
// 400 Gbit/s InfiniBand. One port came up at half of its speed and one has no
// cable. Two ports of 25 Gbit/s are bonded for the rest.
func eightGPUs() Snapshot {
	b := newBoard()
	b.node(0, 0, "0-55,112-167", 1007, "10 21")
	b.node(1, 1, "56-111,168-223", 1008, "21 10")
	for i, slot := range []struct{ root, nic, gpu int }{
		{0x15, 0x18, 0x1b},
		{0x3d, 0x40, 0x43},
		{0x4c, 0x4f, 0x52},
		{0x5b, 0x5e, 0x61},
		{0x97, 0x9a, 0x9d},
		{0xbd, 0xc0, 0xc3},
		{0xcb, 0xce, 0xd1},
		{0xd9, 0xdc, 0xdf},
	} {
		node := i / 4
		port := fmt.Sprintf("pci0000:%02x/0000:%02[1]x:01.0", slot.root)
		up := fmt.Sprintf("%s/0000:%02x:00.0", port, slot.root+1)
		b.bridges(node, "8086:352a", port)
		// The switch: a port up, and one down for each of the two.
		down := []string{fmt.Sprintf("%s/0000:%02x:00.0", up, slot.root+2), fmt.Sprintf("%s/0000:%02x:01.0", up, slot.root+2)}
		b.bridges(node, "1000:c030", up, down[0], down[1])
		at := b.pci(fmt.Sprintf("%s/0000:%02x:00.0", down[0], slot.nic), card{"15b3:1021", "020700", "mlx5_core", node, Link{32, 16, 32, 16}})
		b.pci(fmt.Sprintf("%s/0000:%02x:00.0", down[1], slot.gpu), card{"10de:2330", "030200", "nvidia", node, Link{32, 16, 32, 16}})
		state, port1, rate := linkUp, "4: ACTIVE", "400 Gb/sec (4X NDR)"
		switch i {
		case 2:
			rate = "200 Gb/sec (4X HDR)"
		case 6:
			state, port1, rate = noLink, "1: DOWN", "10 Gb/sec (4X SDR)"
		}
		ib := b.ethernet(at, fmt.Sprintf("ibp%ds0", slot.nic), state, 0)
		b.file("32", ib, "type") // ARPHRD_INFINIBAND
		b.rdma(at, fmt.Sprintf("mlx5_%d", i), port1, rate, "InfiniBand")
	}
	b.bridges(0, "8086:1bbc", "pci0000:00/0000:00:0c.0")
	bond := b.ethernet("", "bond0", linkUp, 50000)
	for i := range 2 {
		at := b.pci(fmt.Sprintf("pci0000:00/0000:00:0c.0/0000:01:00.%d", i), card{"8086:159b", "020000", "ice", 0, Link{16, 8, 16, 8}})
		slave := b.ethernet(at, fmt.Sprintf("eno%d", i+1), linkUp, 25000)
		b.link(bond, slave, "master")
		b.link(slave, bond, fmt.Sprintf("lower_eno%d", i+1))
	}
	b.loopback()
	b.routes("bond0 0 0")
	return b.s
}

// cloudVM: two virtio NICs of a virtual machine with two NUMA nodes, whose
// hypervisor does not say where the NICs are; both are in one network.
func cloudVM() Snapshot {
	b := newBoard()
	b.node(0, 0, "0-15", 62, "10 20")
	b.node(1, 1, "16-31", 63, "20 10")
	for i := range 2 {
		at := b.pci(fmt.Sprintf("pci0000:00/0000:00:%02x.0", 4+i), card{ids: "1af4:1000", class: "020000", driver: "virtio-pci", node: -1})
		virtio := path.Join(at, fmt.Sprintf("virtio%d", 1+i))
		b.folder("sys/bus/virtio/drivers/virtio_net")
		b.link("sys/bus/virtio/drivers/virtio_net", virtio, "driver")
		b.ethernet(virtio, fmt.Sprintf("eth%d", i), linkUp, -1)
	}
	b.loopback()
	b.routes("eth0 0 100", "eth1 0 100")
	return b.s
}
