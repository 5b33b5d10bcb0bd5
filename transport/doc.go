// Package transport is the transfer engine: it moves batches of byte ranges between segments of registered memory on
// different nodes, over rails.
//
//	request   one range, local memory to or from an offset in a target segment
//	batch     the requests submitted together; it ends once, in a terminal status
//	slice     what one rail carries in one operation: a request, or part of one
//	rail      one NIC; two rails of the same kind and an endpoint between them are a path
//
// The engine splits requests into slices, chooses a path for each, posts them, retries slices of lost connections, and
// ends the batch exactly once. Rails only carry slices. Aggregation, retry, deadlines and accounting are therefore
// written once, and a test needs no network: package transporttest has a rail in memory.
//
// Transfers are one-sided: the target's owner takes no part beyond having registered the memory and told the initiator
// its SegmentInfo. Completed means applied at the destination: a WRITE's bytes are in the target's memory, a READ's bytes
// are in the local memory. An immediate is a number given to the target's engine after all of its batch's bytes are
// there. From then on the engine writes nothing of the batch any more, although it may have to send again what was lost.
// Where a batch of WRITEs goes over one path the immediate goes with its last slice, and costs next to nothing; else it
// is sent when all is acknowledged, a round trip later.
//
// A message is up to 64 KiB of bytes in place of that number, see BatchOptions.Message. The target's Config.OnMessage
// gets it once, with the Config.Name of the engine that sent it, after WRITEs, after READs, or alone. It travels in
// immediates of up to 512 bytes: one, most often; longer ones go beside the batch's bytes, and their last part behind all
// of that. A target keeps up to 64 MiB of what has not come as a whole, and what has to make room fails with ErrBusy.
// Messages of different batches come in any order. A batch that fails delivers none, unless its time was up, or its
// connection lost, while the last part was on its way.
//
// # Where to begin
//
// The example of this package has two engines over TCP: one writes into the other's memory, announces it by an immediate,
// and reads it back; that of [Segment.Window] opens a part of a segment for one transfer. Other packages have the rest:
//
//	rails           opens rails by what a user writes, tcp/eth0, rdma/mlx5_0 or cma, and
//	                says which are near which memory: Config.Rails and Config.Rank
//	topology        finds out which NIC is near which memory, or reads it from a file
//	transporttest   TestRail, the contract of Rail as a test: its example is a rail of
//	                one's own, run against it
//	connection      what a rail of one's own needs for its connections
//
// # Keys and windows
//
// A peer may do what a key opens, and it learns keys from a SegmentInfo. The key of a segment that was made with
// [Engine.Register] opens all of it, for reading and writing: that is for owners who trust whoever has it. A [Window] has
// a key that opens ranges of the segment, in one direction, until it is closed; a segment of [Engine.RegisterLocal] is
// reached through its windows alone.
//
//	segment   | block 0 | block 1 | block 2 | block 3 | ...
//	window A            |  write  |                            one transfer's
//	window B  |  read   |                   |  read   |        another's
//
// The owner of a window may hear of each write as it lands, see [Segment.WatchedWindow].
//
// The target's rail checks every slice: what is not opened is refused with ErrBounds, ErrAccess or, once closed,
// ErrBadKey. Such a slice touches nothing; it fails its own batch at once, and neither its connection nor other batches.
// On rails over sockets that holds against any peer. Over RDMA nobody but the NIC sees a slice, and it knows one key a
// region: there a window opens the whole segment, see package rdma. An immediate needs a key that may write, a message
// one that opens anything; the target is told whose key that was. A batch may touch several segments and windows of one
// peer, see [Request].
//
// # Ownership
//
// A request's local memory belongs to the engine from Submit until the batch is done, and to nobody but the caller
// afterwards, however the batch ended: if a deadline or Cancel ends a batch whose slices are posted, the engine first
// closes the endpoints that hold them. (Slices of other batches on those endpoints are retried.) Registered memory must
// stay mapped until [Segment.Close] returns; it should be mmap'd rather than Go heap, as [MapMemory] does it, because
// RDMA devices keep the address. Any [Allocator]'s memory will do. Where it is unmapped or protected before that,
// transfers that touch it fail with ErrMemory.
//
// A target may still apply bytes of a WRITE after its batch failed: they were on their way. They are not applied after a
// retry of the same slice was: a rail's next connection has the target end the lost one first, and so does the engine, by
// a fence over another path, before that path carries the slice.
//
// # Strangers
//
// There is neither encryption nor identity: a rail serves whoever reaches its port.
//
//	who reaches a port      can connect, within limits, see package connection; without a key, nothing else
//	who has a key           what it opens, while it is open
//	who sees the packets    sees bytes and keys, and may use those; ends no connection by
//	                        what it sees, as that takes a Secret that is not said over it
//	who changes packets     everything
//
// # Paths
//
// A peer that has several rails is reached over several paths, each a rail here and the one there that it can see.
// [Selection] says how slices are spread over them; with [Affinity] all paths to a peer draw from one queue, see package
// selection. A path is down when its connection is lost; or the peer's kernel does not answer over it for 30 ms and more,
// and does over another, where the endpoint is a [Gauge]; or it makes no progress for Config.StallTimeout while another
// is up. Its slices then go to the others; it is tried every Config.ProbeInterval, and draws from the queue again once it
// is connected.
//
// Two processes of one machine may have rails of all kinds. Those from memory to memory are used, the one-sided ones
// first; paths over NICs stand by, and carry when none of those is up. Rails find out by what they advertise: see
// [Router].
//
// Small batches, of up to 32 KiB, immediates by themselves, and what a batch's Priority says is urgent go past others
// where at least 128 KiB wait on a path: over a second connection between the same rails, which is made when it is first
// needed, and over RDMA has queue pairs of its own. They have at most a ninth of what the path carries, see
// selection.Express. So there is no order between batches; within one all is as on any path.
//
// The engine does not know what bytes should be. Whoever does says of a batch whether they arrived right, with the
// batch's [Trail]: a path that has carried wrong ones a few times rests, and others take its slices; it is tried again
// after a second, then two, four, up to a minute, until enough has come through right.
//
//	locations  ──Config.Rank──►  which rails are near the memory
//	completions ──meter──►       what each path delivers
//	package selection            who takes which slice next
//
// # Units
//
// Bytes are bytes, rates are bytes per second with decimal prefixes (1 GB/s = 1e9). Times are durations since the start
// of the engine's clock.
package transport
