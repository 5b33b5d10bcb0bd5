package topology

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// Contents says what a capture contains, for whoever is asked to send one.
const Contents = "names, states and speeds of network interfaces and RDMA devices; PCI addresses, " +
	"IDs, links and NUMA nodes of NICs, GPUs and the bridges before them; CPU lists, sizes and distances of NUMA nodes. " +
	"No serial numbers or host names, no MAC addresses and GUIDs but in names that are made of them (enx001122334455); " +
	"IP networks are renumbered"

// Capture is the files of a machine that discovery reads, without what is nobody's business:
// see [Contents], which has to say what is changed here. root is as in [Discover].
func Capture(root string) (Snapshot, error) {
	var s Snapshot
	err := withTree(root, func(t *tree) error {
		_, s = capture(t)
		return nil
	})
	return s, err
}

// capture also returns the machine that it is of. Everything that discovery reads goes through
// the tree, which remembers it, so a file that is read tomorrow is in tomorrow's captures
// without a list of them; what it must not contain is taken out here.
func capture(t *tree) (*Machine, Snapshot) {
	m := discover(t)
	kept := map[string]bool{}
	for _, n := range m.NICs {
		for _, part := range n.Path {
			kept[part] = true
		}
	}
	for _, g := range m.GPUs {
		for _, part := range g.Path {
			kept[part] = true
		}
	}
	readForGHW(t, m, kept)
	s := maps.Clone(t.seen)
	for name, e := range s {
		parts := pciPath(name)
		switch {
		case len(parts) > 0 && !kept[parts[len(parts)-1]]:
			delete(s, name) // another PCI device
		case name == routeFile || strings.HasPrefix(name, "proc/") && strings.HasSuffix(name, "/net/route"):
			delete(s, name)
			s[routeFile] = entry{Text: hideRoutes(e.Text)}
		case name == inet6File || strings.HasPrefix(name, "proc/") && strings.HasSuffix(name, "/net/if_inet6"):
			delete(s, name)
			s[inet6File] = entry{Text: hideAddresses(e.Text)}
		case name == "proc/net" || name == "proc/self":
			delete(s, name) // symlinks to this process
		case path.Base(name) == "meminfo":
			s[name] = entry{Text: someMemory(e.Text)}
		}
	}
	return m, s
}

// readForGHW reads what ghw reads of nodes and of the devices that are kept: it does
// not ask the tree, and would find a capture without these files incomplete.
func readForGHW(t *tree, m *Machine, kept map[string]bool) {
	t.read("proc/meminfo")
	for _, n := range m.Nodes {
		t.list(nodeFolder, fmt.Sprintf("node%d", n.ID), "hugepages")
	}
	for address := range kept {
		for _, file := range []string{"vendor", "device", "class", "modalias", "numa_node"} {
			t.read(pciFolder, address, file)
		}
		t.link(pciFolder, address, "driver")
	}
}

// hideRoutes keeps which interfaces have a network in common, not which it is:
// networks are numbered 10.0.0.0, 10.1.0.0 and so on, and gateways are gone.
func hideRoutes(text string) string {
	numbers := map[string]int{}
	lines := []string{"Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask"}
	for _, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		if len(f) < routeColumns || f[0] == "Iface" || f[2] != "00000000" || f[7] == "00000000" {
			continue
		}
		key := f[1] + "/" + f[7]
		if _, ok := numbers[key]; !ok {
			numbers[key] = len(numbers)
		}
		// The kernel writes addresses as numbers of its own byte order, here little-endian:
		// 0A is the first byte of the address, the last of the number.
		f[1] = fmt.Sprintf("%04X%02X0A", numbers[key]>>8&0xff, numbers[key]&0xff)
		lines = append(lines, strings.Join(f[:routeColumns], "\t"))
	}
	return strings.Join(lines, "\n") + "\n"
}

// hideAddresses keeps which interfaces have an IPv6 address of which scope. Lines that are
// alike without their address are one: nothing asks how many there are.
func hideAddresses(text string) string {
	var lines []string
	for _, line := range strings.Split(text, "\n") {
		if f := strings.Fields(line); len(f) == 6 {
			f[0] = strings.Repeat("0", 32)
			lines = append(lines, strings.Join(f, " "))
		}
	}
	return strings.Join(append(slices.Compact(lines), ""), "\n")
}

// someMemory keeps the lines of a meminfo that ghw and readNodes need: how much is
// in use is nobody's business, and changes.
func someMemory(text string) string {
	var b strings.Builder
	for _, line := range strings.SplitAfter(text, "\n") {
		for _, field := range []string{"MemTotal:", "Hugepagesize:", "Hugetlb:"} {
			if strings.Contains(line, field) {
				b.WriteString(line)
			}
		}
	}
	return b.String()
}
