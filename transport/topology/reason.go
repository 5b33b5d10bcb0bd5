package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Nearness is where a NIC is as seen from a memory location, nearest first.
type Nearness int

// Nearnesses. nvidia-smi topo calls them PIX or PXB, PHB, NODE and SYS.
const (
	SameSwitch   Nearness = iota // below one PCIe switch, or one port of it
	SameRoot                     // below one host bridge (root complex): through the CPU
	SameNode                     // on the same NUMA node
	SameSocket                   // on another node of the same socket
	AcrossNodes                  // another node, on a machine that does not tell sockets
	AcrossSocket                 // on another socket
	Unknown                      // the NIC or the memory does not say where it is
)

// A Reason is why a NIC is near a location or far from it.
type Reason struct {
	Nearness Nearness
	// Hops on the PCI path between a GPU and the NIC, 0 if that is unknown or the
	// location is no GPU. Across host bridges it is the sum of both ways to them.
	Hops int
	// Distance of the NUMA nodes as the kernel gives it, 10 is local; 0 is unknown.
	Distance int
}

// words are the short and the long form of a Nearness.
var words = map[Nearness][2]string{
	SameSwitch:   {"switch", "same PCIe switch"},
	SameRoot:     {"root", "same host bridge (PCIe root complex)"},
	SameNode:     {"node", "same NUMA node"},
	SameSocket:   {"socket", "another NUMA node of the same socket"},
	AcrossNodes:  {"far", "another NUMA node"},
	AcrossSocket: {"across", "across sockets"},
	Unknown:      {"unknown", "NUMA node unknown"},
}

// Short is one word.
func (n Nearness) Short() string { return words[n][0] }

func (n Nearness) String() string { return words[n][1] }

// MarshalText implements encoding.TextMarshaler.
func (n Nearness) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

func (r Reason) String() string {
	switch {
	case r.Hops > 0 && r.Nearness < SameNode:
		return fmt.Sprintf("%s, %d hops", r.Nearness, r.Hops)
	case r.Distance > 10:
		return fmt.Sprintf("%s, distance %d", r.Nearness, r.Distance)
	}
	return r.Nearness.String()
}

// Why says where a NIC, by any of its names, is as seen from a location; Unknown if the
// machine has not the one or the other.
func (m *Machine) Why(location, nic string) Reason {
	n := m.nic(nic)
	if n == nil {
		return Reason{Nearness: Unknown}
	}
	return m.reason(location, n)
}

// reason is Why of a NIC of the machine's.
func (m *Machine) reason(location string, n *NIC) Reason {
	if n.physical() && len(n.Parts) > 0 {
		// Nobody knows which part a packet takes, so the farthest counts.
		var worst Reason
		for i, name := range n.Parts {
			part := m.nic(name)
			if part == nil {
				return Reason{Nearness: Unknown}
			}
			if r := m.reason(location, part); i == 0 || r.farther(worst) {
				worst = r
			}
		}
		return worst
	}
	if g := m.gpu(location); g != nil {
		r := m.between(m.node(g.Node), n)
		common := commonPrefix(g.Path, n.Path)
		if common == 0 {
			if len(g.Path) > 0 && len(n.Path) > 0 {
				r.Hops = len(g.Path) + len(n.Path)
			}
			return r
		}
		r.Hops = len(g.Path) + len(n.Path) - 2*common
		r.Nearness = SameRoot
		if common > 1 { // more than the host bridge
			r.Nearness = SameSwitch
		}
		return r
	}
	id, err := strconv.Atoi(strings.TrimPrefix(location, "cpu:"))
	if err != nil || !strings.HasPrefix(location, "cpu:") {
		return Reason{Nearness: Unknown}
	}
	return m.between(slices.IndexFunc(m.Nodes, func(n Node) bool { return n.ID == id }), n)
}

// between compares the node with this index in Nodes with the NIC's.
func (m *Machine) between(from int, n *NIC) Reason {
	to := m.node(n.Node)
	if n.Kind == Loopback {
		to = from // through memory
	}
	if from < 0 || to < 0 {
		return Reason{Nearness: Unknown}
	}
	a, b := m.Nodes[from], m.Nodes[to]
	r := Reason{Nearness: SameNode, Distance: m.distance(from, to)}
	switch {
	case from == to:
	case a.Socket < 0 || b.Socket < 0:
		r.Nearness = AcrossNodes
	case a.Socket == b.Socket:
		r.Nearness = SameSocket
	default:
		r.Nearness = AcrossSocket
	}
	return r
}

// distance is the kernel's, or what ACPI means by local and remote where it says
// nothing.
func (m *Machine) distance(from, to int) int {
	if d := m.Nodes[from].Distances; to < len(d) {
		return d[to]
	}
	if from == to {
		return 10
	}
	return 20
}

// farther orders reasons by nearness, then distance, then hops; hops matter between PCI
// devices of one node.
func (r Reason) farther(than Reason) bool {
	return cmp.Or(cmp.Compare(r.Nearness, than.Nearness), cmp.Compare(r.Distance, than.Distance), cmp.Compare(r.Hops, than.Hops)) > 0
}

func (m *Machine) gpu(location string) *GPU {
	for i := range m.GPUs {
		if g := &m.GPUs[i]; g.Location != "" && g.Location == location {
			return g
		}
	}
	return nil
}

func commonPrefix(a, b []string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
