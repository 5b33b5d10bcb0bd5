package lab

import (
	"fmt"
	"strconv"
)

const qemuProgram = "qemu-system-x86_64"

// descriptors are the numbers of the files that a QEMU inherits, in its own process.
type descriptors struct {
	initrd           int
	console, monitor int
	ports            map[int]int // of virtio-serial, by port
	nics             []int
}

func netdev(nic int) string { return "n" + strconv.Itoa(nic) }

// qemuArgs is the command line of a host's QEMU. -nodefaults and -no-user-config leave
// a machine with what is listed here only.
//
// romfile= leaves out iPXE, which would look for a boot server first. host_mtu is
// what allows the guest a larger MTU. -no-reboot and panic=-1 make a panic the end
// of the process. mitigations=off: nothing in the guest is to be kept from
// something else there, and emulated retpolines are slow. rdrand seeds the kernel's
// random numbers before it starts other CPUs: later, it rewrites code that they run
// as it does so, and an emulated CPU was seen to fall over half a rewrite.
func (c Config) qemuArgs(host int, kernelImage string, fd descriptors) []string {
	memory := c.Memory
	if c.NUMA {
		memory = c.Memory / 2 * 2 // the sum of its nodes
	}
	args := []string{
		"-name", hostname(host), "-accel", "tcg", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-cpu", "qemu64,+rdrand", "-m", strconv.Itoa(memory),
		"-kernel", kernelImage, "-initrd", "/dev/fd/" + strconv.Itoa(fd.initrd),
		"-append", "console=ttyS0 panic=-1 quiet mitigations=off rdinit=" + initFolder + "/" + hostname(host),
	}
	add := func(option, format string, a ...any) { args = append(args, option, fmt.Sprintf(format, a...)) }
	if c.NUMA {
		add("-M", "q35")
		add("-smp", "%d,sockets=2,cores=%d", c.CPUs, c.CPUs/2)
		for node := range 2 {
			add("-object", "memory-backend-ram,id=m%d,size=%dM", node, memory/2)
			add("-numa", "node,nodeid=%d,cpus=%d-%d,memdev=m%[1]d", node, node*2, node*2+1)
		}
		// As the firmware of common two-socket servers has it; 10 is a node's own memory
		// (ACPI, SLIT).
		add("-numa", "dist,src=0,dst=1,val=21")
		// An expander bus is a PCI root of a node, as each socket of a server has one.
		// Its root ports take the bus numbers that follow its own: 16 to 63, and from 64.
		for node := range 2 {
			add("-device", "pxb-pcie,id=pxb%d,bus_nr=%d,numa_node=%[1]d,bus=pcie.0", node, 16+48*node)
		}
		for nic := range c.NICs {
			add("-device", "pcie-root-port,id=rp%d,bus=pxb%d,chassis=%d,slot=%[3]d", nic, c.socket(nic), nic+1)
		}
	} else {
		add("-smp", "%d", c.CPUs)
	}
	socket := func(id string, n int) { add("-chardev", "socket,id=%s,fd=%d", id, n) }
	socket("console", fd.console)
	add("-serial", "chardev:console")
	socket("monitor", fd.monitor)
	add("-mon", "chardev=monitor,mode=control")
	bus := "pci.0"
	if c.NUMA {
		bus = "pcie.0" // the default is the last pxb, which takes bridges only
	}
	add("-device", "virtio-serial-pci,max_ports=8,bus=%s", bus)
	for port := portControl; port <= portOut; port++ {
		socket(fmt.Sprintf("port%d", port), fd.ports[port])
		add("-device", "virtserialport,chardev=port%d,nr=%[1]d", port)
	}
	for nic, n := range fd.nics {
		add("-netdev", "socket,id=%s,fd=%d", netdev(nic), n)
		// Slots from 16 up: QEMU fills from below with what has no place of its own.
		place := fmt.Sprintf("addr=0x%x", 0x10+nic)
		if c.NUMA {
			place = fmt.Sprintf("bus=rp%d", nic)
		}
		add("-device", "virtio-net-pci,netdev=%s,romfile=,host_mtu=%d,mac=%s,%s", netdev(nic), c.MTU, mac(host, nic), place)
	}
	return args
}

// socket is the NUMA node of a NIC: the first half of them are on node 0.
func (c Config) socket(nic int) int { return nic * 2 / c.NICs }
