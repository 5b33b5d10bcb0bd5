// Package capi is the transfer engine for programs that are not written in Go. It has all of
// the C interface (cmd/libkvferry, kvferry.h) that needs no C, so that it is tested without:
//
//	handle       a number in place of a pointer, never used twice, so that a stale one is an error
//	code         a number in place of an error, beside its text
//	range        several pieces at equal distances in both memories, as a struct of C has them
//	message      bytes that came with a peer's batch
//	completion   how a batch ended: they wait in a queue until the caller polls, and so do messages
//	alarm        a descriptor that is readable while something waits to be polled
//
// Nothing is ever called back: the caller's language may have a lock around each call, and its
// threads are its own.
//
// # Memory
//
// Registered memory is the caller's. It is used where it is, neither copied nor moved, and Go's
// garbage collector knows nothing of it: it must stay mapped until [Engine.Deregister] or the engine's
// Close returns. An address in a [Range] is a number, looked up in the registered
// segments before anything is read there: one that is wrong is an error, not a crash.
//
// # Order
//
// [Engine.Submit] takes the ranges, gives the batch a handle and hands the work on. What is wrong with the
// ranges themselves is Submit's error. A batch that has a handle has exactly one
// completion, however it ends, unless the engine is closed before it is polled. Who does not take completions and messages
// is refused more of them.
package capi
