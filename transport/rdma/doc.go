// Package rdma is a rail over one port of an RDMA device: InfiniBand or RoCE, by
// libibverbs. The library is opened when the first rail is made, and is not needed to build:
// ibverbs.h and calls.h declare what is used of it. Without it, or without cgo, New returns
// [ErrNoVerbs]. Everything above the device is tested over an in-memory one.
//
// Chapters are those of the InfiniBand Architecture Specification, volume 1: 9 has the
// transport (what a request does and in which order), 10 and 11 the verbs. RoCE v2 is its
// annex A17. The words are libibverbs': names that begin with ibv_ have manual pages.
//
// A connection has two parts. The queue pairs, reliable-connected, carry the
// bytes: a WRITE or READ slice is one request of its opcode, or several if the
// port's messages are shorter, and the target's CPU takes no part in it. A TCP
// connection carries what is not bytes: where the queue pairs are, which memory a
// key stands for, and that a side is gone. It listens at the port's own address.
//
//	initiator                                   target
//	 Post ─► key known? ─no─► resolve ────────► regions
//	  │                 ◄──── address, rkey ◄──┘
//	  └─► requests, one call for all ─► WRITE, READ ═══════► segment
//	                                    letter, WRITE with immediate ══► mailbox ─► handler
//	 Complete ◄─ completions ◄───────── count of immediates handled ◄──┘
//
// # Keys
//
// Memory is pinned once, however many keys there are to it: a node gives every
// transfer a key of its own to the same slab, and pinning takes a quarter of a
// second a gigabyte. So a key is not an rkey. A peer asks over the control
// connection what a key means, once; Deregister asks back for it, and returns when
// the peer has nothing under way with it, or is cut off. A bad key is thus refused
// before a request is made, and costs no queue pair. What a peer that breaks these
// rules can do is what any RDMA peer can: use the rkey that it was told until the
// memory is deregistered.
//
// Nor does a key open less than a region. Verbs check the rkey, and there is one for
// all that was registered: whoever has been told it reads and writes all of it, in
// both directions. So a [transport.Window] here opens its whole segment for as long
// as any key to that is known, where the rails on sockets hold peers to its ranges
// and its direction; a key that opens nothing is never told. Let only those onto an
// RDMA network whom you would let into the memory. (Verbs have memory windows of
// their own, of one range each, bound by a request; they are not used.)
//
// # Immediates
//
// A request carries 32 bits and an immediate has 256, and the key of its slice
// another 64. They are written to the target's mailbox by a request of its own just before, in the same queue pair, so
// it is there when the immediate is. The target's handler runs, the receive is
// posted again, and the count of immediates handled goes back in a WRITE of no
// bytes, after a letter the other way if the last of them was refused; immediates not counted are never more than the target has receives. The
// receive queue cannot overflow, however slow the handler is.
//
// # Completions
//
// The last request of a run is signaled, and every 16th. A poller a connection
// takes completions, many in a call; if there is none for Config.Poll it arms the
// completion channel and sleeps in the Go poller.
//
// # Goroutines and locks
//
// A link has three goroutines: the poller, which is the only one that takes completions and
// calls the handler of immediates; a reader and a writer of the control connection. A rail has
// one that accepts and one that follows the device's events. All end with Rail.Close. Requests
// are posted by whoever calls Post, and by the poller and the reader where room or a key came.
//
// Locks are taken in this order: regions.pinning, Rail.mu, endpoint.posting, endpoint.eps,
// regions.mu, link.mu. Slices complete while none of them is held.
//
// # Ownership
//
// Memory that is registered, and a slice's, stay the caller's, who keeps them mapped until
// Deregister or until the slice is complete: the device reads and writes them until then,
// whatever the program does. Scratch memory lies outside the Go heap for the same reason. The
// slices of a link that failed complete when the device has said of every request that it is
// over, or its queue pairs are destroyed: not before.
//
// # Failures
//
// A completion with an error fails its slice with a [CompletionError], tears the
// connection down and gives the other slices back as lost: the engine connects
// anew, and the greeting tells the secrets of those that were lost, so that the target
// has destroyed their queue pairs before a slice is sent again. A port that goes
// down does the same at once. A removed device is let go of and looked for; when
// one of its name comes, all memory is registered with it and keys go on meaning
// what they meant.
package rdma
