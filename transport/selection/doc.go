// Package selection says which of several paths to a peer takes which slice, and what is
// to be thought of each path: pure functions and two estimators, without clock, lock or
// connection, so that transcripts test them.
//
//	Meter    bytes completed, and when  ──►  what a path delivers, bytes/s
//	Record   batches found right or wrong ►  whether a path rests for a while
//	Choose   the paths, the queue       ──►  the next slice, and its path
//
// Package transport has the paths themselves, and calls these for every slice. Times are
// durations since the start of its engine's clock, sizes bytes, rates bytes/s.
package selection
