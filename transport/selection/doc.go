// Package selection says which of several paths to a peer takes which slice, and what is
// to be thought of each path: pure functions and estimators, without clock, lock or
// connection, so that transcripts test them.
//
//	Meter    bytes completed, and when  ──►  what a path delivers, bytes/s
//	Latency  slices completed             ►  how long the path takes at least
//	Silence  signs of life                ►  which path is dead although it is connected
//	Record   batches found right or wrong ►  whether a path rests for a while
//	Express  bytes under way, and done    ►  whether slices go past them
//	Choose   the paths, the queue       ──►  the next slice, and its path
//
// Package transport has the paths themselves, and calls these for every slice. Times are
// durations since the start of its engine's clock, sizes bytes, rates bytes/s.
package selection
