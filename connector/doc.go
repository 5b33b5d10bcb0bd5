// Package connector is the KV connector: it brings the KV of a prompt from the
// node that computed it to the node that decodes it.
//
// Three hand-offs do it, an axis of the bench:
//
//	v0         the system that Mooncake published in 2024, ugly on purpose: decode
//	           fetches one request's tensors after another inside its step, while
//	           everything waits; the producer's copies queue behind its prefill
//	           steps and hold back the next one, and with it the answer of the last.
//	pull       decode allocates blocks, reads the finished blocks one-sided in the
//	           background, and goes on decoding meanwhile.
//	layerwise  decode allocates first; each layer's blocks are written to it while
//	           the next layer is computed, and the prefill node streams the first
//	           token itself.
//
// [Core] is one node: a scheduler and its side of every hand-off, as one pure
// state machine. Step(now, events) returns [Actions]; the daemons perform them
// over real rails, a simulation over modelled links, tests by hand.
//
//	prefill node                                decode node
//	offered ── v0, pull: descriptor ──proxy──▶  allocated ─ reads ─▶ landed ─▶ decoding
//	   │                                           │
//	   └─ release ◀────────────────────────────────┘
//	computing ◀─ layerwise: descriptor ─proxy─  allocated
//	   └── a write and an immediate a layer ───▶ landed ─▶ decoding
//
// Every transfer has a window: the node whose blocks are touched from outside opens
// exactly those ([Window]), for reading under v0 and pull, for writing under layerwise,
// under a key made for this transfer, and closes it before the blocks can go to
// anyone else. No key opens the whole pool. What comes late, goes elsewhere or the
// other way is refused at the node that has the blocks, not noticed later. On top of
// that the consumer derives what each block must contain from the tokens and checks
// it before the first step that uses it, so a wrong, stale, torn or swapped block is
// never decoded from. What changes a block after that, a bug on the node itself, is
// found if Config.RecheckKV is set: when the last step of a decode leg has ended, and
// before its token leaves, all blocks of the prompt are checked once more.
//
// A refusal by itself is no failure: the node that closed the window has ended its
// leg, because the client left or for a reason that it reports. The other one waits
// for the proxy's word, and has a failed transfer only if none comes.
//
// Every request on a node ends in exactly one of Prefilled, Finished or Failed,
// by its deadline at the latest, unless the proxy cancels it.
//
// The state machines import the standard library, kvcache and engine only.
package connector
