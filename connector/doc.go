// Package connector is the KV connector: it brings the KV of a prompt from the
// node that computed it to the node that decodes it.
//
// How it does is a hand-off, a value whose properties it asks for; see package handoff.
//
// [Core] is one node: a scheduler and its side of every hand-off, as one pure
// state machine. Step(now, events) returns [Actions]; the daemons perform them
// over real rails, a simulation over modelled links, tests by hand.
//
//	prefill node                                decode node
//	offered ── prefill first: blocks ─proxy──▶  allocated ─ reads ─▶ landed ─▶ decoding
//	   │                                           │
//	   └─ release ◀────────────────────────────────┘
//	computing ◀── decode first: blocks ─proxy─  allocated
//	   └── writes, each with its digests ──────▶ landed ─▶ decoding
//
// Every transfer has a window: the node whose blocks are touched from outside opens
// exactly those, for reading what is computed or for writing what is reserved,
// under a key made for this transfer, and closes it before the blocks can go to
// anyone else. No key opens the whole pool. What comes late, goes elsewhere or the
// other way is refused at the node that has the blocks, not noticed later. On top of
// that the consumer compares the bytes of each block with a digest that was made where
// they were computed, before the first step that uses it, so a wrong, stale, torn or
// swapped block is never decoded from. What changes a block after that, a bug on the
// node itself or bad memory, is found by the checks that a Submit asks for: see [Checks].
// A block that has changed is evicted from the prefix cache, and the request fails; it
// may be tried again if no token has left since the last check that found its blocks right.
//
// A refusal by itself is no failure: the node that closed the window has ended its
// leg, because the client left or for a reason that it reports. The other one waits
// for the proxy's word, and has a failed transfer only if none comes.
//
// Every request on a node ends in exactly one of Prefilled, Finished or Failed,
// by its deadline at the latest, unless the proxy cancels it.
//
// A request that generates may go on on another node: see migrate.go.
//
// The state machines import the standard library, handoff, kvcache and engine only.
package connector
