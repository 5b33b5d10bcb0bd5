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
// Small beside bulk (go test -bench BesideBulk; five runs): a WRITE of 4 KiB with an immediate
// every millisecond, while four batches of 16 MiB are under way, takes 36 us at the median and
// 1.5 ms at the 99th percentile, over an engine's second connection; in line with bulk it took
// 16 and 37 ms. Bulk keeps 0.96 of its rate: both ends, and what is small, share two cores.
//
// One connection keeps a core busy at each end. With Config.Conns several are one path, see package bundle;
// by default it is found out whether more than one are faster, see bundle.Width. Two and four connections
// beside one (go test -bench Conns -benchtime 7x; medians, GB/s, both ends in one process on 2 cores), with
// as many CPU-s/GB:
//
//	               write            write, immediate    read
//	connections    1    2    4      1    2    4         1    2    4
//	1 MiB x 16     3.8  3.7  4.1    5.9  7.4  7.5       6.1  7.9  7.6
//	64 KiB x 128   4.0  5.9  6.2    3.9  4.0  3.7       5.2  6.2  6.6
//	4 KiB x 128    2.7  3.6  3.5    2.7  3.1  3.5       3.4  3.3  3.7
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
