// Package shm is a one-sided rail between processes of one machine and one user: the initiator copies
// by itself, and its target takes no part. 4 KiB are there in microseconds, where two processes that
// wake each other need 35.
//
// # Trust
//
// Whoever is given a target's memory can touch all of it, and keys, ranges and directions are
// checked where the copy is made: at the initiator. They keep honest peers from mistakes, and no others
// out. So a node has this rail only if it is told to (--rail shm), and peers of another user are refused,
// at both ends, by what the kernel says of the socket (SO_PEERCRED). Package cma is for those who do not trust
// each other that far: there the target copies, and a key is the boundary.
//
// # Memory
//
// Memory of [Map] is a memfd. Its descriptor goes to a peer over the connection, with the first key in it
// that is used, and the peer maps it, once it has seen that it cannot shrink (F_SEAL_SHRINK): a file that
// did would be a SIGBUS. Other memory is reached by process_vm_writev and process_vm_readv, see package
// process. No file has a name, so nothing is left when processes die.
//
// Two processes, 1 GiB segments, random blocks, AMD EPYC, one WRITE at a time, p50 in us, without an immediate and with one
// (kvferry rail bench --latency; medians of 5 in one run):
//
//	         cma          mapped      mapped, huge pages
//	4 KiB     39 / 76     3.9 / 10    1.7 / 7.7
//	64 KiB    44 / 76     5.7 / 12    5.1 / 11
//	1 MiB    154 / 184     80 / 94     75 / 86
//
// Attached, without an immediate, they take 3.2, 8.5 and 86.
//
// 1 MiB x 16, 4 batches under way: 20.5 GB/s at 0.046 CPU-s/GB on huge pages, where memcpy of one thread does
// 18.4; 21.0 at 0.050 on others, where it does 21.0.
//
// # Keys
//
// An endpoint asks for a key the first time that it is used, and is granted its ranges and a slot in the
// control page that both ends map. That is a round trip, of some 40 us; afterwards a copy is
//
//	announce it in the control page; is the slot open, and the connection? copy; take the announcement back
//
// # Immediates
//
// An immediate stands in a ring of the control page, behind the bytes. A target has one thread that handles
// them, of all connections: it sleeps in a futex of a page that all its peers map, its bell.
//
//	initiator   put it; set the connection's bit; count the bell up; wake the target, if it sleeps
//	target      handle what those whose bits are set have put; answer in the ring; wake the initiator
//	initiator   who has sent it sleeps at the count of answers, for 50 us at most
//
// So 4 KiB with an immediate take 10 us, of which two changes of process are 4. Where the answer takes longer, the
// initiator knocks over the socket, and is told over it: the target's goroutine of that connection then
// handles what another's immediate holds up. A peer that spoils the bell makes others' immediates late by that, and no more.
//
// # Taking memory back
//
// Deregister closes the slots of a key, and then waits until no initiator announces a copy under one.
// That takes as long as a copy of 1 MiB. A WRITE that does not end is one of a process that was stopped
// in the middle of it: it would go on where it was. After 200 ms its connection is cut and the log names
// the process; and Deregister returns when that has gone on and ended its copy, or has ended itself, as its
// pidfd tells, and not before. (kvtransfer's grants, which have windows, do not give their blocks back until
// then.) A READ that does not end is not waited for any longer: when it goes on it finds the slot closed,
// and its bytes do not count. Close waits for WRITEs for 10 s; then it returns an error that names the process: the memory must not be
// used for anything else.
//
// # Deaths
//
// The socket ends with the process, and its descriptors and mappings with it. What a peer writes into the
// control page is read once, compared, and never used as an index or a length.
package shm
