// Package rail measures the transfer engine over any rail: how many bytes a second it
// moves between two nodes' memory, how long a batch takes, what that costs in CPU time at
// both ends, how it takes faults of its links, and whether it is fit to serve.
//
//	initiator   submits batches; it has the clock, the counts and the report
//	target      owns the other memory and takes no part in a transfer
//	control     a TCP connection between the two, JSON lines: memory, points, checks
//	setup       how many of the rails, and the selection: an engine of the initiator's
//	point       of a setup: one op, block size, batch size, number of threads and depth
//	block       one request of a batch: contiguous in both memories
//
// The target is a server on another machine, a child process on this one, so that
// bytes cross a process boundary and both ends' CPU time is told apart, or for the
// rail in memory this process itself.
//
// # What is measured
//
// Each thread has its own range of both memories and walks its blocks in a random
// order, another one at either end, round and round; it keeps depth batches under
// way. Both memories are written before, so that no page is the kernel's zero page.
//
// A point of a duration: the threads warm up, and the measured interval begins and ends
// while they run. Batches that completed inside the interval count, whole, and the rate
// is their bytes over the interval: pipelines are full when it begins and when it ends,
// so that the share of a batch that moved before the beginning makes up for that which
// is under way at the end. With fewer than some twenty batches in an interval that is
// coarse. A point of iterations, as perftest has it: warm up, wait
// for all, submit the iterations, and the rate is their bytes over the time from
// the first Submit to the last completion.
//
// Latency is of a batch, from Submit to completed, and completed means applied at
// the destination: a full round trip, where ib_write_lat prints half of one. The
// post time is what Submit itself takes. CPU time is that of the processes, by
// getrusage, between two marks just outside the interval, over all bytes that were
// completed between the two.
//
// What each rail carried is read when the interval begins and ends, in slices, finer than batches.
//
// # Failover
//
// Failover loads rails while something else harms their links, samples their counts,
// and sets them against the times of the faults. Its load is a point of rounds, in
// which every round writes other bytes, so that a write applied late shows.
//
// # Before serving
//
// [Check] looks at the rails between two machines before they serve, in one session with the target. [Judge] turns what was
// seen into findings and a verdict a rail; it is a pure function, so a case of a fault is data.
//
//	facts     the kernel's, of either end: speed, MTU, carrier, congestion control, limits
//	route     whether packets to the other end leave by the rail's own NIC, at either end
//	probes    datagrams as large as a frame may be, that must not be cut up, there and back
//	rates     points over each rail alone and over all, both ways, every byte compared; of
//	          what has arrived, from when that is steady
//	clock     how far the other's clock is off, and how exactly that is known
//
// # Checks
//
// With Config.Check the source's blocks are filled anew before each point with a pattern of the
// point and of the block's address at the target, and after it every block that was transferred
// is compared in full: at the target for writes, here for reads.
//
// # Units
//
// Bytes are bytes, GB are 1e9 bytes, block sizes k, m and g are powers of 1024;
// perftest's MB are 2^20, and its lines keep that. Figures of time are in
// microseconds where the name ends in US, else seconds.
//
// The memory is mapped, as a KV pool is, and never the Go heap. Run and Serve own
// their rails, memory, connections and processes, and leave none of them behind.
package rail
