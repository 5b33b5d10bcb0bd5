// Package tcp is a rail over one TCP interface.
//
// An endpoint is one long-lived connection. The initiator sends frames of up to
// 512 slices of one direction, all their descriptors first:
//
//	WRITE   header | descriptor... [immediate] | bytes of slice 0, 1, ...
//	READ    header | descriptor...
//
// and the target answers, in the order of the frames of each direction:
//
//	ack     every WRITE frame up to this one is applied
//	nak     this slice of this frame was refused, and why; comes before the
//	        frame's ack or data
//	data    header | bytes of the READ frame's slices that were not refused
//	reset   what came was no frame; the connection ends
//
// With the descriptors in front, the receiver knows where all of a frame's
// bytes go and reads them with readv straight into the segments, the bytes of
// hundreds of 4 KiB slices in one system call and none through a buffer, except
// those that came in one piece with the descriptors. The last element of every
// readv is the buffer for the next header, so that small frames cost one system
// call too. The sender's side is one writev a frame.
//
// One frame is up to [frameBytes] long, several are under way at once, and acks
// are cumulative: the target sends one when it runs out of input, or every
// [ackBytes].
//
// Sockets use cubic (bbr, a common default, loses 40 % and more on loopback),
// a send buffer of 1 MiB (measured on loopback: 4.9 GB/s against 4.3 without)
// and no set receive buffer (setting one disables the kernel's tuning and costs
// 20 to 50 %).
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
// A connection is lost together with everything that was in flight on it. A new
// one names the lost ones, and the target ends those before it welcomes the new
// one: bytes still in their receive buffers are not applied after a retry's.
//
// With Config.MPTCP the kernel spreads each connection over several interfaces: the
// rival of several rails. There, fences and deadlines work as on plain TCP, and a
// link that is lost is the kernel's to notice.
//
// Anybody who can connect can send frames; what protects a segment is its key,
// 64 random bits. There is no encryption.
package tcp
