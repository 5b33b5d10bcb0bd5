package connector

import (
	"errors"
	"fmt"
	"time"

	"kvferry/engine"
	"kvferry/kvcache"
)

// A Handoff is a way for KV to get from prefill to decode.
type Handoff uint8

const (
	None Handoff = iota
	V0
	Pull
	Layerwise
)

var handoffs = [...]string{"", "v0", "pull", "layerwise"}

func (h Handoff) String() string {
	if int(h) >= len(handoffs) {
		return fmt.Sprintf("handoff(%d)", h)
	}
	return handoffs[h]
}

// Handoffs are the names ParseHandoff knows.
func Handoffs() []string { return handoffs[1:] }

// ParseHandoff is the inverse of String.
func ParseHandoff(s string) (Handoff, error) {
	for h, name := range handoffs {
		if s == name {
			return Handoff(h), nil
		}
	}
	return None, fmt.Errorf("%q: there is no such hand-off: use v0, pull or layerwise", s)
}

// A Leg is the part of a request that one node carries.
type Leg uint8

const (
	Full Leg = iota
	PrefillLeg
	DecodeLeg
)

var legs = [...]string{"full", "prefill", "decode"}

func (l Leg) String() string {
	if int(l) >= len(legs) {
		return fmt.Sprintf("leg(%d)", l)
	}
	return legs[l]
}

// Remote is the other side of a transfer, as the control plane described it.
type Remote struct {
	Node       string
	Transfer   uint64 // on that node
	Blocks     []Block
	Tokens     int
	FirstToken kvcache.Token // v0: decode emits it without computing
}

// A Block is one slot of the other side's block table.
type Block struct {
	Index int // in the sequence's block table
	Ref   kvcache.Ref
}

// An Event is something that happened to the node.
type Event interface{ event() }

type (
	// Submit brings a leg of a request.
	Submit struct {
		ID        uint64
		Leg       Leg
		Handoff   Handoff
		Prompt    []kvcache.Token
		Prefix    []kvcache.Hash // see engine.Request
		MaxTokens int
		Age       time.Duration // since the proxy accepted it
		Deadline  time.Duration // on the node's clock
		Remote    Remote
	}
	// Cancel ends a request; nothing more is said of it but Closed and Drop.
	Cancel struct{ ID uint64 }
	// StepDone ends the step that Launch started.
	StepDone struct {
		At     time.Duration
		Tokens []kvcache.Token
	}
	// LayerDone: the step under way has this layer's KV in its blocks, or will have
	// it at a time to come.
	LayerDone struct {
		Layer int
		At    time.Duration
	}
	// Produce asks for the tensors of a v0 transfer; Peer is the driver's.
	Produce struct{ Transfer uint64 }
	// Release ends the hold on a transfer's blocks.
	Release struct{ Transfer uint64 }
	// Produced: the producer has made a tensor of this v0 request available.
	Produced struct {
		ID     uint64
		Tensor int
	}
	// Gone: the producer does not have this request's transfer (any more), which
	// wraps ErrWithdrawn, or is itself gone.
	Gone struct {
		ID  uint64
		Err error
	}
	// Moved ends a Move, well or not. Err wraps ErrWithdrawn if the other node's
	// window was closed.
	Moved struct {
		ID         uint64
		Part       int
		Bytes      int64
		Posted, At time.Duration
		Err        error
	}
	// Arrived is an immediate: a part of a layerwise transfer is in our blocks.
	Arrived struct {
		ID    uint64
		Part  int
		Token kvcache.Token // the first token, with the last layer
		At    time.Duration
	}
	// Checked ends a Check. Err is not nil if a block was bad.
	Checked struct {
		ID     uint64
		Part   int
		Blocks int // checked completely by now
		Bad    int
		Err    error
	}
	// Closed ends a Close: nothing outside can touch the request's blocks any more.
	Closed struct{ ID uint64 }
)

func (Submit) event()    {}
func (Cancel) event()    {}
func (StepDone) event()  {}
func (LayerDone) event() {}
func (Produce) event()   {}
func (Release) event()   {}
func (Produced) event()  {}
func (Gone) event()      {}
func (Moved) event()     {}
func (Arrived) event()   {}
func (Checked) event()   {}
func (Closed) event()    {}

// Actions are what a Step wants done, by Perform. Slices are valid until the next Step.
type Actions struct {
	Launch *engine.Step // run this
	Layers bool         // and report its layers

	Tokens    []Token
	Reserved  []Offer
	Prefilled []Prefilled
	Finished  []Finished
	Failed    []Failed

	Ask    []Ask    // to other nodes, about their transfers
	Answer []Answer // to whoever asked about ours
	Moves  []Move
	Checks []Check
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
	// The driver opens the window before the offer leaves.
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
		Pairs []Pair
		// Imm goes with a write: the reader's Arrived. Token is the first token.
		Imm   bool
		Token kvcache.Token
	}
	// Pair is a block here and its counterpart there.
	Pair struct {
		Index         int
		Local, Remote kvcache.Ref
	}
	// Check compares what landed with what must be there and ends in Checked.
	Check struct {
		ID    uint64
		Part  int
		Refs  []kvcache.Ref
		First int  // index of Refs[0] in the block table
		Again bool // PartAll: all was checked before, and used; it counts no blocks as checked
	}
)

// Parts of a transfer. V0 moves three tensors, pull everything at once
// (PartAll), layerwise a part a layer, numbered from 0.
const (
	TensorK = iota
	TensorV
	TensorHidden
	tensors
	PartAll = -1
)

// Breakdown says where a request's time on this node went. The parts of both legs
// together are the time from the proxy to the first token; under layerwise, whose
// prefill node streams that token before the transfer ends, to the second.
type Breakdown struct {
	Proxy       time.Duration // proxy, the way here, and the modelled front end or hop
	Queue       time.Duration // then until its first step, its blocks (Await), or its turn in a receive
	Prefill     time.Duration // first step of the prompt to the end of its last
	Post        time.Duration // KV is there, or asked for, and not on the wire: v0's waits for the producer
	Wire        time.Duration // moves under way; layerwise: after the prompt was computed
	Land        time.Duration // last byte to checked, copied in and the window closed
	FirstDecode time.Duration // then until a token left the node

	Bytes        int64 // moved by this node
	Checked, Bad int   // blocks
}

// Why a request failed.
var (
	ErrDeadline = errors.New("deadline exceeded")
	ErrTransfer = errors.New("KV transfer failed")
	ErrContent  = errors.New("KV block holds the wrong bytes")
	ErrInvalid  = errors.New("invalid request")
	// ErrChanged comes with ErrContent: the block was right when it landed.
	ErrChanged = errors.New("it has changed since it landed")
	// ErrUsed comes with ErrChanged: tokens that may have been drawn from it have left.
	ErrUsed = errors.New("after tokens had left")
	// ErrWithdrawn comes with ErrTransfer: the other node has ended the transfer.
	ErrWithdrawn = errors.New("the other node has withdrawn the transfer")
)

// Add adds what another leg of the same request took.
func (b *Breakdown) Add(o *Breakdown) {
	b.Proxy += o.Proxy
	b.Queue += o.Queue
	b.Prefill += o.Prefill
	b.Post += o.Post
	b.Wire += o.Wire
	b.Land += o.Land
	b.FirstDecode += o.FirstDecode
	b.Bytes += o.Bytes
	b.Checked += o.Checked
	b.Bad += o.Bad
}
