// Package contention is kvferry lab contention: n requests at once whose KV goes from a prefill node
// each to one decode node, and what that adds to the first token decoded. The decode node's NIC is
// shared, or the uplinks of a switch in front of it. The same in virtual time, in real time over
// modelled NICs, and by the rules of other simulators.
//
//	prefill 1 ── NIC ──┐
//	...                ├── switch ── NIC ── decode
//	prefill n ── NIC ──┘
//
// In real time the transfer halves of the nodes (package kvtransfer) move the bytes of these KV
// blocks, and every byte is compared.
package contention
