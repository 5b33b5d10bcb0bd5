package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Warning is something that looks wrong, and what to do about it. None keeps a matrix from
// being used.
type Warning struct {
	NIC  string `json:"nic,omitempty"` // "" if it is about the machine
	Text string `json:"text"`
}

func (w Warning) String() string {
	if w.NIC == "" {
		return w.Text
	}
	return w.NIC + " " + w.Text
}

// warnings are about what the options leave in the machine: a NIC that was excluded may be as
// slow or as far as it likes. Those of NICs come first, in their order, then those of the whole.
func (m *Machine) warnings(matrix Matrix, o Options) []Warning {
	var all []Warning
	var unplaced []string
	for i := range m.NICs {
		n := &m.NICs[i]
		if matches(o.Exclude, n) || len(o.Include) > 0 && !matches(o.Include, n) {
			continue
		}
		for _, text := range m.faults(n, len(o.Include) > 0) {
			all = append(all, Warning{n.Name, text})
		}
		// On one node all NICs are, whatever they say.
		if len(m.Nodes) > 1 && m.node(n.Node) < 0 && n.Kind == Hardware {
			unplaced = append(unplaced, n.Name)
		}
	}
	machine := func(format string, args ...any) {
		all = append(all, Warning{Text: fmt.Sprintf(format, args...)})
	}
	for _, g := range m.GPUs {
		// Idle GPUs lower the speed of their lanes, but not how many there are.
		if g.Location != "" && g.Link.Width > 0 && g.Link.Width < g.Link.MaxWidth {
			machine("%s at %s has a PCIe link of %d lanes, and could have %d: check the slot, and reseat the card", g.Location, g.PCI, g.Link.Width, g.Link.MaxWidth)
		}
	}
	if len(unplaced) > 0 {
		machine("the NUMA node is unknown of %s: if you know it, write it into a matrix (kvferry rail topo --format matrix makes one, --matrix reads it)", strings.Join(unplaced, ", "))
	}
	kinds := m.kinds()
	if len(o.Include) > 0 {
		kinds = nil // it has been said what to use
	}
	switch {
	case len(matrix.names()) == 0 && len(o.Include)+len(o.Exclude) > 0:
		machine("no NIC is left: include others, or exclude fewer")
	case len(matrix.names()) == 0 && o.Names == RDMANames:
		machine("no NIC has an RDMA device that is active")
	case len(matrix.names()) == 0:
		machine("no NIC is up: bring one up (ip link set DEV up), or include one by its name")
	case slices.Contains(kinds, Virtual):
		machine("no hardware NIC is up or to be seen here: virtual interfaces are used, as in a container, and the NICs below them are unknown")
	case slices.Contains(kinds, Loopback):
		machine("no NIC is up: loopback is used, which reaches only this machine")
	case len(m.Nodes) > 1:
		all = append(all, m.lonelyNodes(matrix)...)
	}
	return append(all, m.unknownNames(matrix, o)...)
}

// faults are what looks wrong with a NIC. included is that a filter names the NICs to use: it
// is then used although it is down, which is said all the same. Speeds and routes are looked
// at where there is a link: without one a port has no speed, and PCIe may be asleep.
func (m *Machine) faults(n *NIC, included bool) []string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if !n.physical() {
		if len(n.RDMA) > 0 && n.Netdev == "" {
			add("is an RDMA device whose network interface is not to be seen here: its place is unknown")
		}
		return all
	}
	active := slices.ContainsFunc(n.RDMA, RDMADevice.Active)
	out := ", so it is left out"
	switch {
	case included:
		out = ""
	case active:
		out = ", so the interface is left out"
	}
	switch {
	case n.Netdev == "" || n.Up:
	case !n.Enabled:
		add("is down%s: ip link set %s up", out, n.Netdev)
	default:
		add("has no link%s: check its cable and the switch's port", out)
	}
	for _, d := range n.RDMA {
		if d.Active() || n.Netdev != "" && !n.Up && d.State == "DOWN" {
			continue // it is used, or the interface has said it
		}
		what := map[string]string{
			"INIT": "no subnet manager has set it up: check opensm",
			"DOWN": "check its cable and the switch's port",
		}[d.State]
		if what == "" {
			what = "ibv_devinfo shows more"
		}
		add("has its RDMA device %s in state %s: %s", d.Name, d.State, what)
	}
	if n.Master != "" && !included {
		add("is a part of %s: peers reach it only through that", n.Master)
	}
	if n.Up || active {
		all = append(all, m.routing(n)...)
		all = append(all, m.training(n)...)
	}
	return all
}

// routing finds a NIC that another interface stands in for: bytes that are sent from its address
// leave by the other, and two rails share one cable. Nothing else shows it but the rate.
func (m *Machine) routing(n *NIC) []string {
	if n.Netdev == "" || !n.Up || n.Master != "" {
		return nil
	}
	anyAddressed := slices.ContainsFunc(m.NICs, func(other NIC) bool { return other.networks.addressed() && other.Kind != Loopback })
	onTop := slices.ContainsFunc(m.NICs, func(other NIC) bool { return slices.Contains(other.Parts, n.Netdev) })
	if !n.networks.addressed() {
		if anyAddressed && !onTop && len(n.RDMA) == 0 {
			return []string{fmt.Sprintf("has no address: peers reach this machine only through others; ip addr add ADDRESS dev %s", n.Netdev)}
		}
		return nil
	}
	for i := range m.NICs {
		if other := &m.NICs[i]; other != n && other.Up && other.networks.shadows(n.networks) {
			return []string{fmt.Sprintf("is in the same network as %s, whose route comes first: what is sent from its address leaves through %[1]s; give it a network of its own or, if there is none yet, a rule (ip rule add from ADDRESS table N)", other.Netdev)}
		}
	}
	return nil
}

