// Package cma is a rail between processes of one machine, by cross-memory attach:
// whoever receives copies the bytes straight out of the sender's memory, with
// process_vm_readv(2). There is one copy where a socket has two, no packet, and any
// memory will do.
//
// Frames, keys and bounds are those of package socket, over a Unix socket that has no
// file, with addresses instead of bytes. A process never writes into another's
// memory: the target of a WRITE and the initiator of a READ copy. Copies of 512 KiB and
// more are shared by several cores.
//
// Two processes, cold 1 GiB segments, random blocks, 2 cores (AMD EPYC), 4 batches under
// way, both rails in turns (kvferry rail bench; medians of 3):
//
//	                GB/s                          CPU-s/GB, both ends
//	                write        read             write        read
//	                cma   tcp    cma   tcp        cma   tcp    cma   tcp
//	1 MiB x 16      16.5  5.0    15.2  5.4        0.11  0.32   0.11  0.30
//	64 KiB x 128    13.9  4.9    14.0  5.2        0.12  0.33   0.12  0.32
//	16 KiB x 1792   10.7  4.4     9.5  4.5        0.16  0.35   0.16  0.35
//	4 KiB x 128      3.6  3.2     3.0  3.4        0.39  0.46   0.46  0.47
//
// Pages are pinned one by one as they are copied, which is what small pieces pay for.
//
// The kernel allows a process to read another's memory as it allows a debugger to
// attach (ptrace(2), PTRACE_MODE_ATTACH): same user, or CAP_SYS_PTRACE. Where Yama
// restricts that to children (kernel.yama.ptrace_scope=1, Ubuntu's default), New
// makes this process an exception, for all processes of its user (PR_SET_PTRACER_ANY).
// Both ends prove at the start that they can read each other, or Dial fails and says
// why. Only processes of one network namespace reach each other. See package process.
//
// So a window holds against any peer that writes: it is this process that copies, and it
// copies only to where the window is. It holds against peers that read through this rail
// too, as they are told no address outside the window. It does not hold against a process
// of the same user that reads this memory by itself: the kernel allows that, with this
// rail or without it.
package cma
