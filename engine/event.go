package engine

import (
	"time"

	"kvferry/kvcache"
)

// An Event is something that happened to the scheduler's world: Add, Cancel,
// Done, Landed, Copied, Free, Suspend, Resume.
type Event interface{ event() }

// Add brings a request. One that can never be served is in Ready.Refused.
type Add struct{ Request Request }

// Cancel ends a sequence, wherever it is; nothing more is said of it. Its blocks
// are released, after the step under way if that computes it. Blocks of a
// pending sequence are the target of writes still to come, so the driver cancels
// it only once those have stopped. Cancelling an unknown ID does nothing.
type Cancel struct{ ID uint64 }

// Done ends the step under way. Tokens has one entry for each Work that
// samples, in order. Failed lists sequences of a Receive step whose KV did not
// come: they have no entry, are ended, and their blocks are released.
type Done struct {
	At     time.Duration // when the step ended; not after now
	Tokens []kvcache.Token
	Failed []uint64
}

// Landed says that the KV of a pending sequence's prompt is in its blocks. Given
// are the output tokens that the other node has emitted already. If there are several, the KV of
// all but the last is in the blocks too; of more than one more than Request.Reserve there are none.
type Landed struct {
	ID    uint64
	At    time.Duration
	Given []kvcache.Token
}

// Copied ends a Copy.
type Copied struct {
	ID uint64
	At time.Duration // when it ended; not after now
}

// Free releases the blocks of a finished sequence that was to keep them.
type Free struct{ ID uint64 }

// Suspend has a sequence stop, with its blocks: it is in Ready.Suspended once no step has it and
// all of its tokens but the last have their KV in the blocks, after a step under way, or if it
// was preempted when it has been computed again. One that ends before, or was cancelled, is
// not. It counts as one whose KV is on its way: it is never preempted.
type Suspend struct{ ID uint64 }

// Resume has a sequence go on that was suspended, or is to be and is not yet.
type Resume struct{ ID uint64 }

func (Add) event()    {}
func (Cancel) event() {}
func (Done) event()   {}
func (Landed) event() {}
func (Copied) event() {}
func (Free) event()   {}

func (Suspend) event() {}
func (Resume) event()  {}

// A Kind of step.
type Kind uint8

const (
	Decode  Kind = iota // one token for each running sequence
	Prefill             // prompts, nothing else
	Mixed               // decodes and chunks of prompts
	Receive             // fetch the KV of prompts; the hand-off runs it, not the model
)

func (k Kind) String() string {
	return [...]string{"decode", "prefill", "mixed", "receive"}[k]
}

// A Step is one pass over a batch. It is the executor's until its Done event,
// and reused afterwards.
type Step struct {
	Kind   Kind
	At     time.Duration // launched; the time it became possible, not the time that was noticed
	Extra  time.Duration // on top of the model's cost: what a hand-off adds to the step
	Tokens int           // computed in all
	Works  []Work
}

// A Work is the part of one sequence in a step: the KV of tokens [From, From+N)
// is computed, and if Sample the token after them is drawn.
type Work struct {
	Seq    *Sequence
	From   int
	N      int
	Prompt bool // a prompt or a chunk of one (or its recomputation), not a decode
	Sample bool
}

// An Output is a token that leaves the engine.
type Output struct {
	Seq      *Sequence
	Token    kvcache.Token
	Position int  // of the output, from 0
	Last     bool // the sequence has ended
}

// Ready is what Step wants done. Its slices are valid until the next Step.
type Ready struct {
	Launch    *Step       // start this; nil if nothing
	Outputs   []Output    // send these
	Allocated []*Sequence // Await sequences that have their blocks now
	Copies    []Copy      // begin these
	Refused   []Refusal
	Suspended []*Sequence   // as they were asked to be
	Wake      time.Duration // call Step again at that time; 0 if only an event can change anything
}

// A Copy is blocks of KV that move within a node, and ends in Copied. See kvcache.Tiers.
type Copy struct {
	ID     uint64
	Way    Way
	Blocks int
	Since  time.Duration // when it became possible, not the time that was noticed
	// Of ToGPU: whose blocks they are, which, and the place of the first in the block table.
	Seq   uint64
	Refs  []kvcache.Ref
	First int
}

// A Way is from where to where a Copy goes.
type Way uint8

const (
	ToHost   Way = iota // from the GPU to host memory
	ToGPU               // and back
	ToDisk              // from host memory to the disk
	FromDisk            // and back
)

// A Refusal is a request that can never be served here.
type Refusal struct {
	ID  uint64
	Err error
}
