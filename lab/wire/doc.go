// Package wire does to frames what a long or bad link does: they come late, unevenly late,
// out of order, twice, with a wrong bit, or not at all.
//
//	NIC of host 1 ──► port ──► Line 1 ──► port ──► NIC of host 2
//	                  port ◄── Line 2 ◄── port
//	                  └──────── Relay ───────┘
//
// A [Line] is one direction: a pure state machine of frames and times, whose luck is seeded.
// A [Relay] moves the frames of a link through its two lines, from and to packet sockets.
// [Conditions] are what a line does, each of them to one packet at a time, by itself:
//
//	delay      each packet comes so much later
//	jitter     by that much more or less, evenly spread: packets overtake others
//	loss       the share that never comes
//	reorder    the share that goes ahead of all that wait: it is not delayed
//	duplicate  the share that comes twice
//	corrupt    the share of which one bit is wrong, which the receiver's checksum finds
//
// The words are those of tc-netem(8), and mean the same.
//
// # Packets and frames
//
// The kernel hands TCP's segments over in frames of up to 64 KiB, which a NIC would cut up. A
// line treats each segment as the packet that it would be on a wire, and cuts a frame only
// where it must: around a packet that is lost, or that comes at another time than its
// neighbours. So a lost packet costs two shorter frames, and not 45 small ones. With jitter
// every packet goes by itself, which costs the hosts some five times the CPU time a byte.
//
// Units: times are durations since the start of the caller's clock, shares are 0 to 1.
package wire
