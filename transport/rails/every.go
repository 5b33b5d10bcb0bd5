package rails

import (
	"fmt"
	"maps"
	"net"
	"slices"

	"kvferry/transport/topology"
)

// Every stands for TCP over each NIC of this machine that a matrix would have, as [EveryNIC] finds them.
// No interface of Linux has this name.
const Every = "tcp/all"

// EveryNIC is what Every stands for: the specs of all NICs that package topology finds fit and that have an
// address that peers can dial. So bridges and pairs of containers are not in it where there is hardware. Where nothing
// is found, it is the loopback interface.
func EveryNIC() ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: name the NICs", Every, err)
	}
	for _, i := range all {
		if !described(i.Name, "/sys/class/net") {
			return nil, fmt.Errorf("%s: /sys is of another network namespace, and says nothing of %s: name the NICs (or mount -t sysfs sysfs /sys in this one)", Every, i.Name)
		}
	}
	machine, err := topology.Discover("/")
	if err != nil {
		return nil, fmt.Errorf("%s: %w: name the NICs", Every, err)
	}
	return every(machine, interfaceAddress)
}

// every is EveryNIC of a machine, whose interfaces have addresses.
func every(machine *topology.Machine, address func(name string) (string, error)) ([]string, error) {
	matrix, _, err := machine.Matrix(topology.Options{Names: topology.NetNames})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Every, err)
	}
	found := map[string]bool{}
	for _, row := range matrix {
		for _, name := range slices.Concat(row.Preferred, row.Available) {
			if _, err := address(name); err == nil {
				found[TCP+"/"+name] = true
			}
		}
	}
	if len(found) == 0 {
		return []string{TCP + "/lo"}, nil
	}
	return slices.Sorted(maps.Keys(found)), nil
}
