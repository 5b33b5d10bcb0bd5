// Package incast is many initiators that move blocks to or from one target at once, each with an
// engine and an address of its own, and one more that asks for something small now and then, the
// probe: how evenly they share the target's NIC, and how long the probe waits for it. Both sides
// are functions of a process; package bench/nics runs them on hosts of its lab.
//
//	initiator 1   blocks ──┐
//	...                    ├──► one NIC ──► target
//	initiator n   blocks ──┤
//	probe         4 KiB  ──┘
//
// With READs the bytes go the other way, and meet where the target sends them.
package incast
