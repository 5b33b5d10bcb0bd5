// Package fabric models a network: what transfers that share NICs, switches and buses take.
//
// It is a pure state machine without a clock. A simulation jumps from one end of a transfer to
// the next; package pacing waits for them. So both clocks have one model.
//
//	node ── NIC ──┐                        ┌── NIC ── node
//	              ├─ leaf ─ uplinks ─ leaf ─┤
//	node ── NIC ──┘                        └── NIC ── node
//
// Every transfer crosses some ports, and each port has a rate for all that cross it. Times are
// durations since the start of a clock, sizes bytes, rates bytes a second. Modelled are rates
// alone: what rides a full-duplex link one way does not touch what rides it the other way, and
// nothing is lost, resent or slow to start.
package fabric
