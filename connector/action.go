package connector

import (
	"time"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/kvcache"
)

// Actions are what a Step wants done, by Perform. Slices are valid until the next Step.
type Actions struct {
	Launch *engine.Step // run this
	Layers bool         // and report its layers
	Read   bool         // and when it has read all KV
	Copies []engine.Copy

	Tokens    []Token
	Reserved  []Offer
	Prefilled []Prefilled
	Migrated  []Migrated
	Finished  []Finished
	Failed    []Failed

	Ask    []Ask    // to other nodes, about their transfers
	Answer []Answer // to whoever asked about ours
	Moves  []Move
	Checks []Check
	Halt   []uint64 // end the moves of a request to the node that was to take it over
	Close  []uint64 // close the request's window, then say Closed; also stops its moves
	Drop   []uint64 // the request is over and its blocks are free

	Wake time.Duration // Step again at that time; 0 if only an event can change anything
}

type (
	// Token goes to the client.
	Token struct {
		ID       uint64
		Token    kvcache.Token
		Position int
	}
	// Offer names blocks to the other side, under the transfer ID that it will use.
	// The driver opens the window before the offer leaves, and if it comes with Prefilled,
	// closes it when the lease that it gives it is over: see Lapsed.
	Offer struct {
		ID       uint64
		Transfer uint64
		Blocks   []kvcache.Ref
		First    int // index of Blocks[0] in the block table
		Tokens   int
	}
	// Prefilled ends a prefill leg; Offer is nil if there is nothing to fetch.
	Prefilled struct {
		ID         uint64
		Offer      *Offer
		FirstToken kvcache.Token
		Cached     int
		Breakdown  Breakdown
	}
	// Migrated ends a Migrate. Without an error all of the request's KV is there: it has stopped,
	// and holds its blocks until a Cancel, or goes on with a Resume. Tokens are those
	// that the other node does not know, perhaps ahead of those that leave here. With an error,
	// the request goes on here.
	Migrated struct {
		ID        uint64
		Transfer  uint64 // the other node's
		Tokens    []kvcache.Token
		Err       error
		Cached    int
		Breakdown Breakdown // of the leg so far
	}
	// Finished ends a request well, with its last token.
	Finished struct {
		ID        uint64
		Cached    int
		Breakdown Breakdown
	}
	// Failed ends a request badly. Err wraps one of the errors below, or engine's. The
	// Breakdown is of what had been done until then.
	Failed struct {
		ID        uint64
		Err       error
		Breakdown Breakdown
	}
	// Ask is a message about a transfer to the node of the request's Remote.
	Ask struct {
		ID       uint64
		Node     string
		Transfer uint64
		Release  bool // else produce
	}
	// Answer tells the asker, if there is one, that a tensor of the transfer is
	// available, or that the transfer is gone.
	Answer struct {
		Transfer uint64
		Tensor   int
		Gone     bool
	}
	// Move transfers one part of a request's KV and ends in Moved.
	Move struct {
		ID    uint64
		Write bool          // else read
		Since time.Duration // when the schedule had or has it start, 0 for now
		Part  int
		// After is when the schedule has those parts start that come after it, the same blocks of the next
		// layers, if a LayerDone told of these: they are Moves as this one is.
		After []time.Duration
		Pairs []kvcache.Pair
		// Imm goes with a write: the reader's Arrived. Token is the first token, or how many blocks are there
		// with the move of a request that goes on elsewhere.
		Imm   bool
		Token kvcache.Token
		// To is the node that takes the request over, "" of a hand-off. Such a move ends with the
		// token of that number.
		To     string
		Tokens int
	}
	// Check compares what landed with its digests, of More parts after it too, and ends in
	// Checked.
	Check struct {
		ID         uint64
		Part, More int
		Refs       []kvcache.Ref
		First      int  // index of Refs[0] in the block table
		Again      bool // PartAll, from block 0: see Checks. It counts no blocks as checked; Refs come back with its Checked
	}
)

// Parts of a transfer: three tensors, everything at once (PartAll), or a part a layer,
// numbered from 0. See [handoff.Parts].
const (
	TensorK = iota
	TensorV
	TensorHidden
	tensors = handoff.TensorCount
	PartAll = -1
)
