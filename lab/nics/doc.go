// Package nics joins two hosts by links of chosen rates and runs a command on
// each: network namespaces of this machine, at its speed, without hardware or
// emulation. It is where TCP over several NICs is measured: links are shaped, within
// a percent up to 8 Gbit/s in all on two cores, cut, slowed, turned into black holes
// and cleared at chosen moments.
//
//	host 1                            wires                             host 2
//	eth0 10.77.0.1 ==tbf==> [ eth0-1 <--mirred--> eth0-2 ] <==tbf== eth0 10.77.0.2
//	eth1 10.77.1.1 ==tbf==> [ eth1-1 <--mirred--> eth1-2 ] <==tbf== eth1 10.77.1.2
//	...
//	mgmt 10.78.0.1 -------> [ mgmt-1 <--mirred--> mgmt-2 ] <------- mgmt 10.78.0.2
//
// A host's NIC is a veth whose other end lies in a third namespace, the wires,
// where a filter moves each packet on to the other host's. So a cable can be
// pulled as a cable is: the ports go down and both hosts see the carrier go, their
// NICs still up, their addresses and routes untouched. (One veth between the hosts
// would have to be set down at one of them, which takes its routes and tells its
// sockets.) And a black hole is a wire without the filter: what is sent leaves,
// and is gone. The detour is no limit: without a rate, one connection moved 58 Gbit/s
// through it on two cores.
//
// A link's rate holds for each direction by itself. It is the rate of frames, 14
// bytes of Ethernet header included: with an MTU of 1500 TCP's payload is 1448 of
// 1514 bytes, 95.6 %. A bucket of 256 KiB lets 64 KiB segments through whole; below
// 128 KiB the kernel cuts them up one by one, and the sockets take 5 CPU-seconds a
// GB instead of 0.8. The queue in front holds 50 ms, and drops what comes then, as
// a switch port does.
//
// With Config.SwitchQueue a switch is between the hosts: the NICs have no rate, and the ports in front of
// them have it. There congestion control is what keeps a queue short, where a NIC's own queue holds its
// programs back. Host 2 can stand for many hosts, each with an address of its own (Config.Addresses).
//
// A link that is long or bad, Config.Conditions, has netem at its two ports where the kernel has
// it, and else a relay in the wires instead of the filters, see package wire. The link's carrier, its
// black holes and its rate are as before. The relay is a thread of this process: four links of 500
// Mbit/s with a delay take it half a CPU, most of which is the receiving hosts' own work. Both mean the
// same by the conditions, of each packet of the wire by itself, but netem's luck has no seed, and
// its wrong bit may be in the Ethernet header too. (TCP hands over frames of 64 KiB; netem takes
// each for one packet, and would lose 45 at once, so a token bucket in front of it cuts them up,
// unless all that happens is a delay.)
//
// The link mgmt has no rate, and is for what must not disturb a measurement:
// control planes, and the connections of a bench to its other side.
//
// Nothing has a name outside and nothing is left behind. The namespaces are held
// by descriptors of this process; a host's processes live in a PID namespace whose
// first process ends with this one, and all others with that. So kill -9 ends
// everything, and the kernel takes interfaces, queues and routes with it. (Connections
// that had something to send then keep an empty namespace, lo in it, until TCP gives
// them up: some two minutes. A lab that ends by itself has it give up in a second.)
//
// Commands are programs of this machine, with its files. They see their own /proc
// and /sys, so that /sys/class/net holds their host's NICs. It takes root, or
// CAP_SYS_ADMIN and CAP_NET_ADMIN.
//
// Units: rates are bits a second, sizes bytes. Hosts count from 1, NICs and links from 0. A
// fault's time counts from when the commands were let off.
//
// A Go program that has no command to run leaves it out and gets two hosts to do
// experiments on:
//
//	l, err := nics.Start(ctx, nics.Config{Rates: []int64{2e9, 2e9}})
//	...
//	defer l.Close()
//	err = l.Do(2, func() error { listener, err = net.Listen("tcp", nics.Address(2, 1)+":7000"); return err })
//	...
//	l.Cut(1)
package nics
