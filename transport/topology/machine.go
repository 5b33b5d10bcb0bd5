package topology

import (
	"fmt"
	"slices"
	"strings"
)

// A Machine is what discovery found: nodes by number, NICs by name (eth2 before eth10), GPUs
// by PCI address. Its JSON is kvferry rail topo's.
type Machine struct {
	Nodes []Node `json:"numa_nodes"`
	NICs  []NIC  `json:"nics"`
	GPUs  []GPU  `json:"gpus"`
}

// A Node is a NUMA node; the location of its memory is cpu:ID.
type Node struct {
	ID     int    `json:"id"`
	Socket int    `json:"socket"` // -1 where the kernel does not say
	CPUs   string `json:"cpus"`   // "0-7,16-23"; "" of memory without any
	Memory int64  `json:"memory_bytes"`
	// Distances to the nodes that this machine has, by their order; 10 is local,
	// 20 takes twice as long. Empty where the kernel does not say.
	Distances []int `json:"distances,omitempty"`
}

// Location is the name of the node's memory.
func (n Node) Location() string { return fmt.Sprintf("cpu:%d", n.ID) }

// A Kind is what a NIC is made of.
type Kind string

// Kinds. Hardware and Stacked carry bytes to other machines.
const (
	Hardware Kind = "hardware" // a device, of a virtual machine also a virtual one
	Stacked  Kind = "stacked"  // on others that are hardware: a bond, a bridge, a VLAN
	Virtual  Kind = "virtual"  // of the kernel's making: veth, tun, a bridge of nothing
	Loopback Kind = "loopback"
)

// A NIC is a network interface with the RDMA devices that belong to it, or an
// RDMA device without an interface.
type NIC struct {
	Name   string       `json:"name"` // of the interface, else of the RDMA device
	Netdev string       `json:"netdev,omitempty"`
	RDMA   []RDMADevice `json:"rdma,omitempty"`
	Kind   Kind         `json:"kind"`
	Driver string       `json:"driver,omitempty"`
	Model  string       `json:"model,omitempty"` // as pci.ids calls it, else vendor:device

	// Up is that the interface carries packets; Enabled that somebody wants it to
	// (ip link set up).
	Up      bool  `json:"up"`
	Enabled bool  `json:"enabled"`
	Speed   int64 `json:"speed_bits,omitempty"` // of the port, bits a second; 0 is unknown

	Node int      `json:"numa_node"` // -1 is unknown
	PCI  string   `json:"pci,omitempty"`
	Path []string `json:"pci_path,omitempty"` // from the host bridge to the device
	Link Link     `json:"pcie,omitzero"`

	// Parts are the interfaces that a stacked one is made of, Master the one that
	// this is a part of and that has its addresses.
	Parts  []string `json:"parts,omitempty"`
	Master string   `json:"master,omitempty"`

	ids      string   // vendor:device, to find others of the model; "" is unknown
	networks networks // of the interface, for warnings
}

// An RDMADevice is a port of a verbs device: of several ports, the one that would be used.
type RDMADevice struct {
	Name     string `json:"name"`
	State    string `json:"state"`                // ACTIVE, DOWN, INIT
	Software bool   `json:"software,omitempty"`   // rxe, siw
	Layer    string `json:"link_layer,omitempty"` // Ethernet, InfiniBand
	Speed    int64  `json:"speed_bits,omitempty"`
}

// Active reports whether the device can be used.
func (d RDMADevice) Active() bool { return d.State == "ACTIVE" }

// A Link is a device's PCIe link as it was trained, and as it could be: as the device could,
// that is, which the slot may not. The zero value is unknown.
type Link struct {
	Speed    float64 `json:"gt_s"` // GT/s, of each lane
	Width    int     `json:"lanes"`
	MaxSpeed float64 `json:"max_gt_s"`
	MaxWidth int     `json:"max_lanes"`
}

// String is like "32 GT/s x16".
func (l Link) String() string {
	if l.Width == 0 {
		return ""
	}
	return fmt.Sprintf("%g GT/s x%d", l.Speed, l.Width)
}

// rate is what speed and width carry in bits a second, before packet headers:
// 8b/10b coding up to 5 GT/s, 128b/130b up to 32 GT/s, and flits without a
// code beyond (PCI Express Base Specification 6.0, chapter 4).
func rate(speed float64, width int) float64 {
	code := 1.0
	switch {
	case speed <= 5:
		code = 8. / 10
	case speed <= 32:
		code = 128. / 130
	}
	return speed * 1e9 * code * float64(width)
}

// Rate is what the link carries in bits a second in one direction, before packet headers,
// which take a further 5 to 15 %: some 24 bytes a packet of 128 to 512.
func (l Link) Rate() float64 { return rate(l.Speed, l.Width) }

// A GPU is a display or compute device.
type GPU struct {
	// Location of its memory: cuda:N for the Nth GPU of NVIDIA's in PCI order,
	// "" for others.
	Location string   `json:"location,omitempty"`
	Model    string   `json:"model"`
	Node     int      `json:"numa_node"` // -1 is unknown
	PCI      string   `json:"pci"`
	Path     []string `json:"pci_path"`
	Link     Link     `json:"pcie,omitzero"`
}

// Discover reads a machine's files: root is / for this one, the root folder of
// another, or a capture (see [Capture]). It fails if there is nothing like a machine at
// root; what is missing or unreadable in it is left out or unknown.
func Discover(root string) (*Machine, error) {
	var m *Machine
	err := withTree(root, func(t *tree) error {
		m = discover(t)
		return nil
	})
	return m, err
}

func discover(t *tree) *Machine {
	m := &Machine{Nodes: readNodes(t), GPUs: []GPU{}}
	devices := readPCI(t)
	m.NICs = readNICs(t, devices)
	for _, d := range devices {
		if d.isGPU() {
			m.GPUs = append(m.GPUs, GPU{Model: d.model(), Node: d.node, PCI: d.address, Path: d.path, Link: d.link})
		}
	}
	// Numbers in a PCI address have a fixed width up to domain ffff: text sorts as they do.
	slices.SortFunc(m.GPUs, func(a, b GPU) int { return strings.Compare(a.PCI, b.PCI) })
	cuda := 0
	for i := range m.GPUs {
		if devices[m.GPUs[i].PCI].vendor == nvidia {
			m.GPUs[i].Location = fmt.Sprintf("cuda:%d", cuda)
			cuda++
		}
	}
	return m
}

// nic is the NIC with this interface or RDMA device, nil if there is none.
func (m *Machine) nic(name string) *NIC {
	for i := range m.NICs {
		if slices.Contains(m.NICs[i].names(), name) {
			return &m.NICs[i]
		}
	}
	return nil
}

// names are all that the NIC is called: its RDMA devices, then its interface.
func (n *NIC) names() []string {
	var names []string
	for _, d := range n.RDMA {
		names = append(names, d.Name)
	}
	if n.Netdev != "" {
		names = append(names, n.Netdev)
	}
	return names
}

// node is the index in Nodes of a node, -1 if it is unknown. Where there is one
// node, all is on it: kernels say -1 there.
func (m *Machine) node(id int) int {
	if len(m.Nodes) == 1 {
		return 0
	}
	return slices.IndexFunc(m.Nodes, func(n Node) bool { return n.ID == id })
}
