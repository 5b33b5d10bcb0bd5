// Package tcp is a rail over one TCP interface, with the frames of package socket.
//
// Sockets use cubic (bbr, a common default, loses 40 % and more on loopback), and bbr
// on a path that loses packets although no queue stands in it: 4 links of 500 Mbit/s
// with 0.1 % of loss carry 32 % of ideal with cubic, 98 % so. Where a round trip takes
// less than 2 ms they have a send buffer of 1 MiB (measured on loopback: 4.9 GB/s
// against 4.3 without) and no set receive buffer (setting one disables the kernel's
// tuning and costs 20 to 50 %); where it takes longer, buffers that hold what is under
// way. Both ends look at TCP_INFO every 50 ms and decide for their own direction, see
// tuning.go.
//
// Measured between two cold 1 GiB segments over loopback on 2 cores (AMD EPYC),
// both ends in one process, 4 batches under way, in turns with bare sockets of
// the same settings (go test -bench Slab -benchtime 7x; medians):
//
//	               GB/s           x bare        CPU-s/GB, both ends
//	               write  read    write  read   write  read
//	1 MiB x 16     5.9    6.4     1.01   1.06   0.24   0.24
//	64 KiB x 128   6.0    6.1     1.10   1.10   0.23   0.25
//	4 KiB x 128    3.2    3.7     1.75   2.33   0.38   0.41
//
// An 8-byte WRITE, submitted to acknowledged, takes 19 us at the median.
//
// Small beside bulk (go test -bench BesideBulk -benchtime 5x, two processes on two cores; medians of five, in
// turns): a WRITE of 4 KiB with an immediate every millisecond, while four batches of 16 MiB are under way.
// Who moves bulk looks for what is small, and gives way to it: see lookout and precedence in package socket.
// Both processes have short turns of the CPUs, as the daemons have (process.ShortTurns).
//
//	                        p50       p99       p99.9    bulk, of what it is alone
//	no look                 0.19 ms   5.3 ms   12 ms     1.02
//	look                    0.17 ms   1.6 ms   11 ms     0.98
//	look, give way          0.09 ms   1.0 ms   11 ms     1.04
//	all three               0.10 ms   0.7 ms   11 ms     1.00
//
// The same with READs: 0.11 and 1.4 ms, with all three or with the look alone. A READ's bulk is sent by the
// target, and there nobody waits for what is small; where the initiator's reads of bulk gave way, p99 stayed.
//
// Tried, and not kept, as p99 stayed or rose: a thread of its own that waits in poll(2) for what is small,
// at one end or both (p99 1.6 to 2.8 ms, bulk down to 0.95: Go has to take back its processors from threads
// that wait); sched_yield after each piece of bulk (3.7 ms: who yields is put off by whole ticks);
// a goroutine that has Go wake another thread for the netpoller (1.3 to 2.6 ms);
// short turns without giving way (1.3 to 1.4 ms). writev of
// 256 KiB instead of 1 MiB wherever there are connections of small frames: p99 0.8 ms, but bulk is 0.89 of what
// it is otherwise, also while nothing small is under way.
//
// Where several send to one NIC its rail divides what it receives, see credits. 16 senders of
// 1 MiB after 1 MiB to one NIC of 500 Mbit/s, whose queue holds 50 ms, from 2 s after the first on,
// two runs each; the probe is 4 KiB from a 17th, alone on its connection, from the beginning on:
//
//	           MB/s         least/most     Jain's index     probe, p99
//	without    59.6, 59.9   0.07, 0.21     0.70, 0.82       18.5, 19.7 ms
//	with       59.1, 58.7   0.80, 0.85     0.997, 0.998     12.6, 11.9 ms
//
// It does nothing for 16 that READ from one NIC, each to a NIC of its own: there nobody but the sender
// sees them all. Rails on loopback have no NIC, and no credits.
//
// With Config.MPTCP the kernel spreads each connection over several interfaces; several
// rails do the same in the engine. Fences and deadlines work as on plain TCP, but it is
// the kernel that notices a lost link and moves its bytes to another.
package tcp
