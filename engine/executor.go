package engine

import (
	"context"
	"time"

	"kvferry/kvcache"
)

// An Executor computes steps. A node knows its own as this and nothing more: the modelled
// GPU of package modelled is one, an engine that really computes another.
//
//	Admit ─▶ Run, of steps that have the sequence ─▶ Forget
//
// The driver (package node) owns it. Run is called on one goroutine, a step at a time: the
// next only after the last has returned. The other methods may be called beside it, from
// any goroutine, and return at once. Nothing is called after Close.
//
// The executor writes the KV that it computes into the blocks of the slab that it was made
// with, as Step.Works and their block tables say, and may read what lies there: that of a
// sequence's earlier tokens, computed here or landed from elsewhere. It seals each layer of a
// block right after writing it (kvcache.Slab.Seal), while the bytes are in the CPU's cache:
// blocks that nobody sealed are not checked. Until its step is
// over, nobody else touches the blocks that a step writes, except that peers may read or
// be sent a layer once it was reported.
type Executor interface {
	// Admit tells of a sequence before the first step that has it, and what will be done
	// with its KV, which is of a LoRA adapter and a cache salt, empty for none. It may be slow
	// for a long prompt: the caller is a goroutine of the request's. The executor keeps prompt
	// as long as it likes, and does not change it.
	Admit(id uint64, adapter, salt string, prompt []kvcache.Token, use Use)

	// Run computes step, which the scheduler launched at step.At, and returns when it ended
	// on the driver's clock, not before that time, with one token for each Work that
	// samples, in order of Works; the driver has used them when it calls Run again. layer,
	// if not nil, is called for layers 0, 1, ... in order, each as soon as the KV of that
	// layer is in the blocks of all the step's prompts and no later than Run returns, with
	// the time it was there. read, if not nil, may be called once, when the step reads and writes
	// no KV any more: a check of the KV then need not wait until Run returns. An error ends the
	// node: an engine that cannot compute serves nobody. When ctx ends, Run returns its cause.
	Run(ctx context.Context, step *Step, layer func(layer int, at time.Duration), read func()) (end time.Duration, tokens []kvcache.Token, err error)

	// Load writes the KV of a sequence's blocks, the first of them at a place in its table, which
	// has come from host memory; see Copy. Nobody else touches them meanwhile. It may be slow, and
	// may end after Forget; Close waits for it at the caller's.
	Load(id uint64, refs []kvcache.Ref, first int)

	// Forget says that a sequence is over, once for each Admit. A step under way, or
	// launched and not run yet, may still have it if it was cancelled: its tokens go
	// nowhere, its blocks are the sequence's until that step has ended.
	Forget(id uint64)

	// Progress counts what has been computed since the executor was made, in units of its
	// own. It only grows, and during a step too, so that one that takes long is told from
	// one that stands still: the proxy leaves a node that does not get on.
	Progress() uint64

	// Close releases what the executor took. Run has returned by then.
	Close() error
}

// Use says what is done with the KV of a sequence beside computing with it. An executor
// that computes may ignore it; the modelled one writes only what somebody will look at.
type Use uint8

const (
	// Fetched: blocks that this engine computes are read by other nodes, or written to
	// them, now or later out of its prefix cache.
	Fetched Use = 1 << iota
	// FetchedHidden: and the hidden states of the same tokens with them (hand-off v0).
	FetchedHidden
	// Rechecked: all blocks of the prompt are checked while the request decodes, or after its
	// last step, those that this engine computed again after a preemption among them.
	Rechecked
	// Movable: the request may go on on another node, which then reads all blocks, those of the
	// answer too.
	Movable
)
