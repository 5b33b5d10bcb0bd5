package topology

import (
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/jaypipes/ghw"
)

const (
	pciFolder = "sys/bus/pci/devices"
	nvidia    = "10de"
)

// A device is a PCI device that is a NIC or a GPU, or a bridge before one.
type device struct {
	address         string // 0000:17:00.0
	vendor, product string // 15b3, 1021
	class           string // 0207: base class and subclass
	name            string // "" without pci.ids
	driver          string
	node            int      // -1 is unknown
	path            []string // pci0000:15, 0000:15:01.0, ... the address
	link            Link
}

// PCI base classes (PCI Code and ID Assignment Specification): network
// controllers, which InfiniBand adapters are also; displays, which 3D controllers
// are also; processing accelerators.
func (d *device) isNetwork() bool { return strings.HasPrefix(d.class, "02") }

func (d *device) isGPU() bool {
	return strings.HasPrefix(d.class, "03") && d.vendor != aspeed && d.vendor != matrox || strings.HasPrefix(d.class, "12") && d.vendor == nvidia
}

// Vendors of the screens of servers' management controllers.
const (
	aspeed = "1a03"
	matrox = "102b"
)

func (d *device) model() string {
	if d.name == "" && d.vendor != "" {
		return d.vendor + ":" + d.product
	}
	return d.name
}

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]$`)

// readPCI is NICs and GPUs, by address; the bridges before them are in their paths.
func readPCI(t *tree) map[string]*device {
	named := map[string]*ghw.PCIDevice{}
	// readNodes has the NUMA nodes. An error is that there is no pci.ids.
	if info, err := ghw.PCI(append(ghwOptions(t), ghw.WithDisableTopology())...); err == nil {
		for _, d := range info.Devices {
			named[d.Address] = d
		}
	}
	devices := map[string]*device{}
	for _, address := range t.list(pciFolder) {
		d := &device{address: address, node: -1}
		if g := named[address]; g != nil {
			d.vendor, d.product, d.class, d.driver = g.Vendor.ID, g.Product.ID, g.Class.ID+g.Subclass.ID, g.Driver
			d.name = soldAs(g.Product.Name)
		} else {
			d.vendor, d.product = t.hex(address, "vendor"), t.hex(address, "device")
			if class := t.hex(address, "class"); len(class) >= 4 {
				d.class = class[:4]
			}
		}
		if d.isNetwork() || d.isGPU() {
			d.complete(t)
			devices[address] = d
		}
	}
	return devices
}

// hex is a number of a PCI device, without 0x.
func (t *tree) hex(address, file string) string {
	return strings.TrimPrefix(t.read(pciFolder, address, file), "0x")
}

// complete reads where the device is, and how it is connected.
func (d *device) complete(t *tree) {
	at, _ := t.real(path.Join(pciFolder, d.address))
	d.path = pciPath(at)
	if d.driver == "" {
		d.driver = t.link(pciFolder, d.address, "driver")
	}
	if node, ok := t.number(at, "numa_node"); ok {
		d.node = node
	}
	d.link = readLink(t, at)
}

// readLink is a device's PCIe link; the zero value for what has none.
func readLink(t *tree, at string) Link {
	l := Link{Speed: transfers(t.read(at, "current_link_speed")), MaxSpeed: transfers(t.read(at, "max_link_speed"))}
	l.Width, _ = t.number(at, "current_link_width")
	l.MaxWidth, _ = t.number(at, "max_link_width")
	// Some drivers and hypervisors say "Unknown" and width 0 or 255.
	if l.Speed <= 0 || l.Width <= 0 || l.Width > 32 {
		return Link{}
	}
	return l
}

// transfers reads "32.0 GT/s PCIe", in GT/s; 0 is unknown. Older kernels say "8 GT/s".
func transfers(text string) float64 {
	number, _, _ := strings.Cut(text, " ")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !(v > 0 && v < 1000) {
		return 0
	}
	return v
}

var hostBridge = regexp.MustCompile(`^pci[0-9a-f]{4,}:[0-9a-f]{2}$`)

// pciPath is the part of a device's path in sys/devices that is PCI: the host
// bridge, bridges, the device. It is empty for what is not on PCI.
//
//	sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0/net/ibp24s0
func pciPath(at string) []string {
	var out []string
	for _, part := range strings.Split(at, "/") {
		if hostBridge.MatchString(part) || pciAddress.MatchString(part) {
			out = append(out, part)
		}
	}
	return out
}

// soldAs is what is in brackets in pci.ids, "GH100 [H100 SXM5 80GB]", if there is
// something. ghw says unknown where it has no name.
func soldAs(name string) string {
	if strings.EqualFold(name, "unknown") {
		return ""
	}
	if _, sold, ok := strings.Cut(name, "["); ok {
		return strings.TrimSuffix(sold, "]")
	}
	return name
}
