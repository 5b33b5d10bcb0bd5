// Package kvtransfer is the transfer half of a node that serves an LLM: it lets other nodes
// read blocks of its paged KV cache, or write them, and reads and writes theirs. It knows
// blocks and bytes, and nothing of schedulers, hand-offs or requests, so that an engine that
// has all of these of its own can use it as it is.
//
//	node with the blocks                         the other node
//	Grant(Read) ─── Descriptor ───────────────▶  Open ── Move(Read) ──▶ Check ── Release
//	   │                                                                            │
//	   └── OnEnd ◀── Released ◀──────────────────────────────────────────────────────┘
//
//	Grant(Write) ── Descriptor ───────────────▶  Open ── Move(Write, Notify), a part at a time
//	   OnArrival, Check ◀──────────────────────────────────┘
//	   └── OnEnd ◀── Close
//
// A [Grant] opens blocks of ours to one peer, for one transfer and in one direction; its
// [Descriptor] is plain data, and travels by the caller's control plane, as does the message
// of Release (Config.Release sends it, [Agent.Released] takes it). Bytes travel by package
// transport. A [Transfer] is the other end: what is moved to or from granted blocks.
//
// # Who owns what, and when it is over
//
// The slab is the caller's, and mapped until Close has returned. Granted blocks must stay
// the sequence's until the grant's OnEnd, which is called exactly once, when no peer can
// touch them any more: after Close, after a release, after the lease, or after the agent's
// Close, whichever comes first. A grant that nobody releases or closes is given up after
// its lease, so that a peer that vanishes costs its blocks for so long and no longer.
//
// The local blocks of a [Move] must stay the sequence's until its Done, which is called
// exactly once, with nil or an error. A move that is under way ends within Config.Timeout.
// One that waits for others to the same peer ends with them: if one of these takes too long,
// what has waited for as long ends too; and all of a transfer ends by its deadline, if it was
// given one, or when it is canceled or closed.
//
// # Goroutines
//
// All methods may be called from any goroutine, callbacks included, except Agent.Close from
// a callback; they return at once, but New, Open and the two Closes of agents and windows
// under them take what the transport takes. Callbacks come on goroutines of the transport or
// the agent, at most one at a time for one Move or the end of one Grant; they must not block,
// as other transfers wait for them. After the agent's Close, Grant and Open fail with
// net.ErrClosed, moves end with it, and no callback comes any more.
//
// # What the bytes are
//
// A key opens one grant's blocks and nothing else (see transport.Window). Digests of what the
// engine has sealed (kvcache.Slab.Seal) travel beside the bytes, in a [Descriptor] or the
// [Notice] of a write, and [Agent.Check] compares what has landed with them. A node vouches for
// a transfer that read right bytes. If bytes landed wrong, the node that they came from looks
// whether it has them right; only then [Agent.Blame], on the node that moved them, has the paths
// avoided that brought them (see transport.Trail).
//
// Units: bytes, tokens, and durations on the clock of Config.Transport.
package kvtransfer
