// Package topology finds out which NICs are near which memory. A transfer from
// memory of NUMA node 1 should leave by a NIC of node 1, and one from a GPU's
// memory by the NIC behind the same PCIe switch: what takes the other way crosses
// the link between the sockets, which has less bandwidth and is shared by all.
//
//	machine    NUMA nodes, NICs and GPUs: what Discover finds
//	location   memory as seen by a NIC: cpu:1 (NUMA node 1), cuda:0 (the first GPU), * (any)
//	matrix     location -> preferred and available NICs, in Mooncake's JSON format
//	reason     why a NIC is near a location or far from it
//	warning    what looks wrong: a NIC that is down, a link slower than it could be
//
// # The machine is an argument
//
// Discovery reads a tree of files, /sys and a little of /proc: those of this
// machine (/), or a capture of another one, which is a folder, a .tar.gz or a
// text file. A capture holds exactly what discovery read, see [Capture], so
// discovery of a capture gives the machine again. testdata/machines has some.
//
// ghw reads NUMA nodes and PCI devices, and so GPUs. It stops at the first file
// that it misses (no pci.ids, a kernel without huge pages), it knows graphics
// cards by /sys/class/drm, where a compute node's GPUs often are not, and nothing
// of PCI paths, links and stacked interfaces: that is read here. rdmamap says which
// interface an RDMA device belongs to on this machine; it asks the kernel, so
// for captures, and for what it leaves out, the same is read from sysfs.
//
// # Names
//
// A NIC may have two names, eth0 and mlx5_0: a TCP rail is named by the interface,
// an RDMA rail by the device. Rows of a matrix list both, next to each other. A
// matrix that lists one of them only, as Mooncake's files do, stands for both once
// a machine has completed it (Options.Override).
//
// # What is preferred
//
// For a NUMA node, the NICs of the nearest node that has any, by the kernel's
// distances: its own, if it has one. NICs that do not say where they are (node
// -1) are available; if none says, as in most virtual machines, all are preferred.
// On a machine with one node all NICs are on it.
//
// For a GPU, among the NICs of its node, or among all if there are none, those
// with the fewest hops on the PCI path. cuda:N counts NVIDIA GPUs in PCI order,
// as nvidia-smi does and CUDA with CUDA_DEVICE_ORDER=PCI_BUS_ID.
//
// Both are Mooncake's rules, but that it knows no distances: there a node without
// NICs prefers none.
//
// Only what can carry bytes to another machine is in a matrix: hardware (also
// virtual hardware) that is up, and what is stacked on it: bonds, bridges, VLANs,
// software RDMA devices. A bond's slaves are not, peers reach the bond; nor are
// loopback, veth, tun and the like, unless there is nothing else or a filter
// includes them by name.
//
// # Ownership
//
// A Machine, a Matrix and a Snapshot are values of the caller's that nothing here keeps or
// changes once they are returned; goroutines may read them together. Discovery opens files for
// as long as it takes, and what a capture was unpacked into is gone when it returns. What
// it finds is of that moment: a NIC that comes up later takes another Discover.
//
// # Sources
//
// The files are those of the kernel's Documentation/ABI: sysfs-class-net (speed in Mbit/s,
// operstate as in RFC 2863), sysfs-class-infiniband, sysfs-bus-pci, and proc(5) for
// /proc/net/route. What they say where something does not apply differs from driver to
// driver (-1, EINVAL, "Unknown", an empty file), so a value that makes no sense is taken
// for unknown, and never for an error.
//
// # Units
//
// Speeds are bits per second, memory is in bytes. A hop is one step on the path from
// device to device through bridges: a GPU and a NIC at two ports of one switch are 4
// apart, device, port, switch, port, device.
package topology
