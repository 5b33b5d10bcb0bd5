// Package kvcache is the paged KV cache of one node: what a block is in bytes,
// which blocks are free, which sequence holds which, which prefix a block
// already contains, and whether its bytes are still those that were computed.
//
//	tokens ──PrefixHashes──▶ Match ─┐
//	                                ├─▶ Table (block table) ──▶ Ref ──▶ Slab (bytes) ◀── Content
//	              Pool.Alloc ───────┘
//
// A [Geometry] turns a model's description into sizes and offsets. A [Slab] is
// the memory of a pool, which its owner maps once and registers with the
// transport whole. A [Pool] hands out block numbers; a [Table] is the ordered
// list of them that one sequence holds.
//
// A slab keeps a digest of the bytes of each layer of a block, made by [Slab.Seal]
// when they are written, until the block is recycled. A copy on another node is
// compared with it when it has landed, and the block itself whenever somebody
// asks, so that a wrong, stale, torn or swapped block is found. [Pool.Evict]
// takes it out of the prefix cache.
//
// [Content] derives bytes from tokens alone: the modelled engine writes them, and
// tests judge by them, without any digest.
//
// Units: sizes and offsets are bytes, positions count tokens from 0 at the
// start of the sequence, and a block index counts the blocks of one sequence
// (position/BlockTokens) where a [BlockID] names a slot of the slab.
//
// Ownership. Alloc, Match and Retain each give the caller one reference per
// block, and Release gives it back; the bytes of a block belong to whoever holds
// a reference, and must not be read or written without one. That includes the
// network: hold the reference until the transfer is terminal, not only until it
// is posted. A [Ref] carries the generation of the block it was issued for. The
// generation changes when the block is recycled, so a Ref that outlived its
// reference is refused, never mistaken for the block's next tenant.
//
// [Tiers] are the host memory and the disk below a pool, for prefixes that it has given up.
//
// Pool, Table and Tiers are pure bookkeeping: no memory, no clock, no lock. The
// scheduler that owns them is their only user. Slab and Content may be read
// from many goroutines at once.
package kvcache
