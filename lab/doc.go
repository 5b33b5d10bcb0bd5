// Package lab starts hosts that have RDMA NICs on a machine that has none: a
// stock Debian kernel in QEMU with software RoCE (rdma_rxe) over virtio NICs,
// wired NIC to NIC, under plain emulation. What runs there meets the real verbs
// library, the real kernel RDMA stack, lossy links and hosts that die.
//
// /dev/kvm is not needed, and not used where it is: a stock kernel hangs in some
// paravirtual ones. Emulation is slow, some 0.5 Gbit/s through one unshaped NIC,
// so absolute speed means nothing here. A NIC that is shaped to 80 Mbit/s takes
// well below a core, and ratios between NICs, transports and reference programs
// are those of hardware of that shape.
//
// A host is a kernel and an initramfs in memory, no disk and no files left
// behind. Its init is one generated script, see [Config] for what it sets up. It
// reports ready, all hosts are then let off together, and each runs the command
// once. Everything between a host and this process goes over socket pairs that
// QEMU inherits, so that labs side by side cannot meet on a port, and QEMU dies
// with the thread that started it.
//
// Units: rates are bits a second, sizes of memory MiB, MTUs bytes. Hosts count from 1,
// NICs from 0. A fault's time counts from when the commands were let off, boot not included.
//
// Whoever starts a lab owns it: nothing of it is left after Wait or Close has returned, nor
// after this process has ended, however it did. Lines and files of the hosts are data that
// a program which is not trusted may have written.
//
// A test uses [Run], or [Start] and the methods of [Lab] for faults of its own:
//
//	l, err := lab.Start(ctx, lab.Config{Hosts: 2, NICs: 2, Rate: 80e6, Command: []string{"./server", "-v"}})
//	...
//	defer l.Close()
//	l.SetLink(1, 0, false)
//	result, err := l.Wait()
package lab
