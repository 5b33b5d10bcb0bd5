// Package nics runs the experiments on several NICs in the NIC lab of package
// lab/nics, real shaped links between two network namespaces of this machine, and
// holds their figures to limits.
//
//	transfer    1, 2 and 4 links of 2 Gbit/s; links of 4, 2, 2 and 1 Gbit/s
//	selection   affinity beside static, round-robin, and MPTCP on the same links
//	failover    one of four links cut and restored, slowed to a tenth, a black hole
//
// and, as kvferry lab nics wan, four rails on links that are long, lose packets, reorder them,
// fall silent or flap, beside MPTCP and UCX where those are there.
//
// As kvferry lab nics handoff, one cluster over links that are long: when its second token comes.
//
// The lab's hosts run kvferry itself, as a user would: kvferry rail bench --server on
// host 1, kvferry rail bench or failover on host 2, the control connection on the
// management link. Each experiment is run several times, in turns with the others,
// and each figure is a median.
//
// # Ideal
//
// A link's token bucket counts frames: 1500 bytes of IP packet and 14 of Ethernet
// header, of which 1448 are payload of TCP with timestamps. The ideal of links is
//
//	sum of rates * 1448 / 1514
//
// and a percentage is of that. What the engine sends besides blocks (32 bytes a
// slice, and acknowledgements the other way) is part of the loss.
//
// CPU seconds are those of both kvferry processes, by getrusage; work that the
// kernel does in its own threads is in neither.
package nics
