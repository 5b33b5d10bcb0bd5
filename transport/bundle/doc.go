// Package bundle makes one endpoint of several connections between the same two rails, where one
// carries less than the NIC: a TCP connection keeps a core busy at each end.
//
//	                         ┌─► connection 0 ─┐
//	engine ──► Endpoint ─────┼─► connection 1 ─┼──► the peer's rail, which does not know
//	           one path      └─► connection 2 ─┘
//
// To the engine that is one path. Slices that no immediate rides behind go to whichever connection has
// the least under way, and those of a run, with their immediate, over one: see transport.Run. What
// says nothing goes over the first, in order. One connection lost with something under way is the endpoint
// lost, and what the others have under way; each has a secret of its own, and the peer is asked to end all
// of them.
//
// [Width] decides how many there are.
package bundle
