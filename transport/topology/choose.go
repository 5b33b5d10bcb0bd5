package topology

import (
	"fmt"
	"path"
	"slices"

	"kvferry/internal/config"
)

// Names are which names of NICs a matrix lists.
type Names string

// Names.
const (
	AllNames  Names = "all"  // RDMA devices and interfaces
	RDMANames Names = "rdma" // RDMA devices only, as Mooncake's files do
	NetNames  Names = "net"  // interfaces only
)

// Options say what a matrix is to contain. The zero value is all that is up.
type Options struct {
	// Include are patterns of NICs by any of their names (eth*, mlx5_[0-3], as
	// path.Match reads them): only these, also those that are down or would be left
	// out otherwise. Exclude takes away, and has the last word.
	Include, Exclude []string
	Names            Names // default AllNames
	// Override has rows instead of those that discovery would make. Where it names
	// a NIC by some of its names, the others are added. Exclude applies to it,
	// Include does not: it has said what to include.
	Override Matrix
}

// Validate lists every fault by its field, as a [config.Invalid].
func (o Options) Validate() error {
	var bad config.Faults
	for _, list := range []struct {
		field    string
		patterns []string
	}{{"Include", o.Include}, {"Exclude", o.Exclude}} {
		for i, p := range list.patterns {
			if _, err := path.Match(p, ""); err != nil || p == "" {
				bad.Add(fmt.Sprintf("%s[%d]", list.field, i), p, "write a name or a pattern like eth* or mlx5_[0-3]")
			}
		}
	}
	switch o.Names {
	case "", AllNames, RDMANames, NetNames:
	default:
		bad.Add("Names", o.Names, "use %s, %s or %s", AllNames, RDMANames, NetNames)
	}
	return bad.Err("topology.Options")
}

// matches reports whether one of a NIC's names fits one of the patterns, which are valid.
func matches(patterns []string, n *NIC) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		return slices.ContainsFunc(n.names(), func(name string) bool {
			ok, _ := path.Match(p, name)
			return ok
		})
	})
}

// A candidate is a NIC that may be in a matrix, by the names that it has there.
type candidate struct {
	nic   *NIC
	names []string
}

// Matrix says which NICs to use for each location of the machine, see the package
// comment for the rules, and what looks wrong. It may be empty: that is a warning, not an
// error. Errors are a [config.Invalid] of the options.
func (m *Machine) Matrix(o Options) (Matrix, []Warning, error) {
	if err := o.Validate(); err != nil {
		return nil, nil, err
	}
	found := m.candidates(o)
	matrix := Matrix{}
	for _, n := range m.Nodes {
		matrix.put(n.Location(), found, m.nearestOfNode(n.Location(), found))
	}
	for i := range m.GPUs {
		if g := &m.GPUs[i]; g.Location != "" {
			matrix.put(g.Location, found, m.nearestOfGPU(g, found))
		}
	}
	m.override(matrix, o)
	return matrix, m.warnings(matrix, o), nil
}

// put makes the row of a location, all names of a NIC side by side. A location without a NIC
// gets none: no row and an empty one are different to [Matrix.Rank].
func (m Matrix) put(location string, all []candidate, preferred map[*NIC]bool) {
	var c Choice
	for _, candidate := range all {
		for _, name := range candidate.names {
			in := slices.Contains(c.Preferred, name) || slices.Contains(c.Available, name)
			switch {
			case in: // a device with two ports and one name
			case preferred[candidate.nic]:
				c.Preferred = append(c.Preferred, name)
			default:
				c.Available = append(c.Available, name)
			}
		}
	}
	if len(c.Preferred)+len(c.Available) > 0 {
		m[location] = c
	}
}

// candidates are the NICs that may be used.
func (m *Machine) candidates(o Options) []candidate {
	kinds := m.kinds()
	var found []candidate
	for i := range m.NICs {
		n := &m.NICs[i]
		included := len(o.Include) > 0
		if matches(o.Exclude, n) || included && !matches(o.Include, n) || !included && !slices.Contains(kinds, n.Kind) {
			continue
		}
		if names := n.usable(o.Names, included); len(names) > 0 {
			found = append(found, candidate{n, names})
		}
	}
	return found
}

