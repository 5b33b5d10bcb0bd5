package topology

import "testing"

// A stacked interface is as far as the farthest of its parts, in whatever order they come.
func TestFarthestPart(t *testing.T) {
	nic := func(name string, node int) NIC { return NIC{Name: name, Netdev: name, Kind: Hardware, Node: node} }
	for _, parts := range [][]string{{"far", "near"}, {"near", "far"}, {"near", "far", "near"}, {"far"}} {
		m := &Machine{
			Nodes: []Node{{ID: 0, Socket: 0}, {ID: 1, Socket: 1}},
			NICs:  []NIC{nic("near", 0), nic("far", 1), {Name: "bond0", Netdev: "bond0", Kind: Stacked, Node: -1, Parts: parts}},
		}
		if got := m.Why("cpu:0", "bond0"); got.Nearness != AcrossSocket || got.Distance != 20 {
			t.Errorf("made of %v: %v", parts, got)
		}
		if got := m.Why("cpu:1", "bond0"); len(parts) > 1 && got.Nearness != AcrossSocket || len(parts) == 1 && got.Nearness != SameNode {
			t.Errorf("made of %v, from the other node: %v", parts, got)
		}
	}
}
