package topology

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

const rdmaFolder = "sys/class/infiniband"

// readRDMA adds the RDMA devices to the NICs that they belong to, and makes a NIC
// of one that belongs to none, as in a container that has the device but not the interface.
func readRDMA(t *tree, nics *[]NIC, devices map[string]*device) {
	owners := rdmaInterfaces(t, *nics)
	for _, name := range t.list(rdmaFolder) {
		at, mode := t.real(path.Join(rdmaFolder, name))
		if at == "" || !mode.IsDir() {
			continue
		}
		d := readRDMADevice(t, name)
		owned := false
		for i := range *nics {
			if n := &(*nics)[i]; slices.Contains(owners[name], n.Netdev) {
				n.RDMA = append(n.RDMA, d)
				owned = true
				// An IPoIB interface says nothing of the port's speed.
				if n.Speed == 0 && !d.Software {
					n.Speed = d.Speed
				}
			}
		}
		if !owned {
			n := NIC{Name: name, Kind: Virtual, Node: -1, RDMA: []RDMADevice{d}, Speed: d.Speed}
			if t.has(at, "device") {
				n.Kind = Hardware
				n.locate(t, path.Join(at, "device"), devices)
			}
			*nics = append(*nics, n)
		}
	}
}

// readRDMADevice reads the first port that is active, else the first.
func readRDMADevice(t *tree, name string) RDMADevice {
	d := RDMADevice{Name: name, State: "NO PORT", Software: !t.has(rdmaFolder, name, "device")}
	for i, port := range t.list(rdmaFolder, name, "ports") {
		p := path.Join(rdmaFolder, name, "ports", port)
		_, state, _ := strings.Cut(t.read(p, "state"), ": ") // "4: ACTIVE"
		if i > 0 && state != "ACTIVE" {
			continue
		}
		d.State, d.Layer = state, t.read(p, "link_layer")
		// "400 Gb/sec (4X NDR)". Software devices make one up, and so does a port
		// that is down.
		gbit, _, _ := strings.Cut(t.read(p, "rate"), " ")
		if v, err := strconv.ParseFloat(gbit, 64); err == nil && v > 0 && v < 1e6 && !d.Software && state == "ACTIVE" {
			d.Speed = int64(v * 1e9)
		}
		if d.Active() {
			break
		}
	}
	return d
}

// rdmaInterfaces says which interfaces each RDMA device belongs to. sysfs tells
// in one of three ways; rdmamap adds what it knows of this machine.
func rdmaInterfaces(t *tree, nics []NIC) map[string][]string {
	var names []string
	for _, n := range nics {
		names = append(names, n.Netdev)
	}
	owners := sysfsInterfaces(t, names)
	if t.live {
		for device, interfaces := range mapInterfaces(names) {
			if len(owners[device]) == 0 {
				owners[device] = interfaces
			}
		}
	}
	return owners
}

// sysfsInterfaces is what sysfs says of which interfaces, by name, a device belongs to. names
// are those of the machine's interfaces.
func sysfsInterfaces(t *tree, names []string) map[string][]string {
	owners := map[string][]string{}
	for _, device := range t.list(rdmaFolder) {
		// A software device (rxe) has no device link, and names its interface.
		if parent := t.read(rdmaFolder, device, "parent"); parent != "" {
			owners[device] = []string{parent}
			continue
		}
		// Others are the same PCI function as their interface. So are representors,
		// and both interfaces of a card with two ports on one function, which have a
		// device each or one for both: GIDs tell. GIDs of VLANs say nothing new, but
		// those of a bond that has taken over the device (mlx5_bond_0) do.
		gids := gidInterfaces(t, device)
		function, _ := t.real(path.Join(rdmaFolder, device, "device"))
		var same []string
		for _, name := range names {
			at, _ := t.real(path.Join(netFolder, name, "device"))
			if at != "" && at == function && !representor.MatchString(t.read(netFolder, name, "phys_port_name")) {
				same = append(same, name)
			}
		}
		both := slices.DeleteFunc(slices.Clone(same), func(name string) bool { return !slices.Contains(gids, name) })
		switch {
		case len(both) > 0:
			owners[device] = both
		case len(gids) > 0:
			owners[device] = lowest(t, gids)
		default: // InfiniBand: its GIDs have no interface
			owners[device] = same
		}
	}
	return owners
}

// gidInterfaces are the interfaces that the device's GIDs belong to.
func gidInterfaces(t *tree, device string) []string {
	var all []string
	for _, port := range t.list(rdmaFolder, device, "ports") {
		folder := path.Join(rdmaFolder, device, "ports", port, "gid_attrs/ndevs")
		for _, index := range t.list(folder) {
			if name := t.read(folder, index); name != "" && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return all
}

// lowest leaves out interfaces that are stacked on another of the list.
func lowest(t *tree, names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.ContainsFunc(names, func(other string) bool { return t.has(netFolder, name, "lower_"+other) })
	})
}