// kinds are the kinds of NICs that are used unless a filter includes others: what
// reaches other machines by itself, else whatever there is. A filter that
// excludes all of those does not make others of use.
func (m *Machine) kinds() []Kind {
	for _, kinds := range [][]Kind{{Hardware, Stacked}, {Virtual}, {Loopback}} {
		if slices.ContainsFunc(m.NICs, func(n NIC) bool {
			return slices.Contains(kinds, n.Kind) && len(n.usable(AllNames, false)) > 0
		}) {
			return kinds
		}
	}
	return nil
}

// usable are the names that rails can have: of RDMA devices that are active, and of
// an interface that is up and has its addresses itself. included takes all.
func (n *NIC) usable(which Names, included bool) []string {
	var names []string
	for _, d := range n.RDMA {
		if which != NetNames && (included || d.Active()) {
			names = append(names, d.Name)
		}
	}
	if which != RDMANames && n.Netdev != "" && (included || n.Up && n.Master == "") {
		names = append(names, n.Netdev)
	}
	return names
}

// nearestOfNode is the NICs at the least distance from a node: its own, if it has
// any. Those that do not say where they are count if none says.
func (m *Machine) nearestOfNode(location string, all []candidate) map[*NIC]bool {
	near := map[*NIC]bool{}
	least := Reason{Nearness: Unknown}
	for _, c := range all {
		r := m.reason(location, c.nic)
		r.Hops = 0
		if least.farther(r) {
			clear(near)
			least = r
		}
		if !r.farther(least) {
			near[c.nic] = true
		}
	}
	return near
}

// nearestOfGPU is the NICs with the fewest hops to the GPU, among those of its
// node if there are any: hops are no measure across sockets, where the link between them
// costs more than any bridge. Of NICs without a PCI path all count.
func (m *Machine) nearestOfGPU(g *GPU, all []candidate) map[*NIC]bool {
	local := slices.DeleteFunc(slices.Clone(all), func(c candidate) bool { return m.reason(g.Location, c.nic).Nearness > SameNode })
	if len(local) == 0 {
		local = all
	}
	near := map[*NIC]bool{}
	least := 0
	for _, c := range local {
		hops := m.reason(g.Location, c.nic).Hops
		if hops == 0 {
			continue // not on PCI
		}
		if least == 0 || hops < least {
			clear(near)
			least = hops
		}
		if hops == least {
			near[c.nic] = true
		}
	}
	if len(near) == 0 {
		for _, c := range local {
			near[c.nic] = true
		}
	}
	return near
}

// override puts the rows of o.Override into the matrix, also those of locations and of NICs
// that the machine does not have: these are warnings, and the row may be meant for another
// machine too.
func (m *Machine) override(matrix Matrix, o Options) {
	for location, row := range o.Override {
		seen := map[string]bool{}
		// In this order: a name that preferred ones stand for is not available, too.
		preferred := m.complete(row.Preferred, row, o, seen)
		available := m.complete(row.Available, row, o, seen)
		if len(preferred)+len(available) > 0 { // else all are excluded
			matrix[location] = Choice{preferred, available}
		}
	}
}

// complete is one list of an overriding row, less the NICs that are excluded, with all names
// of the others. seen has the names that the row has so far, and gets these.
func (m *Machine) complete(names []string, row Choice, o Options, seen map[string]bool) (out []string) {
	for _, name := range names {
		n := m.nic(name)
		if n != nil && matches(o.Exclude, n) {
			continue
		}
		all := []string{name}
		if n != nil && (o.Names == "" || o.Names == AllNames) {
			all = append(all, n.unplaced(row)...)
		}
		for _, name := range all {
			if !seen[name] {
				out = append(out, name)
				seen[name] = true
			}
		}
	}
	return out
}

// unplaced are the NIC's usable names that a row does not place itself.
func (n *NIC) unplaced(row Choice) []string {
	return slices.DeleteFunc(n.usable(AllNames, false), func(name string) bool {
		return slices.Contains(row.Preferred, name) || slices.Contains(row.Available, name)
	})
}