// training finds links that run below what they could: PCIe links that were trained to fewer
// lanes or a lower speed, and ports of a lower speed than their like.
func (m *Machine) training(n *NIC) []string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	l := n.Link
	// 0.1 % are for the rounding of rates, not for links: the next lower is half as fast.
	if l.Width > 0 && rate(l.MaxSpeed, l.MaxWidth) > l.Rate()*1.001 {
		text := fmt.Sprintf("has a PCIe link of %s, and could have %s", l, Link{Speed: l.MaxSpeed, Width: l.MaxWidth})
		switch {
		case n.Speed == 0:
		case l.Rate() < float64(n.Speed):
			text += fmt.Sprintf(": %s are less than the %s of its port", FormatSpeed(l.Rate()), FormatSpeed(float64(n.Speed)))
		default:
			text += fmt.Sprintf(": %s are enough for the %s of its port", FormatSpeed(l.Rate()), FormatSpeed(float64(n.Speed)))
		}
		add("%s; check the slot, and reseat the card", text)
	} else if l.Width > 0 && l.Rate() < float64(n.Speed) {
		add("has a PCIe link of %s, %s, which is less than the %s of its port", l, FormatSpeed(l.Rate()), FormatSpeed(float64(n.Speed)))
	}
	// What a port could do is not in sysfs; that of another NIC of the same model is.
	for i := range m.NICs {
		other := &m.NICs[i]
		if n.ids != "" && other.ids == n.ids && n.Speed > 0 && other.Speed > n.Speed {
			add("runs at %s, while %s, the same model, runs at %s: check the cable and the switch's port", FormatSpeed(float64(n.Speed)), other.Name, FormatSpeed(float64(other.Speed)))
			break
		}
	}
	if fast := m.fastest(); n.Speed > 0 && n.Master == "" && len(n.Parts) != 1 && n.Speed < fast.Speed/slow {
		add("runs at %s, %s at %s: exclude it if it is for management", FormatSpeed(float64(n.Speed)), fast.Name, FormatSpeed(float64(fast.Speed)))
	}
	return all
}

// slow is how many times slower than the fastest a NIC may be without a word: 25 Gbit/s beside
// 200 may be meant, 1 beside 25 is most likely a management port.
const slow = 10

// fastest is the physical NIC with the highest speed of its port; one of speed 0 if none has.
func (m *Machine) fastest() *NIC {
	best := &NIC{}
	for i := range m.NICs {
		if n := &m.NICs[i]; n.physical() && n.Speed > best.Speed {
			best = n
		}
	}
	return best
}

// FormatSpeed is bits a second as NICs are sold: "100 Gbit/s".
func FormatSpeed(bits float64) string {
	switch {
	case bits <= 0:
		return ""
	case bits >= 1e11:
		return fmt.Sprintf("%.0f Gbit/s", bits/1e9)
	case bits >= 1e9:
		return fmt.Sprintf("%.3g Gbit/s", bits/1e9)
	}
	return fmt.Sprintf("%.3g Mbit/s", bits/1e6)
}

// lonelyNodes finds nodes whose memory all goes by other nodes' NICs, where NICs
// do say where they are. Nodes without CPUs are left out: memory on an expansion card has no
// NIC of its own anywhere.
func (m *Machine) lonelyNodes(matrix Matrix) []Warning {
	var all []Warning
	for _, n := range m.Nodes {
		row, ok := matrix[n.Location()]
		if !ok || n.CPUs == "" {
			continue
		}
		near := slices.ContainsFunc(slices.Concat(row.Preferred, row.Available), func(name string) bool {
			r := m.Why(n.Location(), name)
			return r.Nearness <= SameSocket || r.Nearness == Unknown
		})
		if !near {
			all = append(all, Warning{Text: fmt.Sprintf("NUMA node %d has no NIC that is used: what its memory sends and receives crosses to another node; keep KV memory elsewhere, or give it a NIC", n.ID)})
		}
	}
	return all
}

// unknownNames finds what an override has wrong.
func (m *Machine) unknownNames(matrix Matrix, o Options) []Warning {
	var all []Warning
	locations := map[string]bool{Any: true}
	for _, n := range m.Nodes {
		locations[n.Location()] = true
	}
	for _, g := range m.GPUs {
		locations[g.Location] = true
	}
	for _, location := range o.Override.Locations() {
		if !locations[location] {
			all = append(all, Warning{Text: fmt.Sprintf("the matrix has a row for %s, which this machine has not", location)})
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(o.Override.names()), compareNames) {
		if m.nic(name) == nil {
			all = append(all, Warning{Text: fmt.Sprintf("the matrix names %s, which is no NIC of this machine (there are: %s)", name, strings.Join(m.nicNames(), ", "))})
		}
	}
	return all
}

func (m *Machine) nicNames() []string {
	var names []string
	for i := range m.NICs {
		names = append(names, m.NICs[i].names()...)
	}
	return names
}
