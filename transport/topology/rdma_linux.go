package topology

import "github.com/Mellanox/rdmamap"

// mapInterfaces asks rdmamap which RDMA device each interface of this machine has.
// It names one device for an interface, and knows interfaces only, not what is
// below a bond.
func mapInterfaces(interfaces []string) map[string][]string {
	owners := map[string][]string{}
	for _, name := range interfaces {
		if device, err := rdmamap.GetRdmaDeviceForNetdevice(name); err == nil && device != "" {
			owners[device] = append(owners[device], name)
		}
	}
	return owners
}
